"""Columns, rows and conditions for tables: every type, and the values on which engines differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tests.property.table_model import (
    Both,
    Column,
    Columns,
    Comparison,
    Condition,
    Either,
    In,
    IsNull,
    Kind,
    ListOf,
    MapOf,
    Not,
    Ref,
    Row,
    StartsWith,
    StructOf,
    order_key,
    walk,
)

COLUMN_NAMES = ["a", "b", "c", "Größe", "order", "x y", 'q"uote', "日本"]
FIELD_NAMES = ["f", "g", "h", "ü", "select"]

DECIMALS = [Decimal(text) for text in ("0.00", "1.00", "-1.50", "9999999.99", "-9999999.99")]
ZONED = [
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
]
STAMPS = [stamp.replace(tzinfo=None) for stamp in ZONED]
VALUES: dict[str, list[Any]] = {
    "boolean": [False, True],
    "int": [0, 1, -1, 7, 2**31 - 1, -(2**31)],
    "long": [0, 1, -1, 7, 2**31, 2**63 - 1, -(2**63)],
    "float": [0.0, -0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, 2.0**-149, 2.0**127],
    "double": [0.0, -0.0, 1.5, 0.1, math.nan, math.inf, -math.inf, 5e-324, 1.7e308],
    "decimal(9,2)": DECIMALS,
    "decimal(18,2)": [*DECIMALS, Decimal("9999999999999999.99")],
    "decimal(38,2)": [*DECIMALS, Decimal("-" + "9" * 36 + ".99")],
    "date": [stamp.date() for stamp in STAMPS] + [date(2024, 2, 28)],
    "time": [time(0), time(12, 30), time(23, 59, 59, 999999)],
    "timestamp": STAMPS,
    "timestamptz": ZONED,
    "string": ["", "a", "ab", "b", "é", "e\u0301", "日本", "😀", "a'b", "a%_", "a" * 20, "\uffff" * 17],
    "uuid": [UUID(int=0), UUID(int=1), UUID(int=2**127), UUID(int=2**128 - 1)],
    "binary": [b"", b"\x00", b"a", b"\xff", b"\xff" * 20, b"a" * 20],
    "fixed[4]": [b"\x00\x00\x00\x00", b"abcd", b"\xff\xff\xff\xff"],
}  # fmt: skip
TRANSFORMS: dict[str, list[str]] = {
    "boolean": ["identity"],
    "int": ["identity", "bucket[3]", "truncate[5]"],
    "long": ["identity", "bucket[3]", "truncate[5]"],
    "float": ["identity"],
    "double": ["identity"],
    "decimal(9,2)": ["identity", "bucket[3]", "truncate[3]"],
    "decimal(18,2)": ["identity", "bucket[3]", "truncate[3]"],
    "decimal(38,2)": ["identity", "bucket[3]", "truncate[3]"],
    "date": ["identity", "year", "month", "day", "bucket[3]"],
    "time": ["identity"],
    "timestamp": ["identity", "year", "month", "day", "hour", "bucket[3]"],
    "timestamptz": ["identity", "year", "month", "day", "hour", "bucket[3]"],
    "string": ["identity", "bucket[3]", "truncate[1]"],
    "uuid": ["bucket[3]"],
    "binary": ["identity", "bucket[3]"],
    "fixed[4]": ["bucket[3]"],
}
OPERATORS = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]


class Columnist:
    """Draws columns, each with an id of its own."""

    def __init__(self, plain: Sequence[str]) -> None:
        self._plain = plain
        self._ids = count(1)

    def column(
        self, draw: st.DataObject, name: str, *, depth: int = 2, optional: bool = False
    ) -> Column:
        number = next(self._ids)
        kind = self._kind(draw, depth)
        required = not optional and draw.draw(st.integers(0, 3), "required") == 0
        return Column(number, name, kind, required)

    def _kind(self, draw: st.DataObject, depth: int) -> Kind:
        nested = draw.draw(st.integers(0, 11), "nesting") if depth else 9
        if nested == 0:
            return ListOf(self.column(draw, "element", depth=depth - 1))
        if nested == 1:
            key = Column(next(self._ids), "key", self._key(draw), required=True)
            return MapOf(key, self.column(draw, "value", depth=depth - 1))
        if nested in {2, 3}:
            names = draw.draw(
                st.lists(st.sampled_from(FIELD_NAMES), min_size=1, max_size=3, unique=True)
            )
            return StructOf(tuple(self.column(draw, name, depth=depth - 1) for name in names))
        return draw.draw(st.sampled_from(self._plain), "type")

    def _key(self, draw: st.DataObject) -> str:
        # NaN and -0.0 as keys of one map are nobody's business.
        allowed = [kind for kind in self._plain if kind not in {"float", "double"}]
        return draw.draw(st.sampled_from(allowed), "key type")


def values(kind: Kind, *, required: bool) -> st.SearchStrategy[Any]:
    some = _present(kind)
    return some if required else st.one_of(st.none(), some, some)


def _present(kind: Kind) -> st.SearchStrategy[Any]:
    match kind:
        case StructOf():
            return st.fixed_dictionaries(
                {each.id: values(each.type, required=each.required) for each in kind.fields}
            )
        case ListOf():
            element = kind.element
            return st.lists(values(element.type, required=element.required), max_size=2)
        case MapOf():
            pairs = st.tuples(
                _present(kind.key.type), values(kind.value.type, required=kind.value.required)
            )
            return st.lists(pairs, max_size=2, unique_by=lambda pair: order_key(pair[0]))
    return st.sampled_from(VALUES[kind])


def rows(columns: Columns, *, present: Sequence[int] = ()) -> st.SearchStrategy[Row]:
    """A row; columns whose ids are named have a value."""
    return st.fixed_dictionaries(
        {
            each.id: values(each.type, required=each.required or each.id in present)
            for each in columns
        }
    )


def references(columns: Columns) -> list[Ref]:
    """The plain columns that a condition may name, those in structs too."""
    return [
        Ref(path)
        for path in walk(columns)
        if isinstance(path[-1].type, str)
        and all(isinstance(parent.type, StructOf) for parent in path[:-1])
    ]


@st.composite
def conditions(draw: st.DrawFn, columns: Columns, depth: int = 2) -> Condition:
    if depth and draw(st.integers(0, 2)) == 0:
        below = conditions(columns, depth - 1)
        left, right = draw(below), draw(below)
        return Both(left, right) if draw(st.booleans()) else Either(left, right)
    if depth and draw(st.integers(0, 3)) == 0:
        return Not(draw(conditions(columns, depth - 1)))
    ref = draw(st.sampled_from(references(columns)))
    known = st.sampled_from(VALUES[ref.kind])
    form = draw(st.integers(0, 7))
    if form == 0:
        return IsNull(ref)
    if form == 1:
        return In(ref, tuple(draw(st.lists(st.one_of(known, st.none()), min_size=1, max_size=3))))
    if form == 2 and ref.kind == "string":
        return StartsWith(ref, draw(known))
    operator = draw(st.sampled_from(OPERATORS))
    return Comparison(ref, operator, draw(known))


def partition_expression(name: str, transform: str) -> str:
    word, _, number = transform.rstrip("]").partition("[")
    if word == "identity":
        return f'"{name.replace(chr(34), chr(34) * 2)}"'
    return f"{word}({number}, {name})" if number else f"{word}({name})"
