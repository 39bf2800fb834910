"""The columns of an Iceberg table in DuckDB's words, for conditions.

Columns whose type DuckDB does not have are left out, so that a condition cannot name them.
"""

from __future__ import annotations

from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from calve.condition import Column

_NAMES: Final[dict[type[IcebergType], str]] = {
    BinaryType: "BLOB",
    BooleanType: "BOOLEAN",
    DateType: "DATE",
    DoubleType: "DOUBLE",
    FixedType: "BLOB",
    FloatType: "FLOAT",
    IntegerType: "INTEGER",
    LongType: "BIGINT",
    StringType: "VARCHAR",
    TimestampNanoType: "TIMESTAMP_NS",
    TimestampType: "TIMESTAMP",
    TimestamptzType: "TIMESTAMP WITH TIME ZONE",
    TimeType: "TIME",
    UUIDType: "UUID",
}


def condition_columns(schema: Schema) -> tuple[Column, ...]:
    """What a condition on this table may name."""
    typed = [(field.name, _type(field.field_type)) for field in schema.fields]
    return tuple(Column(name, kind) for name, kind in typed if kind is not None)


def _type(kind: IcebergType) -> str | None:
    match kind:
        case DecimalType():
            return f"DECIMAL({kind.precision},{kind.scale})"
        case ListType():
            element = _type(kind.element_type)
            return element and f"{element}[]"
        case MapType():
            key, value = _type(kind.key_type), _type(kind.value_type)
            return f"MAP({key}, {value})" if key and value else None
        case StructType():
            return _struct(kind)
    return _NAMES.get(type(kind))


def _struct(kind: StructType) -> str | None:
    fields = [(field.name.replace('"', '""'), _type(field.field_type)) for field in kind.fields]
    if not fields or any(text is None for _, text in fields):
        return None
    listed = ", ".join(f'"{name}" {text}' for name, text in fields)
    return f"STRUCT({listed})"
