"""Conditions as PyIceberg knows them, so that files which cannot hold a wanted row are not read.

`to_iceberg` gives an expression that is true for every row for which the condition is true. It may
be true for others too: rows are chosen by DuckDB, this only spares it files. Where Iceberg's
bounds and DuckDB's comparisons differ, as for NaN, the expression is as wide as it must be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    IsNaN,
    LessThanOrEqual,
    NotEqualTo,
    NotNull,
    Or,
)
from pyiceberg.expressions import IsNull as IcebergIsNull
from pyiceberg.expressions import StartsWith as IcebergStartsWith
from pyiceberg.expressions.literals import (
    BinaryLiteral,
    BooleanLiteral,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FixedLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimeLiteral,
    TimestampLiteral,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from calve.condition import (
    AllOf,
    AnyOf,
    Compare,
    Condition,
    Fact,
    IsNotNull,
    IsNull,
    Nothing,
    OneOf,
    StartsWith,
)

_INTEGERS: Final = frozenset(
    {
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
    }
)
_STAMPS: Final = {"TIMESTAMP": 1, "TIMESTAMP WITH TIME ZONE": 1, "TIMESTAMP_NS": 1000}
_DAY_US: Final = 86_400_000_000
# PyIceberg's partitions by year and month go through Python's dates: the years 1 to 9999 without
# the first and last of their days.
_DAYS: Final = (-719_161, 2_932_895)
# Below these every whole number is itself as a float and as a double.
_WHOLE_MAX: Final = {"FLOAT": 2**24, "DOUBLE": 2**53}
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
# PyIceberg does not look at the bounds for longer lists.
_LIST_MAX: Final = 200
_TESTS: Final = {"=": EqualTo, "<>": NotEqualTo, "<=": LessThanOrEqual, ">=": GreaterThanOrEqual}
_FLOAT_MAX: Final = (2.0 - 2.0**-23) * 2.0**127


def to_iceberg(condition: Condition, schema: Schema) -> BooleanExpression:
    """A PyIceberg expression that no row escapes for which the condition is true."""
    return fact_to_iceberg(condition.facts(), schema)


def fact_to_iceberg(fact: Fact, schema: Schema) -> BooleanExpression:
    """A PyIceberg expression that no row escapes for which the fact holds."""
    return _expression(fact, schema)


def _expression(fact: Fact, schema: Schema) -> BooleanExpression:
    match fact:
        case Nothing():
            return AlwaysFalse()
        case AllOf(parts):
            return _joined(And, [_expression(part, schema) for part in parts])
        case AnyOf(parts):
            return _joined(Or, [_expression(part, schema) for part in parts])
        case IsNull(path) | IsNotNull(path) | StartsWith(path) | Compare(path) | OneOf(path):
            column = _column(path, schema)
            return AlwaysTrue() if column is None else _predicate(fact, column)
    return AlwaysTrue()


def _joined(join: type[And | Or], parts: list[BooleanExpression]) -> BooleanExpression:
    # Halves instead of a chain: PyIceberg walks expressions recursively.
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_joined(join, parts[:middle]), _joined(join, parts[middle:]))


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: PrimitiveType
    may_be_null: bool
    is_required: bool

    def test(self, operator: str, literal: Literal[Any]) -> BooleanExpression:
        return _made(_TESTS[operator], self.name, literal)

    def is_null(self) -> BooleanExpression:
        return _made(IcebergIsNull, self.name)

    def not_null(self) -> BooleanExpression:
        return _made(NotNull, self.name)

    def is_nan(self) -> BooleanExpression:
        return _made(IsNaN, self.name)


def _made(predicate: Any, *arguments: object) -> BooleanExpression:
    # PyIceberg's predicates are models to the type checker, which does not see their constructors.
    made: BooleanExpression = predicate(*arguments)
    return made


def _column(path: tuple[str, ...], schema: Schema) -> _Column | None:
    """The column or field, if PyIceberg would find the same one under its dotted name."""
    fields = {field.name: field for field in schema.fields}
    found: list[NestedField] = []
    for name in path:
        if name not in fields:
            return None
        found.append(fields[name])
        kind = found[-1].field_type
        fields = {f.name: f for f in kind.fields} if isinstance(kind, StructType) else {}
    dotted = ".".join(path)
    last = found[-1]
    if not isinstance(last.field_type, PrimitiveType):
        return None
    if schema.find_field(dotted).field_id != last.field_id:
        return None
    return _Column(
        name=dotted,
        type=last.field_type,
        may_be_null=not all(field.required for field in found),
        is_required=last.required,
    )


def _predicate(fact: Fact, column: _Column) -> BooleanExpression:
    match fact:
        case IsNull():
            # PyIceberg takes a required field of a missing struct for never null.
            lost = column.is_required and column.may_be_null
            return AlwaysTrue() if lost else column.is_null()
        case StartsWith(_, prefix) if isinstance(column.type, StringType):
            return _made(IcebergStartsWith, column.name, StringLiteral(prefix))
        case Compare(_, operator, value, kind):
            return _compared(column, operator, value, kind)
        case OneOf(_, values, kind):
            return _one_of(column, [_compared(column, "=", value, kind) for value in values])
    return column.not_null()


def _one_of(column: _Column, parts: list[BooleanExpression]) -> BooleanExpression:
    """One list instead of many equalities, with its range where it is too long for PyIceberg."""
    possible = [part for part in parts if part != AlwaysFalse()]
    literals = [part.literal for part in possible if isinstance(part, EqualTo)]
    if not possible or len(literals) != len(possible):
        return _joined(Or, possible) if possible else AlwaysFalse()
    listed = _made(In, column.name, set(literals))
    if len(literals) <= _LIST_MAX:
        return listed
    least = min(literals, key=lambda literal: literal.value)
    most = max(literals, key=lambda literal: literal.value)
    return And(listed, column.test(">=", least), column.test("<=", most))


def _compared(column: _Column, operator: str, value: Any, kind: str) -> BooleanExpression:
    match column.type:
        case FloatType() | DoubleType():
            return _floating(column, operator, value, kind)
        case StringType() if kind == "VARCHAR":
            return _ordered(column, operator, StringLiteral(value))
        case BinaryType() if kind == "BLOB":
            return _ordered(column, operator, BinaryLiteral(value))
        case FixedType() if kind == "BLOB" and len(value) == len(column.type):
            return _ordered(column, operator, FixedLiteral(value))
        case BooleanType() if kind == "BOOLEAN" and operator == "=":
            return column.test("=", BooleanLiteral(value))
    grid = _grid(column.type, kind, value)
    return column.not_null() if grid is None else _counted(column, operator, grid)


def _ordered(column: _Column, operator: str, literal: Literal[Any]) -> BooleanExpression:
    # The bounds of texts may be cut short: below says no more than below or equal.
    return column.test({"<": "<=", ">": ">="}.get(operator, operator), literal)


def _floating(column: _Column, operator: str, value: Any, kind: str) -> BooleanExpression:
    """DuckDB: NaN is above infinity and equals itself. Iceberg: bounds say nothing of NaN."""
    if kind not in _WHOLE_MAX:
        return column.not_null()
    if math.isnan(value):
        is_nan = {"=": column.is_nan(), ">=": column.is_nan(), ">": AlwaysFalse()}
        return is_nan.get(operator, column.not_null())
    low, high = _neighbours(column.type, value + 0.0, kind)
    match operator:
        case "=" if low.value == high.value:
            return column.test("=", low)
        case "=":
            return And(column.test(">=", low), column.test("<=", high))
        case "<" | "<=":
            return column.test("<=", high)
        case ">" | ">=":
            return Or(column.test(">=", low), column.is_nan())
    return column.not_null()


def _neighbours(
    kind: PrimitiveType, value: float, compared_as: str
) -> tuple[Literal[float], Literal[float]]:
    """The value as literals of the column's type, rounded down and up where it is between."""
    if isinstance(kind, DoubleType):
        return DoubleLiteral(value), DoubleLiteral(value)
    if compared_as == "FLOAT" or math.isinf(value):
        return FloatLiteral(value), FloatLiteral(value)
    # Two steps of a float to each side: wider than needed, and without regard to rounding.
    margin = abs(value) * 2.0**-22 + 2.0**-148
    return FloatLiteral(_floor_float(value - margin)), FloatLiteral(_ceil_float(value + margin))


