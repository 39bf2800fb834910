"""Inserts rows whose keys are new; the others take the places of the rows that have their keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from calve.changes.change import Change
from calve.changes.keys import key_facts
from calve.changes.rewrite import FileChanges, FileResult, Rewrite
from calve.changes.rows import chunks, row_mask
from calve.condition import Fact
from calve.errors import InvalidRequest
from calve.model import TableName
from calve.query.row_engine import RowEngine
from calve.tables.catalog import LakeCatalog
from calve.tables.condition_columns import condition_columns
from calve.tables.inputs import conform, open_input
from calve.tables.nearest import meant
from calve.tables.reading import FileReader

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask

_SHOWN: Final = 5
_HELD_BYTES: Final = 64 * 1024 * 1024

# Rows that stay, and rows that take the places of others.
_Piece: TypeAlias = tuple[pa.Table, pa.Table]


def upsert_rows(
    catalog: LakeCatalog,
    name: TableName | str,
    data: object,
    keys: Sequence[str],
    *,
    format: str | None = None,  # noqa: A002
    branch: str | None = None,
) -> Change:
    """Update the rows whose keys are in `data`, and insert those of `data` that have no row yet.

    The whole row is replaced: a column that `data` lacks becomes null. Rows that are equal already
    are left alone and not counted. Each key may come once in `data`, and none may be null. Rows of
    the table without a key stay as they are. `data` is held in memory.
    """
    rewrite = Rewrite(catalog, name, "upsert", branch=branch)
    schema = rewrite.table.schema()
    require_keys(keys, schema)
    source = open_input(data, schema=schema, format=format).read_all()
    with RowEngine() as engine:
        require_one_row_for_each_key(engine, source, keys)
        upsert = _Upsert(rewrite, engine, source, keys)
        return rewrite.run(upsert.plan)


class _Upsert:
    def __init__(
        self, rewrite: Rewrite, engine: RowEngine, source: pa.Table, keys: Sequence[str]
    ) -> None:
        self._rewrite = rewrite
        self._engine = engine
        self._source = source
        self._keys = list(keys)
        self._schema_id = rewrite.table.schema().schema_id
        self._new: tuple[object, pa.Array, tuple[DataFile, ...]] | None = None

    def plan(self) -> FileChanges:
        changes = FileChanges()
        if not self._source.num_rows:
            return changes
        self._follow_schema()
        matched: list[pa.Array] = []
        for file, result in self._rewrite.results(self._facts(), self._work):
            if result.found is not None:
                matched.append(result.found)
            if result.is_touched:
                changes.removed.append(file)
                changes.added.extend(result.outputs)
                changes.updated_rows += result.changed_rows
        new = self._numbers_without(matched)
        changes.added.extend(self._inserted(new))
        changes.inserted_rows = len(new)
        return changes

    def _follow_schema(self) -> None:
        """Somebody else may change the table's columns between two attempts."""
        schema = self._rewrite.table.schema()
        if schema.schema_id != self._schema_id:
            require_keys(self._keys, schema)
            self._source = conform(self._source, schema).read_all()
            self._schema_id = schema.schema_id

    def _facts(self) -> Fact:
        known = {column.name: column for column in condition_columns(self._rewrite.table.schema())}
        return key_facts(self._source, [known[key] for key in self._keys])

    def _work(self, reader: FileReader, task: FileScanTask) -> FileResult:
        matches = self._matches(reader, task)
        if not len(matches.rows):
            return FileResult()
        found = pc.unique(matches.sources)
        pieces = self._from_first_difference(self._pieces(reader, task, matches))
        if pieces is None:
            return FileResult(found=found)
        updated = 0

        def rows() -> Iterator[pa.Table]:
            nonlocal updated
            for kept, replaced in pieces or self._pieces(reader, task, matches):
                updated += replaced.num_rows
                yield kept
                yield replaced

        outputs = self._rewrite.write(rows())
        return FileResult(updated, outputs, found)

    def _from_first_difference(self, pieces: Iterator[_Piece]) -> Iterable[_Piece] | None:
        """The pieces, if a row of theirs changes; none, to be read again, where that came late."""
        seen: list[_Piece] = []
        held_bytes = 0
        for kept, replaced in pieces:
            if replaced.num_rows:
                return chain(seen, [(kept, replaced)], pieces) if held_bytes < _HELD_BYTES else ()
            held_bytes += kept.nbytes
            seen = [*seen, (kept, replaced)] if held_bytes < _HELD_BYTES else []
        return None

    def _matches(self, reader: FileReader, task: FileScanTask) -> _Matches:
        rows: list[pa.Array] = []
        sources: list[pa.Array] = []
        start = 0
        for keys in chunks(reader.batches(task, self._keys)):
            numbers, source_numbers = self._engine.matches(keys, self._source, self._keys)
            rows.append(pc.add(numbers, start))
            sources.append(source_numbers)
            start += keys.num_rows
        return _Matches(_joined(rows), _joined(sources))

    def _pieces(
        self, reader: FileReader, task: FileScanTask, matches: _Matches
    ) -> Iterator[_Piece]:
        """The file piece by piece: the rows that stay, and those that take the others' places."""
        others = [name for name in self._source.column_names if name not in self._keys]
        start = 0
        for batch in reader.batches(task):
            rows = pa.Table.from_batches([batch])
            places, sources = matches.between(start, start + rows.num_rows)
            start += rows.num_rows
            if not len(places):
                yield rows, rows.slice(0, 0)
                continue
            new = self._source.take(sources)
            old = rows.take(places)
            different = self._engine.different(old.select(others), new.select(others))
            gone = row_mask(places.take(different), rows.num_rows)
            yield rows.filter(pc.invert(gone)), new.take(different)

    def _numbers_without(self, matched: list[pa.Array]) -> pa.Array:
        """The rows of the source that the table has nowhere."""
        known = row_mask(pc.unique(_joined(matched)), self._source.num_rows)
        return pa.arange(0, self._source.num_rows).filter(pc.invert(known))

    def _inserted(self, numbers: pa.Array) -> tuple[DataFile, ...]:
        """The files of the new rows; those of an earlier attempt, if nothing has changed."""
        if not len(numbers):
            return ()
        metadata = self._rewrite.table.metadata
        written_as = (
            metadata.current_schema_id,
            metadata.default_spec_id,
            metadata.default_sort_order_id,
        )
        if self._new is not None:
            before, known, files = self._new
            if before == written_as and known.equals(numbers):
                return files
            self._rewrite.drop(file.file_path for file in files)
        files = self._rewrite.write([self._source.take(numbers)])
        self._new = (written_as, numbers, files)
        return files


