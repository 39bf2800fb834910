"""The answer to a query: rows of one state of a table, as Arrow, pandas, Polars or dicts.

Nothing is held in memory until somebody asks for all of it: `batches()` and the Arrow stream go
through the rows once and keep none. Asked again, the same snapshot is read again.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from calve.errors import MissingPart
from calve.query.cells import cell_text, column_values
from calve.query.text_table import is_plan, plan_lines, text_table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_SHOWN_ROWS_MAX: Final = 20
_SHOWN_COLUMNS_MAX: Final = 30
_SHOWN_WIDTH_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class AsOf:
    """The state of a table that an answer is of.

    For a topic's, by partition: `committed` is the offset up to which that snapshot has its rows,
    and `durable` the one up to which the answer has them, from the log.
    """

    table: str
    snapshot_id: int | None
    committed: Mapping[int, int] = dataclasses.field(default_factory=dict)
    durable: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        snapshot = "no snapshot yet" if self.snapshot_id is None else f"snapshot {self.snapshot_id}"
        if not self.durable:
            return f"{self.table}: {snapshot}"
        ends = ", ".join(
            f"offset {end:,}" if len(self.durable) == 1 else f"offset {end:,} of partition {number}"
            for number, end in self.durable.items()
        )
        newer = sum(end - self.committed[number] for number, end in self.durable.items())
        return f"{self.table}: {snapshot} and {newer:,} newer in the log, up to {ends}"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the rows are of: the snapshot, when it was made, and the engine that read it."""

    snapshot_id: int | None = None
    snapshot_at: datetime | None = None
    engine: str | None = None
    times: tuple[str, ...] = ()
    as_of: tuple[AsOf, ...] = ()


class Rows:
    """Rows of a query. Safe to share between threads."""

    def __init__(
        self,
        open_stream: Callable[[], pa.RecordBatchReader],
        *,
        schema: pa.Schema | None = None,
        collect: Callable[[], pa.Table] | None = None,
        count: Callable[[], int] | None = None,
        shown: Shown | None = None,
        is_once: bool = False,
    ) -> None:
        """Rows whose schema is not known are opened at once, and tell here what is wrong.

        `collect` gives all rows faster than the stream does, `count` their number alone. Those that
        can be read once only are kept as soon as some of them are looked at.
        """
        self._open = open_stream
        self._collect = collect
        self._count = count
        self._is_once = is_once
        self._shown = shown or Shown()
        self._lock = threading.RLock()
        self._table: pa.Table | None = None
        self._length: int | None = None
        self._stream: pa.RecordBatchReader | None = None if schema else open_stream()
        self.schema: pa.Schema = schema or (self._stream and self._stream.schema)

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot the rows are of; None for a table without one, and for SQL."""
        return self._shown.snapshot_id

    @property
    def snapshot_at(self) -> datetime | None:
        """When that snapshot was made, in UTC."""
        return self._shown.snapshot_at

    @property
    def times(self) -> tuple[str, ...]:
        """How SQL understood each time it named: the table, the time in UTC and the snapshot."""
        return self._shown.times

    @property
    def as_of(self) -> tuple[AsOf, ...]:
        """For SQL, the state of each table that it names; nothing for other queries."""
        return self._shown.as_of

    @property
    def engine(self) -> str | None:
        """Who reads the files: duckdb, pyiceberg or spark; None for SQL."""
        return self._shown.engine

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows piece by piece; none is kept."""
        if self._table is not None:
            yield from self._table.to_batches()
            return
        yield from self._take()

    def to_arrow(self) -> pa.Table:
        """All rows, which are then kept."""
        with self._lock:
            if self._table is None and self._collect is not None:
                self._table = self._collect()
            if self._table is None:
                self._table = pa.Table.from_batches(self._take(), self.schema)
            return self._table

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas data frame; uuids as text."""
        _library("pandas")
        return plain(self.to_arrow()).to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars data frame; uuids as text."""
        polars = _library("polars")
        frame: pl.DataFrame = polars.from_arrow(plain(self.to_arrow()))
        return frame

    def head(self, rows: int) -> pa.Table:
        """The first rows, without reading the others."""
        if self._table is not None or self._is_once:
            return self.to_arrow().slice(0, rows)
        kept: list[pa.RecordBatch] = []
        for batch in self._open():
            kept.append(batch)
            if sum(map(len, kept)) >= rows:
                break
        return pa.Table.from_batches(kept, self.schema).slice(0, rows)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        stream = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return stream.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        with self._lock:
            if self._length is None:
                is_cheap = self._table is None and self._count is not None
                self._length = self._count() if is_cheap and self._count else len(self.to_arrow())
            return self._length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        if is_plan(self.schema):
            return "\n".join(plan_lines(self.to_arrow()))
        count = len(self)
        table = self.head(_SHOWN_ROWS_MAX)
        lines = text_table(
            table.select(range(min(table.num_columns, _SHOWN_COLUMNS_MAX))),
            width_max=_SHOWN_WIDTH_MAX,
        )
        return "\n".join([*lines, self._summary(count)])

    def _repr_html_(self) -> str:
        if is_plan(self.schema):
            return f"<pre>{html.escape(repr(self))}</pre>"
        count = len(self)
        table = self.head(_SHOWN_ROWS_MAX)
        shown = table.select(range(min(table.num_columns, _SHOWN_COLUMNS_MAX)))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in shown.column_names)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell_text(cell))}</td>" for cell in row) + "</tr>"
            for row in zip(*map(column_values, shown.columns), strict=True)
        )
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{html.escape(self._summary(count))}</p>"
        )

    def _summary(self, count: int) -> str:
        parts = [f"{count:,} row{'' if count == 1 else 's'}"]
        if count > _SHOWN_ROWS_MAX:
            parts[0] += f", the first {_SHOWN_ROWS_MAX} shown"
        if len(self.columns) > _SHOWN_COLUMNS_MAX:
            parts.append(f"{len(self.columns):,} columns, the first {_SHOWN_COLUMNS_MAX} shown")
        if self.snapshot_id is not None:
            parts.append(f"snapshot {self.snapshot_id}")
        return "; ".join(parts)

    def _take(self) -> pa.RecordBatchReader:
        with self._lock:
            stream, self._stream = self._stream, None
        return self._open() if stream is None else stream


def plain(table: pa.Table) -> pa.Table:
    """The table without extension types, which data frames do not know: uuids become text."""
    fields = []
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        made = _uuid_texts(column) if isinstance(field.type, pa.UuidType) else column
        made = made.cast(without_extensions(made.type))
        columns.append(made)
        fields.append(pa.field(field.name, made.type, nullable=field.nullable))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def without_extensions(kind: pa.DataType) -> pa.DataType:
    """The type with the storage of every extension in it."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_list(kind):
        return pa.list_(without_extensions(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(without_extensions(kind.key_type), without_extensions(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, without_extensions(f.type), f.nullable) for f in kind])
    return kind


def _uuid_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    values = (None if value is None else str(value) for value in column.to_pylist())
    return pa.chunked_array([pa.array(list(values), pa.string())])


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingPart(
            f"this needs {name}, which is not installed", hint=f"run `pip install {name}`"
        ) from error
