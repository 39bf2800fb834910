"""Inserts rows whose keys are new; the others take the places of the rows that have their keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from calve.changes.by_hand import refuse_rows, require_unnumbered
from calve.changes.change import Change
from calve.changes.keys import key_facts
from calve.changes.rewrite import FileChanges, FileResult, Rewrite
from calve.changes.rows import Piece, chunks, row_mask
from calve.condition import Fact
from calve.errors import InvalidRequest
from calve.model import TableName
from calve.query.row_engine import RowEngine
from calve.tables.catalog import LakeCatalog
from calve.tables.columns import OWN_PREFIX
from calve.tables.condition_columns import condition_columns
from calve.tables.inputs import PartialRows, read_partial
from calve.tables.nearest import meant
from calve.tables.reading import FileReader

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask

_SHOWN: Final = 5


def upsert_rows(  # noqa: PLR0913
    catalog: LakeCatalog,
    name: TableName | str,
    data: object,
    keys: Sequence[str],
    *,
    format: str | None = None,  # noqa: A002
    delimiter: str | None = None,
    branch: str | None = None,
    force: bool = False,
) -> Change:
    """Update the rows whose keys are in `data`, and insert those of `data` that have no row yet.

    A column that `data` leaves open keeps its value in a row that is there, and is null in a new
    one; a row of Python or JSON leaves open what it does not name. Rows that are equal already are
    left alone and not counted. Each key may come once in `data`, and none may be null. Rows of the
    table without a key stay as they are. `data` is held in memory. In a table that a topic feeds
    only with `force`: rows that are updated keep their offsets, new ones have none.
    """
    rewrite = Rewrite(catalog, name, "upsert", branch=branch)
    refuse_rows(rewrite.table, force=force)
    schema = rewrite.table.schema()
    require_keys(keys, schema)
    source = read_partial(data, schema=schema, keys=keys, format=format, delimiter=delimiter)
    require_unnumbered(source.rows)
    with RowEngine() as engine:
        require_one_row_for_each_key(engine, source.rows, keys)
        upsert = _Upsert(rewrite, engine, source, keys)

        def plan() -> FileChanges:
            # A topic may have come to feed the table since the attempt before.
            refuse_rows(rewrite.table, force=force)
            return upsert.plan()

        return rewrite.run(plan)


class _Upsert:
    def __init__(
        self, rewrite: Rewrite, engine: RowEngine, given: PartialRows, keys: Sequence[str]
    ) -> None:
        self._rewrite = rewrite
        self._engine = engine
        self._given = given
        self._keys = list(keys)
        self._schema_id = rewrite.table.schema().schema_id
        self._new: tuple[object, pa.Array, tuple[DataFile, ...]] | None = None

    @property
    def _source(self) -> pa.Table:
        return self._given.rows

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
                changes.replace(file, result)
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
            self._given = self._given.fitted(schema, self._keys)
            self._schema_id = schema.schema_id

    def _facts(self) -> Fact:
        known = {column.name: column for column in condition_columns(self._rewrite.table.schema())}
        return key_facts(self._source, [known[key] for key in self._keys])

    def _work(self, reader: FileReader, task: FileScanTask) -> FileResult:
        matches = self._matches(reader, task)
        if not len(matches.rows):
            return FileResult()
        found = pc.unique(matches.sources)
        return self._rewrite.replace(lambda: self._pieces(reader, task, matches), found)

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

    def _pieces(self, reader: FileReader, task: FileScanTask, matches: _Matches) -> Iterator[Piece]:
        """The file piece by piece: the rows that stay, and those that take the others' places."""
        others = [name for name in self._source.column_names if is_replaced(name, self._keys)]
        start = 0
        for batch in reader.batches(task):
            rows = pa.Table.from_batches([batch])
            places, sources = matches.between(start, start + rows.num_rows)
            start += rows.num_rows
            if not len(places):
                yield rows, rows.slice(0, 0)
                continue
            old = rows.take(places)
            new = _with_places_of(old, self._completed(sources, old))
            different = self._engine.different(old.select(others), new.select(others))
            gone = row_mask(places.take(different), rows.num_rows)
            yield rows.filter(pc.invert(gone)), new.take(different)

    def _completed(self, numbers: pa.Array, old: pa.Table) -> pa.Table:
        """Rows of the source; what they leave open is as in the rows whose places they take."""
        new = self._source.take(numbers)
        for name, mask in self._given.left_open.items():
            place = new.schema.get_field_index(name)
            values = _chosen(mask.take(numbers), old.column(name), new.column(name))
            new = new.set_column(place, new.schema.field(place), values)
        return new

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
        self._require_whole(numbers)
        files = self._rewrite.write([self._source.take(numbers)])
        self._new = (written_as, numbers, files)
        return files

    def _require_whole(self, numbers: pa.Array) -> None:
        """A new row must have what the table requires."""
        required = [field.name for field in self._rewrite.table.schema().fields if field.required]
        for name in required:
            mask = self._given.left_open.get(name)
            first = -1 if mask is None else pc.index(mask.take(numbers), value=True).as_py()
            if first >= 0:
                row = numbers[first].as_py() + 1
                raise InvalidRequest(
                    f"row {row:,}: the required column {name!r} is missing, and the table has no "
                    "row with this key",
                    hint="only a row that is there already can do without it",
                    context={"row": str(row), "column": name},
                )


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


def _chosen(mask: pa.ChunkedArray, old: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.ChunkedArray:
    """Where the mask is true the old value, elsewhere the new one; of any type."""
    if pc.all(mask).as_py():
        return old
    numbers = pa.arange(0, len(mask))
    both = pa.chunked_array([*old.chunks, *new.chunks], old.type)
    return both.take(pc.if_else(mask, numbers, pc.add(numbers, len(mask))))


def is_replaced(column: str, keys: Sequence[str]) -> bool:
    """Whether a column gets the value of the new row: keys have it, and offsets stay."""
    return column not in keys and not column.startswith(OWN_PREFIX)


def _with_places_of(old: pa.Table, new: pa.Table) -> pa.Table:
    """The new rows at the offsets of the old ones."""
    for place, name in enumerate(new.column_names):
        if name.startswith(OWN_PREFIX):
            new = new.set_column(place, new.field(place), old.column(name))
    return new


def _joined(numbers: Sequence[pa.Array]) -> pa.Array:
    return pa.concat_arrays(numbers) if numbers else pa.array([], pa.int64())


def require_keys(keys: Sequence[str], schema: Schema) -> None:
    """Refuse what are no columns that could tell rows apart."""
    if isinstance(keys, str):
        raise InvalidRequest("the keys are one text", hint=f"write keys=[{keys!r}]")
    if not keys:
        raise InvalidRequest("an upsert needs a key", hint="name the columns that tell rows apart")
    twice = next((key for place, key in enumerate(keys) if key in keys[:place]), None)
    if twice is not None:
        raise InvalidRequest(f"the key names column {twice!r} twice", hint="name each column once")
    names = [field.name for field in schema.fields]
    usable = {column.name for column in condition_columns(schema)}
    for key in keys:
        if key not in names:
            raise InvalidRequest(
                f"the table has no column {key!r}{meant(key, names)}",
                hint=f"its columns are {', '.join(map(repr, names[:10]))}",
            )
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
