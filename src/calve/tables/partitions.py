"""Divides rows among the partitions of a table.

PyIceberg filters the rows once for each partition and has no word for NaN; here they are sorted by
partition once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import (
    PartitionField,
    PartitionKey,
    PartitionSpec,
    partition_record_value,
)
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform, TruncateTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IcebergType

from calve.errors import InvalidRequest
from calve.tables.transforms import cannot_write
from calve.tables.types import type_name


class Place(PartitionKey):
    """A partition. Unlike PyIceberg's, it may have two fields of one column."""

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


@dataclass(frozen=True, slots=True)
class _Term:
    path: list[str]
    type: IcebergType
    transform: Transform[Any, Any]
    field: PartitionField

    def values(self, rows: pa.Table) -> pa.ChunkedArray:
        if isinstance(self.transform, VoidTransform):
            return pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())])
        return transformed(column_values(rows, self.path), self.transform, self.type)


class Partitioner:
    """Knows into which partition of a table each row goes."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self._spec = spec
        self._schema = schema
        self._terms = [_term(field, schema) for field in spec.fields]
        self._places: dict[tuple[str, ...], Place] = {}

    def divide(self, rows: pa.Table) -> Iterator[tuple[Place | None, pa.Table]]:
        """The rows of each partition, in their order; None is the place of all rows."""
        if not self._terms:
            yield None, rows
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
            yield self._place(values), rows.slice(start, count)
            start += count

    def _place(self, values: list[Any]) -> Place:
        key = tuple(map(repr, values))
        if key not in self._places:
            record = Record(
                *(
                    partition_record_value(term.field, value, self._schema)
                    for term, value in zip(self._terms, values, strict=True)
                )
            )
            self._places[key] = Place(record, self._spec, self._schema)
        return self._places[key]


def transformed(
    values: pa.ChunkedArray, transform: Transform[Any, Any], source: IcebergType
) -> pa.ChunkedArray:
    done = transform.pyarrow_transform(source)(values)
    if isinstance(source, DecimalType) and isinstance(transform, TruncateTransform):
        _require_digits(pc.min(done).as_py(), transform, source)
    return done if isinstance(done, pa.ChunkedArray) else pa.chunked_array([done])


def _require_digits(
    lowest: Decimal | None, transform: Transform[Any, Any], source: DecimalType
) -> None:
    """The lowest numbers of a decimal, truncated, have one digit more than it can hold."""
    if lowest is not None and len(lowest.as_tuple().digits) > source.precision:
        raise InvalidRequest(
            f"a value cannot be partitioned by {transform}: {lowest} has more digits than "
            f"{type_name(source)}",
            hint="partition by another expression, or leave such rows out",
        )


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
    path = column_path(schema, field.source_id)
    return _Term(path, source.field_type, field.transform, field)


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
