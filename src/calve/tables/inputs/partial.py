"""Rows that need not have all of a table's columns: what they give, and what they leave open.

A file or frame has a column for all of its rows or for none. Python rows and those of JSON name
their columns one by one, so each leaves open what it does not name; null is given like any value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from calve.errors import InvalidRequest
from calve.tables.inputs.conform import conform_reader, listed, match_names, target_schema
from calve.tables.inputs.csv_file import read_header
from calve.tables.inputs.files import InputFile, is_file, open_file, reading
from calve.tables.inputs.frames import is_frame, with_named_columns
from calve.tables.inputs.json_file import read_json
from calve.tables.inputs.origin import Origin
from calve.tables.inputs.rows import row_batches
from calve.tables.inputs.sources import arrow_reader, binary_reader, file_reader, open_input

_HERE = Origin()


@dataclass(frozen=True, slots=True)
class PartialRows:
    """All of a table's columns. `left_open` has those that some rows leave open, true where."""

    rows: pa.Table
    left_open: Mapping[str, pa.ChunkedArray]

    def is_left_open(self, name: str) -> bool:
        """Whether no row gives the column."""
        return name in self.left_open and bool(pc.all(self.left_open[name]).as_py())

    def fitted(self, schema: Schema, keys: Sequence[str]) -> PartialRows:
        """The same rows for a table whose columns are others by now."""
        given = [name for name in self.rows.column_names if not self.is_left_open(name)]
        again = _read(self.rows.select(given), _optional(target_schema(schema)), keys)
        partly = {name: mask for name, mask in self.left_open.items() if name in given}
        return PartialRows(again.rows, {**again.left_open, **partly})


def read_partial(
    data: object,
    *,
    schema: Schema,
    keys: Sequence[str],
    format: str | None = None,  # noqa: A002
    delimiter: str | None = None,
) -> PartialRows:
    """All rows of whatever `open_input` takes; every one must have the keys."""
    target = target_schema(schema)
    if is_file(data):
        return _read_file(open_file(data, format, delimiter=delimiter), target, keys)
    if delimiter is not None:
        raise InvalidRequest("only a file has a delimiter", hint="leave the delimiter out")
    if is_frame(data) or isinstance(data, Mapping):
        return _read(data, target, keys, format)
    if arrow := arrow_reader(data):
        return _read(arrow, target, keys, format)
    if format is None and isinstance(data, Iterable):
        return _read_rows(iter(data), target, keys)
    return _filled(open_input(data, schema=target, format=format).read_all(), target)


def _read_file(file: InputFile, target: pa.Schema, keys: Sequence[str]) -> PartialRows:
    if file.format == "json":
        naming = _Naming(target, keys)
        with file.stream, reading(file.origin):
            return naming.read(read_json(file, naming.wanted, naming.note))
    if file.format in {"parquet", "arrow"}:
        reader = binary_reader(file)
        wanted = _wanted(reader.schema.names, target, keys, file.origin)
        return _filled(conform_reader(reader, wanted, file.origin).read_all(), target)
    with reading(file.origin):
        names = read_header(file)
    return _filled(file_reader(file, _wanted(names, target, keys, file.origin)).read_all(), target)


def _read(
    data: Any,
    target: pa.Schema,
    keys: Sequence[str],
    format: str | None = None,  # noqa: A002
) -> PartialRows:
    """What names its columns once, for all rows: frames, Arrow, columns."""
    if is_frame(data):
        names = list(with_named_columns(data, _HERE).columns)
    else:
        names = list(map(str, data)) if isinstance(data, Mapping) else data.schema.names
    wanted = _wanted(names, target, keys, _HERE)
    return _filled(open_input(data, schema=wanted, format=format).read_all(), target)


def _read_rows(rows: Iterator[Any], target: pa.Schema, keys: Sequence[str]) -> PartialRows:
    first = list(islice(rows, 1))
    if first and isinstance(first[0], pa.RecordBatch):
        batches = pa.RecordBatchReader.from_batches(first[0].schema, chain(first, rows))
        return _read(batches, target, keys)
    naming = _Naming(target, keys)
    return naming.read(row_batches(chain(first, rows), naming.wanted, _HERE, naming.note))


def _wanted(
    names: Sequence[str], target: pa.Schema, keys: Sequence[str], origin: Origin
) -> pa.Schema:
    """The columns of the table that are among these; InvalidRequest for others, or without keys."""
    match_names(names, _optional(target), origin)
    if lacking := [key for key in keys if key not in names]:
        raise origin.error(
            f"the key {listed(lacking)} is missing",
            hint=f"the data has {listed(names) or 'no columns'}",
        )
    return pa.schema([field for field in target if field.name in names])


def _optional(target: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(nullable=True) for field in target])


def _filled(rows: pa.Table, target: pa.Schema) -> PartialRows:
    absent = [field.name for field in target if field.name not in rows.column_names]
    columns = [
        pa.chunked_array([pa.nulls(rows.num_rows, field.type)], field.type)
        if field.name in absent
        else rows.column(field.name)
        for field in target
    ]
    everywhere = pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])  # noqa: FBT003
    return PartialRows(
        pa.table(columns, schema=_optional(target)), dict.fromkeys(absent, everywhere)
    )


class _Naming:
    """Notes, while rows are read, which columns each of them names."""

    def __init__(self, target: pa.Schema, keys: Sequence[str]) -> None:
        self.wanted = _optional(target)
        self._target = target
        self._open: dict[str, list[pa.Array]] = {
            name: [] for name in target.names if name not in keys
        }

    def note(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for name, parts in self._open.items():
            parts.append(pa.array([name not in row for row in rows], pa.bool_()))

    def read(self, batches: Iterable[pa.RecordBatch]) -> PartialRows:
        rows = pa.Table.from_batches(batches, self.wanted)
        masks = {name: pa.chunked_array(parts, pa.bool_()) for name, parts in self._open.items()}
        left_open = {name: mask for name, mask in masks.items() if pc.any(mask).as_py()}
        for name in self._open:
            if not self._target.field(name).nullable:
                _require_given(name, rows.column(name), left_open.get(name))
        return PartialRows(rows, left_open)


def _require_given(name: str, values: pa.ChunkedArray, left_open: pa.ChunkedArray | None) -> None:
    missing = values.is_null()
    if left_open is not None:
        missing = pc.and_not(missing, left_open)
    place = pc.index(missing, value=True).as_py()
    if place >= 0:
        raise _HERE.error(
            "a required value is missing", column=name, place=place + 1, hint="fill it in"
        )