@dataclass(frozen=True, slots=True)
class _Matches:
    """Rows of a file, in their order, and the source rows that have their keys."""

    rows: pa.Array
    sources: pa.Array

    def between(self, start: int, stop: int) -> tuple[pa.Array, pa.Array]:
        """Those from a row on and before another, the rows counted from the first."""
        first, last = (
            bisect_left(self.rows, row, key=lambda number: number.as_py()) for row in (start, stop)
        )
        rows = self.rows.slice(first, last - first)
        return pc.subtract(rows, start), self.sources.slice(first, last - first)


def _joined(numbers: Sequence[pa.Array]) -> pa.Array:
    return pa.concat_arrays(numbers) if numbers else pa.array([], pa.int64())


def require_keys(keys: Sequence[str], schema: Schema) -> None:
    """Refuse what are no columns that could tell rows apart."""
    if isinstance(keys, str):
        raise InvalidRequest("the keys are one text", hint=f"write keys=[{keys!r}]")
    if not keys:
        raise InvalidRequest("an upsert needs a key", hint="name the columns that tell rows apart")
    names = [field.name for field in schema.fields]
    usable = {column.name for column in condition_columns(schema)}
    for key in keys:
        if key not in names:
            raise InvalidRequest(f"the table has no column {key!r}{meant(key, names)}")
        if key not in usable or not schema.find_field(key).field_type.is_primitive:
            raise InvalidRequest(f"column {key!r} cannot be a key", hint="name a plain column")


def require_one_row_for_each_key(engine: RowEngine, source: pa.Table, keys: Sequence[str]) -> None:
    for key in keys:
        if source.column(key).null_count:
            first = pc.index(source.column(key).is_null(), value=True).as_py() + 1
            raise InvalidRequest(
                f"row {first:,}, column {key!r}: a key is null",
                hint="fill it in; a row without a key cannot be found again",
                context={"row": str(first), "column": key},
            )
    doubled = engine.doubled(source, keys, shown=_SHOWN)
    if doubled:
        shown = ", ".join(f"{_shown_key(row[:-1])} ({row[-1]} times)" for row in doubled)
        raise InvalidRequest(
            f"several rows have the same key {', '.join(keys)}: {shown}",
            hint="leave one row for each key",
        )


def _shown_key(values: Sequence[object]) -> str:
    return repr(values[0]) if len(values) == 1 else repr(tuple(values))
