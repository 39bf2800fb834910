"""The Arrow types of an answer: Iceberg's, with the ordinary form of text, bytes and lists.

PyIceberg's own conversion would do, but it comes with its part for data files, for which a read by
DuckDB need not wait.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
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
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

_PLAIN: Final[dict[type[IcebergType], pa.DataType]] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    DateType: pa.date32(),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    StringType: pa.string(),
    TimestampNanoType: pa.timestamp("ns"),
    TimestampType: pa.timestamp("us"),
    TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    TimestamptzType: pa.timestamp("us", "UTC"),
    TimeType: pa.time64("us"),
    UUIDType: pa.uuid(),
}


def result_schema(schema: Schema) -> pa.Schema:
    """The names, types and nulls of rows with these columns."""
    return pa.schema(
        [
            pa.field(field.name, arrow_type(field.field_type), nullable=field.optional)
            for field in schema.fields
        ]
    )


def arrow_type(kind: IcebergType) -> pa.DataType:
    match kind:
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case FixedType():
            return pa.binary(len(kind))
        case ListType():
            return pa.list_(arrow_type(kind.element_type))
        case MapType():
            return pa.map_(arrow_type(kind.key_type), arrow_type(kind.value_type))
        case StructType():
            # Nullable throughout: below a null struct even a required field has no value.
            return pa.struct([pa.field(f.name, arrow_type(f.field_type)) for f in kind.fields])
    return _PLAIN.get(type(kind)) or _rare(kind)


def _rare(kind: IcebergType) -> pa.DataType:
    """The types of newer formats, some of which other packages bring."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    made = schema_to_pyarrow(kind)
    return pa.binary() if pa.types.is_large_binary(made) else made