def _floor_float(value: float) -> float:
    """A bound below: what is above all floats but infinity becomes the largest of them."""
    return -math.inf if value < -_FLOAT_MAX else min(value, _FLOAT_MAX)


def _ceil_float(value: float) -> float:
    return math.inf if value > _FLOAT_MAX else max(value, -_FLOAT_MAX)


@dataclass(frozen=True, slots=True)
class _Grid:
    """A constant measured in a column's smallest steps, and what the column can hold."""

    value: Fraction
    least: int
    most: int
    literal: Callable[[int], Literal[Any]]
    # Whether a column can hold nothing beyond least and most.
    is_whole: bool = True


def _grid(column: PrimitiveType, kind: str, value: Any) -> _Grid | None:
    """None where DuckDB does not compare the exact values."""
    match column:
        case IntegerType():
            return _whole(31, kind, value)
        case LongType():
            return _whole(63, kind, value)
        case DecimalType():
            return _decimal(column, kind, value)
        case DateType() if kind == "DATE":
            return _Grid(Fraction(value), *_DAYS, DateLiteral, is_whole=False)
        case DateType() if kind in _STAMPS:
            days = Fraction(value, _STAMPS[kind] * _DAY_US)
            return _Grid(days, *_DAYS, DateLiteral, is_whole=False)
        case TimeType() if kind == "TIME":
            return _Grid(Fraction(value), 0, _DAY_US, TimeLiteral)
        case TimestampType() | TimestamptzType() if kind in _STAMPS:
            stamp = Fraction(value, _STAMPS[kind])
            least, most = (days * _DAY_US for days in _DAYS)
            return _Grid(stamp, least, most, TimestampLiteral, is_whole=False)
    return None


