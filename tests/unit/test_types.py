"""Type names, Iceberg types and Arrow types: one becomes the other."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from calve.errors import InvalidRequest
from calve.tables.types import parse_type, type_name

NAMES: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "bool": BooleanType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "INT32": IntegerType(),
    "long": LongType(),
    "bigint": LongType(),
    " int64 ": LongType(),
    "float": FloatType(),
    "float32": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "float64": DoubleType(),
    "decimal(10,2)": DecimalType(10, 2),
    "decimal( 38 , 0 )": DecimalType(38, 0),
    "numeric(5)": DecimalType(5, 0),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
    "timestamp_ns": TimestampNanoType(),
    "timestamptz_ns": TimestamptzNanoType(),
    "string": StringType(),
    "text": StringType(),
    "varchar": StringType(),
    "uuid": UUIDType(),
    "binary": BinaryType(),
    "bytes": BinaryType(),
    "blob": BinaryType(),
    "fixed[16]": FixedType(16),
    "fixed(3)": FixedType(3),
    "list<int>": ListType(1, IntegerType(), element_required=False),
    "array<int not null>": ListType(1, IntegerType(), element_required=True),
    "map<string, long>": MapType(1, StringType(), 2, LongType(), value_required=False),
    'struct<a: int, "b c": string not null>': StructType(
        NestedField(1, "a", IntegerType(), required=False),
        NestedField(2, "b c", StringType(), required=True),
    ),
}

PRIMITIVES = st.sampled_from(
    [
        *(kind for kind in NAMES.values() if kind.is_primitive),
        DecimalType(1, 1),
        FixedType(1),
    ]
)
FIELD_NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=12
).filter(str.strip)


def nested(inner: st.SearchStrategy[IcebergType]) -> st.SearchStrategy[IcebergType]:
    lists = st.builds(lambda t, r: ListType(1, t, element_required=r), inner, st.booleans())
    maps = st.builds(
        lambda k, v, r: MapType(1, k, 2, v, value_required=r), inner, inner, st.booleans()
    )
    structs = st.lists(
        st.tuples(FIELD_NAMES, inner, st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=lambda part: part[0].casefold(),
    ).map(
        lambda parts: StructType(
            *(NestedField(i, n, t, required=r) for i, (n, t, r) in enumerate(parts, 1))
        )
    )
    return st.one_of(lists, maps, structs)


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_every_name_stands_for_its_type(name: str, kind: IcebergType) -> None:
    assert parse_type(name) == kind


@given(st.recursive(PRIMITIVES, nested, max_leaves=8))
def test_a_name_is_read_back_as_the_same_type(kind: IcebergType) -> None:
    name = type_name(kind)
    parsed = parse_type(name)
    assert type_name(parsed) == name
    assert parse_type(type_name(parsed)) == parsed


@given(st.text(max_size=40))
def test_any_text_is_a_type_or_refused(text: str) -> None:
    try:
        parsed = parse_type(text)
    except InvalidRequest as error:
        assert error.hint  # noqa: PT017
    else:
        assert parse_type(type_name(parsed)) == parsed


@given(st.recursive(PRIMITIVES, nested, max_leaves=4).map(type_name), st.data())
def test_a_damaged_name_never_breaks_the_parser(name: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(name)))
    broken = name[:place] + data.draw(st.sampled_from(["", "<", ">", ",", '"', "9", "not"])) + name[place + 1 :]  # fmt: skip
    try:
        parse_type(broken)
    except InvalidRequest as error:
        assert error.hint  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("strin", "did you mean 'string'"),
        ("Timestmp", "did you mean 'timestamp'"),
        ("decimal", "needs its parts"),
        ("decimal(39,0)", "not possible"),
        ("decimal(5,6)", "not possible"),
        ("decimal(0,0)", "not possible"),
        ("fixed[0]", "impossible length"),
        ("list<>", "'>' is not a type"),
        ("list<int", "'>' is expected, not the end"),
        ("map<string>", "',' is expected"),
        ("struct<a: int, A: string>", "differ in case only"),
        ("struct<a: int, a: string>", "there twice"),
        ('struct<"": int>', "has no name"),
        ("int int", "too much"),
        ("varchar(20)", "too much"),
        ("", "missing"),
        ("list<" * 40 + "int" + ">" * 40, "inside each other"),
        ("list<" * 5000, "inside each other"),
        ("int;drop", "not understood"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        parse_type(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("arrow", "name"),
    [
        (pa.int8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.decimal128(9, 3), "decimal(9,3)"),
        (pa.decimal256(38, 3), "decimal(38,3)"),
        (pa.date64(), "date"),
        (pa.time32("ms"), "time"),
        (pa.timestamp("ns"), "timestamp"),
        (pa.timestamp("s", "Europe/Berlin"), "timestamptz"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.null(), "string"),
        (pa.binary_view(), "binary"),
        (pa.binary(7), "fixed[7]"),
        (pa.uuid(), "uuid"),
        (pa.json_(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "long"),
        (pa.large_list(pa.int64()), "list<long>"),
        (pa.list_(pa.field("e", pa.int64(), nullable=False), 3), "list<long not null>"),
        (pa.map_(pa.string(), pa.date32()), "map<string, date>"),
        (pa.struct([pa.field("a b", pa.int32(), nullable=False)]), 'struct<"a b": int not null>'),
    ],
)
def test_an_arrow_type_becomes_the_type_that_loses_nothing(arrow: pa.DataType, name: str) -> None:
    assert type_name(parse_type(arrow)) == name


@pytest.mark.parametrize(
    "arrow",
    [
        pa.duration("s"),
        pa.month_day_nano_interval(),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.struct([]),
        pa.struct([("a", pa.int32()), ("a", pa.int32())]),
        pa.dense_union([pa.field("a", pa.int32())]),
    ],
    ids=str,
)
def test_an_arrow_type_without_a_counterpart_is_refused(arrow: pa.DataType) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_type(arrow)
    assert caught.value.hint


def test_types_of_other_kinds_are_refused_and_iceberg_types_kept() -> None:
    assert parse_type(LongType()) == LongType()
    with pytest.raises(InvalidRequest, match="is not a type"):
        parse_type(int)
