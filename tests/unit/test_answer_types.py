"""The Arrow types of answers are PyIceberg's, in their ordinary forms."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    GeographyType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from calve.tables.answer_types import arrow_type, result_schema

LARGE = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
PRIMITIVES: list[IcebergType] = [
    *(BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(20, 3)),
    *(DateType(), TimeType(), TimestampType(), TimestamptzType(), StringType(), UUIDType()),
    *(BinaryType(), FixedType(7), TimestampNanoType(), TimestamptzNanoType()),
    *(UnknownType(), GeographyType()),
]


@pytest.mark.parametrize("kind", PRIMITIVES, ids=str)
def test_a_primitive_type_is_pyicebergs(kind: IcebergType) -> None:
    theirs = schema_to_pyarrow(kind)
    assert arrow_type(kind) == LARGE.get(theirs, theirs)


@pytest.mark.parametrize("kind", PRIMITIVES, ids=str)
def test_a_nested_type_has_ordinary_parts_that_may_be_null(kind: IcebergType) -> None:
    part = arrow_type(kind)
    field = NestedField(3, "part", kind, required=True)
    assert arrow_type(ListType(1, kind, element_required=True)) == pa.list_(part)
    assert arrow_type(MapType(1, StringType(), 2, kind)) == pa.map_(pa.string(), part)
    assert arrow_type(StructType(field)) == pa.struct([pa.field("part", part)])


def test_a_column_keeps_its_name_and_whether_it_is_required() -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True, doc="a number"),
        NestedField(2, "Name", StringType(), required=False),
    )
    assert result_schema(schema) == pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("Name", pa.string())]
    )
