"""A machine that does to a table whatever IcebergManager can, and holds it to a model of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from calve.changes import Change, Expression
from calve.errors import Conflict, InvalidRequest, NotFound
from calve.manager import IcebergManager
from calve.query.rows import Rows
from tests.property.table_model import (
    WIDER,
    Column,
    Columns,
    MapOf,
    Row,
    StructOf,
    TableModel,
    arrow_type,
    changed,
    dropped,
    expected_rows,
    iceberg_field,
    iceberg_type,
    literal,
    named,
    named_row,
    order_key,
    path_name,
    quoted,
    same,
    seen_rows,
    walk,
)
from tests.property.table_strategies import (
    COLUMN_NAMES,
    FIELD_NAMES,
    TRANSFORMS,
    VALUES,
    Columnist,
    conditions,
    partition_expression,
    references,
    rows,
    values,
)

BRANCHES = ["b1", "b2", "Zweig 3"]
TAGS = ["t1", "t2"]
DATA = st.data()
_tables = count()


class TableMachine(RuleBasedStateMachine):
    """One table. Another engine, such as Spark, may be held to the model at the end."""

    model: TableModel

    def __init__(self, manager: IcebergManager, types: list[str] | None = None) -> None:
        super().__init__()
        self.manager = manager
        self.name = f"t{next(_tables)}"
        self.columnist = Columnist(types or list(VALUES))
        self._is_whole = False

    @initialize(data=DATA)
    def create(self, data: st.DataObject) -> None:
        names = data.draw(
            st.lists(st.sampled_from(COLUMN_NAMES), min_size=1, max_size=4, unique=True)
        )
        columns = tuple(self.columnist.column(data, name) for name in names)
        partitions = self._drawn_partitions(data, columns)
        plain = [column for column in columns if isinstance(column.type, str)]
        ordered = (
            data.draw(st.lists(st.sampled_from(plain), max_size=2, unique=True)) if plain else []
        )
        direction = data.draw(st.sampled_from(["", " desc", " desc nulls first"]))
        with self._change():
            self.manager.create_table(
                self.name,
                Schema(*map(iceberg_field, columns)),
                partition_by=[self._partition_text(columns, each) for each in partitions],
                sort_by=[quoted(column.name) + direction for column in ordered],
            )
            self.model = TableModel(
                columns,
                partitions,
                [column.id for column in ordered],
                {source for source, _ in partitions},
            )

    # Rows

    @rule(data=DATA)
    def insert(self, data: st.DataObject) -> None:
        branch = self._drawn_branch(data)
        added = data.draw(st.lists(rows(self.model.columns), max_size=5), "rows")
        with self._change():
            change = self.manager.insert_data(self.name, self._input(data, added), branch=branch)
            assert change.inserted_rows == len(added)
            self._commit(change, [*self._rows(branch), *added], is_changed=bool(added))

    @rule(data=DATA)
    def insert_what_does_not_fit(self, data: st.DataObject) -> None:
        row = data.draw(rows(self.model.columns))
        given = named_row(row, self.model.columns)
        required = [column.name for column in self.model.columns if column.required]
        if data.draw(st.booleans()) and required:
            given[data.draw(st.sampled_from(required))] = None
        else:
            given["no such column"] = 1
        with self._change(), pytest.raises(InvalidRequest):
            self.manager.insert_data(self.name, [named_row(row, self.model.columns), given])

    @rule(data=DATA)
    def update(self, data: st.DataObject) -> None:
        branch = self._drawn_branch(data)
        condition = self._drawn_condition(data)
        column = data.draw(st.sampled_from(self.model.columns), "column")
        given, value = self._drawn_value(data, column)

        def updated(row: Row) -> Row:
            if condition is not None and condition.holds(row) is not True:
                return row
            new = {**row, column.id: value(row) if callable(value) else value}
            return row if self._is_same(row, new) else new

        before = self._rows(branch)
        after = [updated(row) for row in before]
        count = sum(new is not old for new, old in zip(after, before, strict=True))
        text = condition.text() if condition else None
        with self._change():
            change = self.manager.update_data(self.name, {column.name: given}, text, branch=branch)
            assert change.updated_rows == count
            self._commit(change, after, is_changed=bool(count))

    @rule(data=DATA)
    def delete(self, data: st.DataObject) -> None:
        branch = self._drawn_branch(data)
        condition = self._drawn_condition(data)
        text = condition.text() if condition else "true"
        before = self._rows(branch)
        left = [row for row in before if condition and condition.holds(row) is not True]
        with self._change():
            change = self.manager.delete_data(self.name, text, branch=branch)
            assert change.deleted_rows == len(before) - len(left)
            self._commit(change, left, is_changed=len(left) < len(before))

    @precondition(lambda self: any(isinstance(each.type, str) for each in self.model.columns))
    @rule(data=DATA)
    def upsert(self, data: st.DataObject) -> None:
        branch = self._drawn_branch(data)
        plain = [column for column in self.model.columns if isinstance(column.type, str)]
        keys = data.draw(st.lists(st.sampled_from(plain), min_size=1, max_size=2, unique=True))
        ids = [key.id for key in keys]

        def key_of(row: Row) -> tuple[Any, ...]:
            return tuple(order_key(row.get(each)) for each in ids)

        source = data.draw(
            st.lists(rows(self.model.columns, present=ids), max_size=4, unique_by=key_of)
        )
        given, left_open = self._partial_input(data, source, ids)
        by_key = {key_of(row): (row, o) for row, o in zip(source, left_open, strict=True)}
        before = self._rows(branch)
        after, updated, found = [], 0, set()
        for row in before:
            new, is_open = by_key.get(key_of(row), (row, set()))
            new = {**new, **{each: row.get(each) for each in is_open}}
            found |= {key_of(row)}
            is_other = not self._is_same(row, new)
            updated += is_other
            after.append(new if is_other else row)
        inserted = [
            {**row, **dict.fromkeys(is_open)}
            for key, (row, is_open) in by_key.items()
            if key not in found
        ]
        with self._change():
            change = self.manager.upsert_data(
                self.name, given, [key.name for key in keys], branch=branch
            )
            assert (change.updated_rows, change.inserted_rows) == (updated, len(inserted))
            self._commit(change, after + inserted, is_changed=bool(updated or inserted))

    # Columns

    @rule(data=DATA)
    def add_column(self, data: st.DataObject) -> None:
        parents: list[tuple[Column, ...]] = [
            (), *(p for p in walk(self.model.columns) if isinstance(p[-1].type, StructOf))
        ]  # fmt: skip
        parent = data.draw(st.sampled_from(parents), "parent")
        siblings = _children(parent, self.model.columns)
        name = self._free_name(data, siblings, FIELD_NAMES if parent else COLUMN_NAMES)
        if name is None:
            return
        column = self.columnist.column(data, name, depth=1, optional=True)
        with self._change():
            path = f"{path_name(parent)}.{name}" if parent else name
            self.manager.add_column(self.name, path, iceberg_type(column.type))
            if parent:
                self._alter(parent[-1].id, type=StructOf((*siblings, column)))
            else:
                self.model.columns = (*siblings, column)

    @rule(data=DATA)
    def rename_column(self, data: st.DataObject) -> None:
        path = self._drawn_field(data)
        parent = path[:-1]
        siblings = _children(parent, self.model.columns)
        name = self._free_name(data, siblings, FIELD_NAMES if parent else COLUMN_NAMES)
        if name is None:
            return
        with self._change():
            self.manager.rename_column(self.name, path_name(path), name)
            self._alter(path[-1].id, name=name)

    @rule(data=DATA)
    def drop_column(self, data: st.DataObject) -> None:
        path = self._drawn_field(data)
        is_last = len(_children(path[:-1], self.model.columns)) == 1
        with self._change():
            if is_last or self.model.is_used(path[-1].id):
                with pytest.raises(InvalidRequest):
                    self.manager.drop_column(self.name, path_name(path))
                return
            self.manager.drop_column(self.name, path_name(path))
            self.model.columns = dropped(self.model.columns, path[-1].id)

    @rule(data=DATA)
    def widen_column(self, data: st.DataObject) -> None:
        paths = [p for p in walk(self.model.columns) if p[-1].type in WIDER and not _in_key(p)]
        if not paths:
            return
        path = data.draw(st.sampled_from(paths), "path")
        kind = data.draw(st.sampled_from(WIDER[str(path[-1].type)]))
        with self._change():
            self.manager.alter_column(self.name, path_name(path), type=iceberg_type(kind))
            self._alter(path[-1].id, type=kind)

    @rule(data=DATA)
    def make_optional(self, data: st.DataObject) -> None:
        paths = [p for p in walk(self.model.columns) if p[-1].required and not _in_key(p)]
        if not paths:
            return
        path = data.draw(st.sampled_from(paths), "path")
        with self._change():
            self.manager.alter_column(self.name, path_name(path), optional=True)
            self._alter(path[-1].id, required=False)

    @rule(data=DATA)
    def change_partitions(self, data: st.DataObject) -> None:
        known = self.model.partitions
        gone = data.draw(st.lists(st.sampled_from(known), max_size=1)) if known else []
        kept = [each for each in known if each not in gone]
        free = tuple(c for c in self.model.columns if c.id not in {source for source, _ in kept})
        added = self._drawn_partitions(data, free)
        if not gone and not added:
            return
        with self._change():
            self.manager.alter_partition(
                self.name,
                add=[self._partition_text(self.model.columns, each) for each in added],
                drop=[self._partition_text(self.model.columns, each) for each in gone],
            )
            self.model.partitions = kept + added
            self.model.partition_sources |= {source for source, _ in added}

    # Snapshots, branches and tags

    @precondition(lambda self: self.model.snapshots)
    @rule(data=DATA, force=st.booleans())
    def roll_back(self, data: st.DataObject, force: bool) -> None:
        wanted = data.draw(st.sampled_from(list(self.model.snapshots)), "snapshot")
        with self._change():
            if not force and wanted not in self.model.ancestors(self.model.current):
                with pytest.raises(Conflict):
                    self.manager.rollback(self.name, wanted)
                return
            assert self.manager.rollback(self.name, wanted, force=force).id == wanted
            self._move_main(wanted)

    @precondition(lambda self: self.model.snapshots)
    @rule(data=DATA)
    def create_branch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(BRANCHES))
        start = data.draw(st.sampled_from(list(self.model.snapshots)), "start")
        with self._change():
            if name in self.model.branches:
                with pytest.raises(Conflict):
                    self.manager.create_branch(self.name, name, snapshot_id=start)
                return
            assert (
                self.manager.create_branch(self.name, name, snapshot_id=start).snapshot_id == start
            )
            self.model.branches[name] = start

    @precondition(lambda self: len(self.model.branches) > 1)
    @rule(data=DATA)
    def publish_branch(self, data: st.DataObject) -> None:
        name = self._drawn_branch(data) or "main"
        head = self.model.branches.get(name)
        with self._change():
            if head is None or self.model.current not in (None, *self.model.ancestors(head)):
                with pytest.raises((Conflict, NotFound)):
                    self.manager.publish_branch(self.name, name)
                return
            assert self.manager.publish_branch(self.name, name).id == head
            self._move_main(head)

    @precondition(lambda self: len(self.model.branches) > 1)
    @rule(data=DATA)
    def delete_branch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([each for each in self.model.branches if each != "main"]))
        with self._change():
            self.manager.delete_branch(self.name, name)
            del self.model.branches[name]

    @precondition(lambda self: self.model.current is not None)
    @rule(data=DATA)
    def create_tag(self, data: st.DataObject) -> None:
        name = data.draw(
            st.sampled_from([each for each in TAGS if each not in self.model.tags] or ["t3"])
        )
        if name in self.model.tags:
            return
        with self._change():
            made = self.manager.create_tag(self.name, name)
            assert made.snapshot_id == self.model.current
            self.model.tags[name] = made.snapshot_id

    @precondition(lambda self: self.model.tags)
    @rule(data=DATA)
    def delete_tag(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.model.tags)))
        with self._change():
            self.manager.delete_tag(self.name, name)
            del self.model.tags[name]

    @precondition(lambda self: len(self.model.snapshots) > 1)
    @rule()
    def expire(self) -> None:
        kept = {*self.model.tags.values(), *self.model.unpublished(), self.model.current}
        old = {
            each.id
            for each in self.manager.list_snapshots(self.name)
            if each.timestamp < datetime.now(UTC) - timedelta(milliseconds=1)
        }
        with self._change():
            planned = self.manager.expire_snapshots(self.name, 0, dry_run=True)
            self.check_files()
            expired = self.manager.expire_snapshots(self.name, 0)
            assert set(expired.snapshot_ids) == old - kept
            assert (expired.snapshot_ids, expired.files) == (planned.snapshot_ids, planned.files)
            for each in expired.snapshot_ids:
                del self.model.snapshots[each]
        self.check_everything()

    # Questions

    @rule(data=DATA)
    def query(self, data: st.DataObject) -> None:
        condition = (
            data.draw(conditions(self.model.columns)) if references(self.model.columns) else None
        )
        if condition is None:
            return
        meant = [row for row in self.model.rows() if condition.holds(row) is True]
        found = self.manager.query_table(self.name, condition.text())
        self._check_rows(found, self.model.columns, meant)

    @precondition(lambda self: self.model.snapshots)
    @rule(data=DATA)
    def query_snapshot(self, data: st.DataObject) -> None:
        snapshot_id = data.draw(st.sampled_from(list(self.model.snapshots)), "snapshot")
        state = self.model.snapshots[snapshot_id]
        if not references(state.columns):
            return
        condition = data.draw(conditions(state.columns))
        meant = [row for row in state.rows if condition.holds(row) is True]
        found = self.manager.query_snapshot(self.name, snapshot_id, condition.text())
        self._check_rows(found, state.columns, meant)

    # What must hold

    def check_current(self) -> None:
        """DuckDB and PyIceberg find the rows and columns of now."""
        columns = self.model.columns
        self._check_rows(self.manager.query_table(self.name), columns, self.model.rows())
        self._check_scan(None, columns, self.model.rows())

    def check_everything(self) -> None:
        """Every kept snapshot answers as it did, and no file is lacking or left over."""
        self.check_current()
        kept = self.manager.list_snapshots(self.name)
        assert {each.id for each in kept} == set(self.model.snapshots)
        for snapshot_id, state in self.model.snapshots.items():
            found = self.manager.query_snapshot(self.name, snapshot_id)
            assert found.snapshot_id == snapshot_id
            self._check_rows(found, state.columns, state.rows)
            self._check_scan(snapshot_id, state.columns, state.rows)
        self.check_references()
        self.check_times()
        self.check_files()

    def check_references(self) -> None:
        branches = {each.name: each.snapshot_id for each in self.manager.list_branches(self.name)}
        tags = {each.name: each.snapshot_id for each in self.manager.list_tags(self.name)}
        assert (branches, tags) == (self.model.branches, self.model.tags)
        for kind, names in (("branch", branches), ("tag", tags)):
            for name, snapshot_id in names.items():
                if name != "main":
                    state = self.model.snapshots[snapshot_id]
                    columns = self.model.columns if kind == "branch" else state.columns
                    found = self.manager.query_table(self.name, **{kind: name})  # type: ignore[arg-type]
                    assert found.snapshot_id == snapshot_id
                    # DuckDB cannot show a snapshot with other columns than those of its time.
                    is_old = columns != state.columns
                    self._check_rows(found, columns, state.rows, is_duckdbs=not is_old)

    def check_times(self) -> None:
        """A time leads to what was current then, or nowhere if that has expired."""
        for moment, snapshot_id in self.model.history:
            if snapshot_id in self.model.snapshots:
                try:
                    found = self.manager.query_as_of(self.name, moment)
                except NotFound:
                    # The history before an expired snapshot may be forgotten.
                    assert any(each not in self.model.snapshots for _, each in self.model.history)
                    continue
                assert found.snapshot_id == snapshot_id
            else:
                with pytest.raises(NotFound):
                    self.manager.query_as_of(self.name, moment)

    def check_files(self) -> None:
        """The files in the table's directory are those that something refers to."""
        table = self.table()
        needed = {table.metadata_location, *(e.metadata_file for e in table.metadata.metadata_log)}
        for snapshot in table.metadata.snapshots:
            needed.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                needed.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(table.io):
                    needed.add(entry.data_file.file_path)
        root = Path(urlsplit(table.location()).path)
        present = {path.as_uri() for path in root.rglob("*") if path.is_file()}
        hint = (root / "metadata" / "version-hint.text").as_uri()
        assert present - {hint} == {Path(urlsplit(each).path).as_uri() for each in needed}

    def teardown(self) -> None:
        if self._is_whole:
            self.check_everything()
            self.check_elsewhere()

    def check_elsewhere(self) -> None:
        """For another engine."""

    # Parts of the above

    @contextmanager
    def _change(self) -> Iterator[None]:
        self._is_whole = False
        yield
        self.check_current()
        self._is_whole = True

    def table(self) -> Table:
        return self.manager._lake.catalog.load_table(self.name)

    def _check_rows(
        self, found: Rows, columns: Columns, expected: Any, *, is_duckdbs: bool = True
    ) -> None:
        table = found.to_arrow()
        types = [(column.name, arrow_type(column.type)) for column in columns]
        assert [(each.name, each.type) for each in table.schema] == types
        assert seen_rows(table.to_pylist(), columns) == expected_rows(expected, columns)
        if is_duckdbs and not self._lacks_partition_source(columns):
            assert found.engine in {"duckdb", None}

    def _check_scan(self, snapshot_id: int | None, columns: Columns, expected: Any) -> None:
        """PyIceberg's own answer."""
        if _has_nested_uuid(columns):
            return
        table = self.table().scan(snapshot_id=snapshot_id).to_arrow()
        assert table.column_names == [column.name for column in columns]
        assert seen_rows(table.to_pylist(), columns) == expected_rows(expected, columns)

    def _lacks_partition_source(self, columns: Columns) -> bool:
        return bool(self.model.partition_sources - {path[-1].id for path in walk(columns)})

    def _rows(self, branch: str | None) -> tuple[Row, ...]:
        return self.model.rows(branch or "main")

    def _commit(self, change: Change, after: list[Row], *, is_changed: bool) -> None:
        assert (change.snapshot_id is not None) == is_changed
        if change.snapshot_id is not None:
            self.model.commit(change.branch, change.snapshot_id, after)
            if change.branch == "main":
                made = self.manager.get_current_snapshot(self.name)
                assert made is not None
                assert made.id == change.snapshot_id
                self.model.history.append((made.timestamp, made.id))

    def _move_main(self, snapshot_id: int) -> None:
        if self.model.current != snapshot_id:
            self.model.history.append((datetime.now(UTC), snapshot_id))
        self.model.branches["main"] = snapshot_id

    def _is_same(self, row: Row, other: Row) -> bool:
        return all(same(row.get(c.id), other.get(c.id), c.type) for c in self.model.columns)

    def _alter(self, column_id: int, **new: Any) -> None:
        self.model.columns = changed(self.model.columns, column_id, **new)

    def _input(self, data: st.DataObject, given: list[Row]) -> Any:
        """Rows as dicts, some without the columns that are null, or as an Arrow table."""
        listed = [named_row(row, self.model.columns) for row in given]
        form = data.draw(st.sampled_from(["dicts", "sparse dicts", "arrow"]), "form")
        if form == "arrow" and not _has_nested_uuid(self.model.columns):
            schema = schema_to_pyarrow(self.table().schema(), include_field_ids=False)
            return pa.Table.from_pylist(listed, schema)
        if form == "sparse dicts":
            return [{k: v for k, v in row.items() if v is not None} for row in listed]
        return listed

    def _partial_input(
        self, data: st.DataObject, given: list[Row], keys: list[int]
    ) -> tuple[Any, list[set[int]]]:
        """Rows that do not give all columns, and which each leaves open."""
        free = [c for c in self.model.columns if c.id not in keys and not c.required]
        some = st.sets(st.sampled_from([each.id for each in free])) if free else st.just(set())
        whole = data.draw(some, "left open by all")
        listed = self._input(data, given)
        names = {each.id: each.name for each in self.model.columns}
        if isinstance(listed, pa.Table):
            return listed.drop_columns([names[each] for each in whole]), [whole] * len(given)
        left_open = [data.draw(some, "left open") for _ in given]
        rows = [
            named_row(row, tuple(c for c in self.model.columns if c.id not in is_open))
            for row, is_open in zip(given, left_open, strict=True)
        ]
        return rows, left_open

    def _drawn_value(self, data: st.DataObject, column: Column) -> tuple[Any, Any]:
        """What to set a column to, and what that makes of a row."""
        value = data.draw(values(column.type, required=column.required), "value")
        if not isinstance(column.type, str) or data.draw(st.booleans(), "is a literal"):
            return named(value, column.type), value
        others = [
            each
            for each in self.model.columns
            if each.type == column.type and (each.required or not column.required)
        ]
        other = data.draw(st.sampled_from(others))
        if value is None or data.draw(st.booleans()):
            return Expression(quoted(other.name)), lambda row: row.get(other.id)
        text = f"coalesce({quoted(other.name)}, {literal(value, column.type)})"
        return Expression(
            text
        ), lambda row: value if row.get(other.id) is None else row.get(other.id)

    def _drawn_branch(self, data: st.DataObject) -> str | None:
        return data.draw(st.sampled_from([None, None, *self.model.branches]), "branch")

    def _drawn_condition(self, data: st.DataObject) -> Any:
        if not references(self.model.columns) or data.draw(st.integers(0, 5)) == 0:
            return None
        return data.draw(conditions(self.model.columns), "condition")

    def _drawn_field(self, data: st.DataObject) -> tuple[Column, ...]:
        """A column, or a field of a struct, however deep."""
        paths = [
            path
            for path in walk(self.model.columns)
            if (len(path) == 1 or isinstance(path[-2].type, StructOf)) and not _in_key(path)
        ]
        return data.draw(st.sampled_from(paths), "path")

    def _free_name(self, data: st.DataObject, siblings: Columns, names: list[str]) -> str | None:
        taken = {each.name for each in siblings}
        # A partition keeps its name when its column is renamed.
        taken |= {field.name for spec in self.table().specs().values() for field in spec.fields}
        free = [name for name in names if name not in taken]
        return data.draw(st.sampled_from(free), "name") if free else None

    def _drawn_partitions(self, data: st.DataObject, columns: Columns) -> list[tuple[int, str]]:
        plain = [column for column in columns if isinstance(column.type, str)]
        if not plain or data.draw(st.booleans(), "unpartitioned"):
            return []
        chosen = data.draw(st.lists(st.sampled_from(plain), max_size=2, unique=True))
        return [
            (column.id, data.draw(st.sampled_from(TRANSFORMS[str(column.type)]), "transform"))
            for column in chosen
        ]

    @staticmethod
    def _partition_text(columns: Columns, partition: tuple[int, str]) -> str:
        name = next(column.name for column in columns if column.id == partition[0])
        return partition_expression(name, partition[1])


def _children(parent: tuple[Column, ...], columns: Columns) -> Columns:
    if not parent:
        return columns
    kind = parent[-1].type
    assert isinstance(kind, StructOf)
    return kind.fields


def _in_key(path: tuple[Column, ...]) -> bool:
    """Whether a column is a map's key, which stays what it is."""
    return any(
        isinstance(above.type, MapOf) and below.id == above.type.key.id
        for above, below in pairwise(path)
    )


def _has_nested_uuid(columns: Columns) -> bool:
    """Arrow cannot make these from Python's values, nor PyIceberg read them."""
    return any(path[-1].type == "uuid" and len(path) > 1 for path in walk(columns))
