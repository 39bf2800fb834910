"""Rows in memory, of any kind, in parts of bounded length.

Arrow data keeps its types. Python's values and pandas' columns have none that anybody chose: whole
numbers are as long as can be, whatever was meant. They become columns of values, for the table's
types to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.tables.inputs.files import is_file
from calve.tables.inputs.frames import frame_columns, is_frame
from calve.tables.inputs.origin import Origin
from calve.tables.inputs.rows import check_row
from calve.tables.inputs.sources import arrow_reader, column_lists, no_rows

# Rows are there as Python's values, and twice in Arrow while they get the table's types.
_COPIES: Final = 3

Values: TypeAlias = list[Any] | pa.Array


@dataclass(frozen=True, slots=True)
class Columns:
    """Values by column; arrays where they came as such, their types not binding."""

    values: Mapping[str, Values]
    num_rows: int


Part: TypeAlias = pa.RecordBatch | Columns


def read_parts(data: object, *, rows_max: int, bytes_max: int) -> Iterator[Part]:
    """The rows as parts of at most so many, read as they are asked for.

    `bytes_max` bounds what has to be held or copied for a part, of Arrow data and of dicts. Columns
    of Python values and pandas' are in memory as a whole anyway.
    """
    if is_file(data):
        raise InvalidRequest(
            "rows are taken from memory here, not from a file",
            hint="insert_data of IcebergManager takes files; or read it first",
        )
    if is_frame(data):
        return _frame_parts(data, rows_max)
    if reader := arrow_reader(data):
        return _sliced(reader, rows_max, bytes_max)
    if isinstance(data, Mapping):
        return _column_parts(column_lists(data), rows_max)
    if isinstance(data, Iterable):
        return _row_parts(iter(data), rows_max, max(1, bytes_max // _COPIES))
    raise no_rows(data)


def cut_rows(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Pieces of at most so many bytes; a single row is never cut."""
    if rows.num_rows <= 1 or rows.nbytes <= bytes_max:
        yield rows
        return
    half = rows.num_rows // 2
    yield from cut_rows(rows.slice(0, half), bytes_max)
    yield from cut_rows(rows.slice(half), bytes_max)


def _sliced(
    batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows_max):
            yield from cut_rows(batch.slice(start, rows_max), bytes_max)


def _frame_parts(frame: Any, rows_max: int) -> Iterator[Columns]:
    for start in range(0, len(frame), rows_max):
        piece = frame.iloc[start : start + rows_max]
        yield Columns(frame_columns(piece, Origin(before=start)), len(piece))


def _column_parts(columns: dict[str, list[Any]], rows_max: int) -> Iterator[Columns]:
    total = len(next(iter(columns.values()), []))
    for start in range(0, total, rows_max):
        part = {name: values[start : start + rows_max] for name, values in columns.items()}
        yield Columns(part, min(rows_max, total - start))


def _row_parts(rows: Iterator[Any], rows_max: int, bytes_max: int) -> Iterator[Part]:
    first = list(islice(rows, 1))
    if first and isinstance(first[0], pa.RecordBatch):
        yield from _sliced(chain(first, rows), rows_max, bytes_max * _COPIES)
        return
    before = 0
    every = chain(first, rows)
    while piece := _next_rows(every, rows_max, bytes_max):
        yield _turned(piece, Origin(before=before))
        before += len(piece)


def _next_rows(rows: Iterator[Any], rows_max: int, bytes_max: int) -> list[Any]:
    piece: list[Any] = []
    left = bytes_max
    for row in islice(rows, rows_max):
        piece.append(row)
        left -= _bytes(row.values()) if isinstance(row, dict) else 0
        if left <= 0:
            break
    return piece


def _bytes(values: Iterable[Any]) -> int:
    """What texts and bytes among values take; asked for each row, so that others do not count."""
    size = 0
    for value in values:
        kind = type(value)
        if kind is str or kind is bytes:
            size += len(value)
        elif kind is list or kind is tuple:
            size += _bytes(value)
        elif kind is dict:
            size += _bytes(value.values())
    return size


def _turned(rows: list[Any], origin: Origin) -> Columns:
    names: dict[Any, None] = {}
    for place, row in enumerate(rows, 1):
        check_row(row, origin, place)
        names.update(dict.fromkeys(row))
    return Columns({str(name): [row.get(name) for row in rows] for name in names}, len(rows))
