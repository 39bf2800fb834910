"""Divides rows among the partitions of a table.

PyIceberg filters the rows once for each partition and has no word for NaN; here they are sorted by
partition once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType

from calve.errors import InvalidRequest
from calve.tables.partition_paths import partition_path
from calve.tables.transform_values import held_range, numbers_of, outside, transformed
from calve.tables.transforms import cannot_write
from calve.tables.types import type_name


class Place(PartitionKey):
    """A partition. Unlike PyIceberg's, it may have two fields of one column, and any value."""

    def __init__(self, record: Record, spec: PartitionSpec, schema: Schema) -> None:
        super().__init__(field_values=[], partition_spec=spec, schema=schema)
        object.__setattr__(self, "_record", record)

    # A partitioner has one for each partition.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def partition(self) -> Record:
        record: Record = self.__dict__["_record"]
        return record

    def to_path(self) -> str:
        """A name for the folder of the partition's files. Nobody reads values from it."""
        return partition_path(self.partition_spec, self.partition, self.schema)


class Unheld(NamedTuple):
    """Rows that no partition can hold, as marks among all, and why."""

    marks: pa.ChunkedArray
    reason: str


@dataclass(frozen=True, slots=True)
class _Term:
    path: list[str]
    type: IcebergType
    transform: Transform[Any, Any]

    def values(self, rows: pa.Table) -> pa.ChunkedArray:
        if isinstance(self.transform, VoidTransform):
            return pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())])
        return self._transformed(column_values(rows, self.path))

    def only_value(self, rows: pa.Table) -> pa.Scalar | None:
        """What all rows have, if the column's ends tell: rows of one moment mostly share a day."""
        values = column_values(rows, self.path)
        is_ordered = pa.types.is_integer(values.type) or pa.types.is_temporal(values.type)
        if not is_ordered or values.null_count or not self.transform.preserves_order:
            return None
        ends = pc.min_max(values)
        low, high = (
            self._transformed(pa.chunked_array([pa.repeat(end, 1)])) for end in ends.values()
        )
        return low[0] if low == high else None

    def _transformed(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return numbers_of(transformed(values, self.transform, self.type))


class Room:
    """Knows which rows no partition of a table can hold, whoever could write the others."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self._terms = [
            (term, held)
            for field in spec.fields
            if not isinstance(field.transform, VoidTransform)
            for term in [_plain_term(field, schema)]
            if (held := held_range(term.transform, term.type)) is not None
        ]

    def unheld(self, rows: pa.Table) -> Unheld | None:
        """Those that have no place for the first reason that there is."""
        for term, held in self._terms:
            marks = outside(column_values(rows, term.path), held, term.type)
            if marks is not None:
                name, result = ".".join(term.path), term.transform.result_type(term.type)
                reason = (
                    f"column {name!r}: the value is too far out to be partitioned by "
                    f"{term.transform}: {type_name(result)} has no room for the result"
                )
                return Unheld(marks, reason)
        return None


class Partitioner:
    """Knows into which partition of a table each row goes."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self._spec = spec
        self._schema = schema
        self._terms = [_term(field, schema) for field in spec.fields]
        self._room = Room(spec, schema)
        self._places: dict[tuple[str, ...], Place] = {}

    def divide(self, rows: pa.Table) -> Iterator[tuple[Place | None, pa.Table]]:
        """The rows of each partition, in their order; None is the place of all rows."""
        if not self._terms:
            yield None, rows
            return
        if unheld := self._room.unheld(rows):
            raise InvalidRequest(
                unheld.reason, hint="partition by another expression, or leave such rows out"
            )
        only = [value for term in self._terms if (value := term.only_value(rows)) is not None]
        if len(only) == len(self._terms):
            yield self._place([value.as_py() for value in only]), rows
            return
        columns = [term.values(rows) for term in self._terms]
        numbers = _numbered(columns)
        counts = pc.value_counts(numbers)
        if len(counts) > 1 and not _are_together(numbers, len(counts)):
            order = pc.sort_indices(numbers)
            rows, numbers = rows.take(order), numbers.take(order)
            columns = [column.take(order) for column in columns]
            counts = pc.value_counts(numbers)
        start = 0
        for count in counts.field("counts").to_pylist():
            values = [column[start].as_py() for column in columns]
            part = rows.slice(start, count)
            # A small part would hold the memory of all rows for as long as it waits for more.
            yield self._place(values), part if 2 * count >= rows.num_rows else _copied(part)
            start += count

    def _place(self, values: list[Any]) -> Place:
        key = tuple(map(repr, values))
        if key not in self._places:
            self._places[key] = Place(Record(*values), self._spec, self._schema)
        return self._places[key]


def _copied(rows: pa.Table) -> pa.Table:
    columns = [pa.concat_arrays(column.chunks) for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def column_values(rows: pa.Table, path: list[str]) -> pa.ChunkedArray:
    column = rows.column(path[0])
    return pc.struct_field(column, path[1:]) if len(path) > 1 else column


def column_path(schema: Schema, field_id: int) -> list[str]:
    """The names that lead to a column, which may lie inside structs."""
    name = schema.find_column_name(field_id)
    assert name is not None
    is_top = any(each.field_id == field_id for each in schema.fields)
    return [name] if is_top else name.split(".")


def _term(field: PartitionField, schema: Schema) -> _Term:
    source = schema.find_field(field.source_id)
    if isinstance(field.transform, UnknownTransform) or cannot_write(
        field.transform, source.field_type
    ):
        raise InvalidRequest(
            f"the table is partitioned by {field.transform} of {source.name!r}, which is "
            f"{type_name(source.field_type)}: such partitions cannot be written yet",
            hint="write it with Spark, or change the partitioning",
            context={"column": source.name},
        )
    return _plain_term(field, schema)


def _plain_term(field: PartitionField, schema: Schema) -> _Term:
    kind = schema.find_field(field.source_id).field_type
    return _Term(column_path(schema, field.source_id), kind, field.transform)


def _numbered(columns: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    """For each row a number, the same for rows that agree in all columns."""
    numbers = _codes(columns[0])
    for column in columns[1:]:
        codes = _codes(column)
        width = (pc.max(codes).as_py() or 0) + 1
        # Counted anew each time, so that the product stays small.
        numbers = _codes(pc.add(pc.multiply(numbers, width), codes))
    return numbers


def _are_together(numbers: pa.ChunkedArray, count: int) -> bool:
    """Whether the rows of each partition follow each other, as those of a day mostly do."""
    return len(pc.run_end_encode(numbers.combine_chunks()).values) == count


def _codes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array(
            [chunk.storage for chunk in column.chunks], column.type.storage_type
        )
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return pa.chunked_array([encoded.indices.cast(pa.int64())])
