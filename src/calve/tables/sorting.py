"""Sorts rows by a table's sort order, with NaN above every number as Iceberg wants it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder

from calve.tables.partitions import column_path, column_values, transformed


def sorted_rows(rows: pa.Table, order: SortOrder, schema: Schema) -> pa.Table:
    """The rows in the table's order; those that it does not tell apart stay as they came."""
    keys: list[tuple[pa.ChunkedArray, str]] = []
    for field in order.fields:
        keys.extend(_keys(rows, field, schema))
    names = [f"k{number}" for number in range(len(keys))]
    ranked = pa.table([column for column, _ in keys], names=names)
    directions = [direction for _, direction in keys]
    return rows.take(pc.sort_indices(ranked, list(zip(names, directions, strict=True))))


def _keys(rows: pa.Table, field: SortField, schema: Schema) -> list[tuple[pa.ChunkedArray, str]]:
    """The column, behind ranks for null and NaN, which Arrow would put together at one end."""
    source = schema.find_field(field.source_id).field_type
    values = column_values(rows, column_path(schema, field.source_id))
    values = _plain(transformed(values, field.transform, source))
    descending = field.direction is SortDirection.DESC
    direction = "descending" if descending else "ascending"
    keys = [(values, direction)]
    if pa.types.is_floating(values.type):
        is_nan = pc.fill_null(pc.is_nan(values), fill_value=False)
        keys.insert(0, (is_nan.cast(pa.int8()), direction))
    if values.null_count:
        nulls_first = field.null_order is NullOrder.NULLS_FIRST
        keys.insert(
            0, (values.is_null().cast(pa.int8()), "descending" if nulls_first else "ascending")
        )
    return keys


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not isinstance(values.type, pa.BaseExtensionType):
        return values
    return pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
