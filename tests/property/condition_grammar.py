"""Random tables of every Iceberg type and random conditions over them, for the property tests."""

# ruff: noqa: DTZ001  columns without a zone hold times without one

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st
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
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

UTC = dt.UTC
TEXTS = [
    *(
        "",
        "a",
        "ab",
        "abc",
        "abd",
        "A",
        "ä",
        "äb",
        "z",
        "zz",
        "%",
        "_",
        "a%",
        "a_c",
        "a\\b",
        "'",
        "\n",
    ),
    *("\U0010ffff", "a\U0010ffff", "\U0001f600", "é", "e\u0301", "ab" * 12, "ab" * 12 + "c"),
    *("\ud7ff\ue000", "\U0010ffff" * 20, "0", "5", "1.5", "2020-01-01", "İ", "ß", " a ", "true"),
]
STAMPS = [
    *(dt.datetime(1970, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
    *(dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1), dt.datetime(1900, 2, 28)),
    *(dt.datetime(2024, 3, 31, 1, 30), dt.datetime(9999, 12, 31, 23, 59, 59), dt.datetime(1, 1, 1)),
]
IDS = [uuid.UUID(int=n) for n in (0, 1, 2**127 - 1, 2**127, 2**128 - 1)]
BLOBS = [b"", b"\x00", b"\x00\x00", b"a", b"ab", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"a" * 20]
INTS = [0, 1, -1, 5, 2**24 + 1, 2**31 - 1, -(2**31)]
LONGS = [*INTS, 2**53 + 1, 2**53, 2**63 - 1, -(2**63)]
DOUBLES = [
    *(0.0, -0.0, 1.0, -1.0, 0.1, 1.5, 5.0, math.nan, math.inf, -math.inf, 1e300, -1e300),
    *(5e-324, 2.0**53, 9007199254740994.0, 16777216.0, 0.10000000149011612),
]
FLOATS = [
    *(0.0, -0.0, 1.0, -1.0, 1.5, math.nan, math.inf, -math.inf, 16777216.0, 3.4028234663852886e38),
    *(0.10000000149011612, 1.401298464324817e-45),
]

# Name, Iceberg type, some values.
COLUMNS: list[tuple[str, object, list[object]]] = [
    ("b", BooleanType(), [True, False]),
    ("i", IntegerType(), list(INTS)),
    ("l", LongType(), list(LONGS)),
    ("f", FloatType(), list(FLOATS)),
    ("d", DoubleType(), list(DOUBLES)),
    ("n", DecimalType(9, 2), [Decimal(x) for x in ("0.00", "-0.01", "1.50", "5.00", "9999999.99")]),
    ("w", DecimalType(38, 10), [Decimal("0E-10"), Decimal("0.1000000000"), Decimal(9 * 10**27)]),
    ("day", DateType(), [x.date() for x in STAMPS]),
    ("clock", TimeType(), [dt.time(), dt.time(10), dt.time(23, 59, 59, 999999)]),
    ("ts", TimestampType(), list(STAMPS)),
    ("tz", TimestamptzType(), [x.replace(tzinfo=UTC) for x in STAMPS]),
    ("s", StringType(), list(TEXTS)),
    ("u", UUIDType(), [x.bytes for x in IDS]),
    ("x", BinaryType(), list(BLOBS)),
    ("k", FixedType(4), [b"\x00" * 4, b"abcd", b"\xff" * 4, b"\x80\x00\x00\x00"]),
    ('sp ace "q" ü', IntegerType(), list(INTS)),
    ("Select", StringType(), list(TEXTS)),
]
INNER: list[tuple[str, object, list[object]]] = [
    ("a", IntegerType(), list(INTS)),
    ("p q", StringType(), list(TEXTS)),
    ("x", DoubleType(), list(DOUBLES)),
]
# Of lists, maps and structs the whole values; a map comes back as its entries.
NESTED: list[tuple[str, IcebergType, list[object]]] = [
    ("li", ListType(111, IntegerType(), element_required=False), [[], [None], [1], [5, None], [0, -1, 5]]),
    ("ld", ListType(112, DoubleType(), element_required=False), [[], [math.nan], [0.0, -0.0], [None, 1.5], [math.inf, math.nan]]),
    ("lt", ListType(113, StringType(), element_required=False), [[], ["a"], ["", None], ["ab", "ä", "a"]]),
    ("ma", MapType(114, StringType(), 115, IntegerType(), value_required=False), [[], [("a", 1)], [("a", None), ("ä", 5)]]),
    (
        "ls",
        ListType(116, StructType(NestedField(117, "a", IntegerType(), required=False), NestedField(118, "x", DoubleType(), required=False)), element_required=False),
        [[], [None], [{"a": 1, "x": math.nan}], [{"a": None, "x": 1.5}, {"a": 5, "x": None}]],
    ),
]  # fmt: skip

SCHEMA = Schema(
    NestedField(1, "rid", LongType(), required=True),
    *(
        NestedField(2 + n, name, kind, required=False)  # type: ignore[arg-type]
        for n, (name, kind, _) in enumerate(COLUMNS)
    ),
    NestedField(
        100,
        "st",
        StructType(
            NestedField(101, "a", IntegerType(), required=False),
            NestedField(102, "p q", StringType(), required=False),
            NestedField(103, "must", IntegerType(), required=True),
            NestedField(104, "x", DoubleType(), required=False),
        ),
        required=False,
    ),
    *(NestedField(120 + n, name, kind, required=False) for n, (name, kind, _) in enumerate(NESTED)),
)


def _row() -> st.SearchStrategy[dict[str, object]]:
    fields: dict[str, st.SearchStrategy[object]] = {
        name: st.one_of(st.none(), st.sampled_from(values))
        for name, _, values in (*COLUMNS, *NESTED)
    }
    inner = {name: st.one_of(st.none(), st.sampled_from(values)) for name, _, values in INNER}
    fields["st"] = st.one_of(
        st.none(), st.fixed_dictionaries({**inner, "must": st.sampled_from([0, 1, 7])})
    )
    return st.fixed_dictionaries(fields)


def files() -> st.SearchStrategy[list[list[dict[str, object]]]]:
    """The rows of some small files: small, so that their bounds are narrow."""
    return st.lists(st.lists(_row(), min_size=1, max_size=3), min_size=2, max_size=5)


def arrow_tables(rows: list[list[dict[str, object]]], schema: pa.Schema) -> list[pa.Table]:
    """One Arrow table for each file, with a number for every row."""
    number = 0
    tables = []
    for part in rows:
        numbered = []
        for row in part:
            numbered.append({"rid": number, **row})
            number += 1
        tables.append(pa.Table.from_pylist(numbered, schema=schema))
    return tables


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def name_of(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


NUMBER_TEXTS = [
    *("0", "1", "-1", "5", "2147483647", "2147483648", "-2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "1.5", "0.1"),
    *("-0.01", "1.005", "9999999.99", "1e0", "1e300", "-1e300", "'nan'::DOUBLE", "'5'"),
    *("'inf'::DOUBLE", "'-inf'::FLOAT", "0.1::FLOAT", "0.1::DOUBLE", "(-0.0)::DOUBLE"),
    *("16777217::FLOAT", "16777217", "9007199254740993", "9007199254740992::DOUBLE"),
    *("5::DECIMAL(38,10)", "'1.5'", "NULL", "5e-324", "2 + 3", "123456789012345678901234"),
    *("'nan'::FLOAT", "3.4028235e38", "-3.5e38", "abs(-5)", "'5'::DECIMAL(5,3)"),
]
NUMBERS = st.one_of(st.sampled_from(NUMBER_TEXTS), st.integers(-10, 10).map(str))
STAMP_TEXTS = [
    *("'1970-01-01'", "'1969-12-31 23:59:59.999999'", "DATE '2020-01-01'", "'2020-01-01 00:00:00'"),
    *("TIMESTAMP '2020-01-01 00:00:00.000001'", "TIMESTAMPTZ '2020-01-01 02:00:00+02'"),
    *("TIMESTAMP_NS '2020-01-01 00:00:00.000000001'", "DATE '1900-02-28'", "NULL"),
    *("'9999-12-31 23:59:59'::TIMESTAMP", "'0001-01-01'::DATE", "TIMESTAMP '2020-01-01 12:00:00'"),
    *("DATE '2020-01-01' + INTERVAL 1 DAY", "'infinity'::DATE", "make_date(2020, 1, 1)"),
    *("TIMESTAMPTZ '2024-03-31 03:30:00 Europe/Berlin'", "TIMESTAMP '1969-12-31 23:59:59'"),
]
CLOCKS = ["TIME '10:00:00'", "'23:59:59.999999'", "'00:00'", "NULL"]
_KINDS: dict[str, st.SearchStrategy[str]] = {
    "number": NUMBERS,
    "stamp": st.sampled_from(STAMP_TEXTS),
    "clock": st.sampled_from(CLOCKS),
    "text": st.one_of(st.sampled_from([*map(quoted, TEXTS), "NULL"])),
    "id": st.sampled_from([*(quoted(str(x)) for x in IDS), "NULL"]),
    "blob": st.sampled_from(["''::BLOB", *(quoted("".join(f"\\x{b:02X}" for b in x)) + "::BLOB" for x in BLOBS if x), "'abcd'::BLOB"]),
    "bool": st.sampled_from(["TRUE", "FALSE", "NULL", "'true'"]),
}  # fmt: skip
_OF: dict[type, str] = {
    BooleanType: "bool", IntegerType: "number", LongType: "number", FloatType: "number",
    DoubleType: "number", DecimalType: "number", DateType: "stamp", TimestampType: "stamp",
    TimestamptzType: "stamp", TimeType: "clock", StringType: "text", UUIDType: "id",
    BinaryType: "blob", FixedType: "blob",
}  # fmt: skip
REFERENCES: list[tuple[str, str]] = [
    *((name_of(name), _OF[type(kind)]) for name, kind, _ in COLUMNS),
    *((f"st.{name_of(name)}", _OF[type(kind)]) for name, kind, _ in INNER),
    ("st.must", "number"),
    ("rid", "number"),
]
# What is in lists, maps and structs.
ELEMENTS: list[tuple[str, str]] = [
    *(("li[1]", "number"), ("li[-1]", "number"), ("ld[1]", "number"), ("lt[2]", "text")),
    *(("ma['a']", "number"), ("struct_extract(st, 'x')", "number"), ("st['p q']", "text")),
    *(("list_extract(ld, 2)", "number"), ("struct_extract(ls[1], 'x')", "number")),
    *(("len(li)", "number"), ("cardinality(ma)", "number"), ("list_unique(li)", "number")),
]
# Whole values, and others of the same type.
WHOLES: list[tuple[str, list[str]]] = [
    ("li", ["li", "[]", "[1]", "[5, NULL]", "li[1:1]", "map_values(ma)", "NULL"]),
    ("ld", ["ld", "['nan'::DOUBLE]", "[0.0::DOUBLE, 0]", "[1]", "ld[2:3]", "NULL"]),
    ("lt", ["lt", "['a']", "['', NULL]", "map_keys(ma)", "NULL"]),
    *((name, [name, "NULL"]) for name in ("ma", "ls", "st")),
]
TESTS = [
    *("list_contains(li, 5)", "list_contains(ld, 'nan'::DOUBLE)", "list_has_any(lt, ['a', 'z'])"),
    *("list_has_all(li, [0, 5])", "map_contains(ma, 'a')", "array_contains(map_keys(ma), 'ä')"),
]
OPERATORS = ["=", "<>", "!=", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
PATTERNS = ["a%", "ab%", "%", "", "a", "_", "a_%", "%b", "ä%", "ab" * 10 + "%", "a\\%", "A%", "\U0010ffff%", "é%", "a!%"]  # fmt: skip


@st.composite
def whole_atoms(draw: st.DrawFn) -> str:
    """Of lists, maps and structs themselves."""
    name, others = draw(st.sampled_from(WHOLES))
    return draw(st.sampled_from([_null, _compare, _in]))(draw, name, st.sampled_from(others))


@st.composite
def atoms(draw: st.DrawFn) -> str:
    name, kind = draw(st.sampled_from([*REFERENCES, *ELEMENTS]))
    literal = _KINDS[kind]
    shapes = [_compare, _flipped, _between, _in, _null, _cast]
    if kind == "text":
        shapes += [_like, _starts, _length]
    if kind == "bool":
        shapes += [_bare]
    if kind == "number":
        shapes += [_plus]
    same = [other for other, of in REFERENCES if of == kind]
    shape = draw(st.sampled_from([*shapes, _columns]))
    if shape is _columns:
        return _columns(draw, name, st.sampled_from(same))
    return shape(draw, name, literal)


def _compare(draw: st.DrawFn, name: str, literal: st.SearchStrategy[str]) -> str:
    return f"{name} {draw(st.sampled_from(OPERATORS))} {draw(literal)}"


def _flipped(draw: st.DrawFn, name: str, literal: st.SearchStrategy[str]) -> str:
    return f"{draw(literal)} {draw(st.sampled_from(OPERATORS))} {name}"


def _columns(draw: st.DrawFn, name: str, other: st.SearchStrategy[str]) -> str:
    return f"{name} {draw(st.sampled_from(OPERATORS))} {draw(other)}"


def _between(draw: st.DrawFn, name: str, literal: st.SearchStrategy[str]) -> str:
    return (
        f"{name} {draw(st.sampled_from(['', 'NOT ']))}BETWEEN {draw(literal)} AND {draw(literal)}"
    )


def _in(draw: st.DrawFn, name: str, literal: st.SearchStrategy[str]) -> str:
    listed = ", ".join(draw(st.lists(literal, min_size=1, max_size=4)))
    return f"{name} {draw(st.sampled_from(['', 'NOT ']))}IN ({listed})"


def _null(draw: st.DrawFn, name: str, _: st.SearchStrategy[str]) -> str:
    return f"{name} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"


def _bare(draw: st.DrawFn, name: str, _: st.SearchStrategy[str]) -> str:
    return f"{name}{draw(st.sampled_from(['', ' IS TRUE', ' IS NOT FALSE', ' IS NOT TRUE']))}"


def _cast(draw: st.DrawFn, name: str, literal: st.SearchStrategy[str]) -> str:
    kind = draw(
        st.sampled_from(["BIGINT", "DOUBLE", "VARCHAR", "TIMESTAMP", "DATE", "DECIMAL(20,3)"])
    )
    return f"TRY_CAST({name} AS {kind}) {draw(st.sampled_from(OPERATORS))} {draw(literal)}"


def _plus(draw: st.DrawFn, name: str, literal: st.SearchStrategy[str]) -> str:
    sign = draw(st.sampled_from(["+", "-", "*", "/", "%", "//"]))
    return f"{name} {sign} {draw(st.integers(0, 3))} {draw(st.sampled_from(OPERATORS))} {draw(literal)}"


def _like(draw: st.DrawFn, name: str, _: st.SearchStrategy[str]) -> str:
    word = draw(st.sampled_from(["LIKE", "NOT LIKE", "ILIKE"]))
    escape = draw(st.sampled_from(["", "", " ESCAPE '!'"]))
    pattern = draw(st.sampled_from(PATTERNS))
    return f"{name} {word} {quoted(pattern)}{escape}"


def _starts(draw: st.DrawFn, name: str, literal: st.SearchStrategy[str]) -> str:
    return f"{draw(st.sampled_from(['starts_with', 'prefix', 'suffix', 'contains']))}({name}, {draw(literal)})"


def _length(draw: st.DrawFn, name: str, _: st.SearchStrategy[str]) -> str:
    return f"length({name}) > {draw(st.integers(0, 3))}"


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    joined = st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(
        lambda t: f"({t[0]}) {t[1]} ({t[2]})"
    )
    tests = ["IS NULL", "IS NOT NULL", "IS TRUE", "IS NOT TRUE", "IS FALSE", "= TRUE"]
    return st.one_of(
        joined,
        joined,
        inner.map(lambda text: f"NOT ({text})"),
        st.tuples(inner, st.sampled_from(tests)).map(lambda t: f"({t[0]}) {t[1]}"),
        st.tuples(inner, inner, inner).map(lambda t: f"CASE WHEN {t[0]} THEN {t[1]} ELSE {t[2]} END"),
        st.tuples(inner, inner).map(lambda t: f"coalesce({t[0]}, {t[1]})"),
    )  # fmt: skip


def conditions() -> st.SearchStrategy[str]:
    leaves = st.one_of(*[atoms()] * 4, whole_atoms(), st.sampled_from(TESTS))
    return st.recursive(leaves, _nested, max_leaves=4)