def _whole(bits: int, kind: str, value: Any) -> _Grid | None:
    if kind in _WHOLE_MAX and not abs(value) < _WHOLE_MAX[kind]:
        return None
    if kind in _INTEGERS or kind in _WHOLE_MAX or _DECIMAL.fullmatch(kind):
        return _Grid(Fraction(value), -(2**bits), 2**bits - 1, LongLiteral)
    return None


def _decimal(column: DecimalType, kind: str, value: Any) -> _Grid | None:
    if kind in _INTEGERS:
        width, scale = 39, 0
    elif found := _DECIMAL.fullmatch(kind):
        width, scale = int(found[1]), int(found[2])
    else:
        return None
    if scale < column.scale or width - scale < column.precision - column.scale:
        return None
    most = 10**column.precision - 1

    def literal(steps: int) -> Literal[Any]:
        digits = tuple(map(int, str(abs(steps))))
        return DecimalLiteral(Decimal((int(steps < 0), digits, -column.scale)))

    return _Grid(Fraction(value) * 10**column.scale, -most, most, literal)


def _counted(column: _Column, operator: str, grid: _Grid) -> BooleanExpression:
    below, above = math.floor(grid.value), math.ceil(grid.value)
    match operator:
        case "<":
            return _at_most(column, above - 1, grid)
        case "<=":
            return _at_most(column, below, grid)
        case ">":
            return _at_least(column, below + 1, grid)
        case ">=":
            return _at_least(column, above, grid)
    is_inside = grid.least <= below and above <= grid.most
    if not is_inside and not grid.is_whole:
        return column.not_null()
    is_possible = is_inside and below == above
    if operator == "=":
        return column.test("=", grid.literal(below)) if is_possible else AlwaysFalse()
    return column.test("<>", grid.literal(below)) if is_possible else column.not_null()


def _at_most(column: _Column, steps: int, grid: _Grid) -> BooleanExpression:
    if steps >= grid.most:
        return column.not_null()
    if steps < grid.least and grid.is_whole:
        return AlwaysFalse()
    return column.test("<=", grid.literal(max(steps, grid.least)))


def _at_least(column: _Column, steps: int, grid: _Grid) -> BooleanExpression:
    if steps <= grid.least:
        return column.not_null()
    if steps > grid.most and grid.is_whole:
        return AlwaysFalse()
    return column.test(">=", grid.literal(min(steps, grid.most)))
