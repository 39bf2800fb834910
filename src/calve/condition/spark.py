"""Writes a condition for Spark SQL, where Spark decides every row as DuckDB does, or refuses.

Spark's own conversions between types differ from DuckDB's, so none is left to it: constants are
worked out by DuckDB and written as values of the type of the comparison, and a column that DuckDB
would convert is converted in the open. What is not known to agree is refused, never guessed:
letter case, rounding, division by what may be zero, and most functions.

Holds for Spark 4 in ANSI mode, its default, with the session's time zone in UTC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from calve.condition.binding import NotConstant, common_type, constants, types_of
from calve.condition.columns import Column
from calve.condition.grammar import shown
from calve.condition.outline import chain, is_constant
from calve.condition.text import duckdb_text, sql
from calve.errors import InvalidRequest

_HINT: Final = 'leave out engine="spark", or write this part with plain comparisons'
_INTEGERS: Final = frozenset({"INTEGER", "BIGINT"})
_FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
_PLAIN: Final = frozenset({"BOOLEAN", "VARCHAR", "BLOB", "DATE", *_INTEGERS, *_FLOATS})
_STAMPS: Final = {"TIMESTAMP": "TIMESTAMP_NTZ", "TIMESTAMP WITH TIME ZONE": "TIMESTAMP"}
_NAMES: Final = {"INTEGER": "INT", "VARCHAR": "STRING", "BLOB": "BINARY", **_STAMPS}
# From a type to those it can be converted to with the same result in both.
_WIDER: Final = {
    "INTEGER": {"BIGINT", "DOUBLE", "FLOAT", "VARCHAR"},
    "BIGINT": {"DOUBLE", "FLOAT", "VARCHAR"},
    "FLOAT": {"DOUBLE"},
    "DATE": {"TIMESTAMP", "TIMESTAMP WITH TIME ZONE"},
    "TIMESTAMP": {"TIMESTAMP WITH TIME ZONE"},
    "TIMESTAMP WITH TIME ZONE": {"TIMESTAMP"},
}
_SAME: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_CALLS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "length": ("char_length", ("VARCHAR",)),
    "char_length": ("char_length", ("VARCHAR",)),
    "character_length": ("char_length", ("VARCHAR",)),
    "strlen": ("octet_length", ("VARCHAR",)),
    "starts_with": ("startswith", ("VARCHAR", "VARCHAR")),
    "prefix": ("startswith", ("VARCHAR", "VARCHAR")),
    "ends_with": ("endswith", ("VARCHAR", "VARCHAR")),
    "suffix": ("endswith", ("VARCHAR", "VARCHAR")),
    "contains": ("contains", ("VARCHAR", "VARCHAR")),
    "isnan": ("isnan", ("DOUBLE",)),
}
_PARTS: Final = frozenset({"year", "month", "day", "hour", "minute"})


def spark_text(tree: exp.Expr, columns: Sequence[Column]) -> str:
    """The text for Spark, in brackets."""
    return sql(exp.Paren(this=_Spark(columns).boolean(tree)), "spark")


def spark_value_text(tree: exp.Expr, kind: str, columns: Sequence[Column]) -> str:
    """The text for Spark of a value, as one of a type of DuckDB."""
    value = _Spark(columns)._converted(tree, kind)  # noqa: SLF001
    return sql(exp.Paren(this=value), "spark")


def _refused(node: exp.Expr, why: str) -> InvalidRequest:
    return InvalidRequest(f"Spark cannot decide {shown(node)!r} as DuckDB does: {why}", hint=_HINT)


class _Spark:
    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns

    def boolean(self, node: exp.Expr) -> exp.Expr:
        """The same truth value in Spark."""
        match node:
            case exp.And() | exp.Or():
                return self._chain(node)
            case exp.Not():
                return exp.Not(this=self.boolean(node.this))
            case exp.Boolean() | exp.Null():
                return node.copy()
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                return self._null_safe(node)
            case exp.Is():
                return self._is(node)
        writer = _BOOLEANS.get(type(node))
        if writer is not None:
            return writer(self, node)
        if self.type_of(node) != "BOOLEAN":
            raise _refused(node, "it is no truth value by itself")
        return self.value(node)

    def _chain(self, node: exp.Expr) -> exp.Expr:
        links = [self.boolean(link) for link in chain(node)]
        joined = links[0]
        for link in links[1:]:
            joined = type(node)(this=joined, expression=link)
        return joined

    def _is(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node.expression, exp.Null):
            inner = self.anything(node.this)
        else:
            inner = self.boolean(node.this)
        return exp.Is(this=inner, expression=node.expression.copy())

    def _compare(self, node: exp.Expr) -> exp.Expr:
        left, right = self._sides(node, [node.this, node.args["expression"]])
        return type(node)(this=left, expression=right)

    def _null_safe(self, node: exp.Expr) -> exp.Expr:
        left, right = self._sides(node, [node.this, node.args["expression"]])
        same = exp.NullSafeEQ(this=left, expression=right)
        return same if isinstance(node, exp.NullSafeEQ) else exp.Not(this=same)

    def _between(self, node: exp.Expr) -> exp.Expr:
        value, low, high = self._sides(node, [node.this, node.args["low"], node.args["high"]])
        return exp.And(
            this=exp.GTE(this=value, expression=low),
            expression=exp.LTE(this=value.copy(), expression=high),
        )

    def _in(self, node: exp.Expr) -> exp.Expr:
        value, *listed = self._sides(node, [node.this, *node.expressions])
        if self.type_of(node.this) not in _FLOATS and all(map(is_constant, node.expressions)):
            return exp.In(this=value, expressions=listed)
        # A list of many is a hash table in Spark, to which 0.0 and -0.0 are different.
        if len(listed) > 100:
            raise _refused(node, "the list is too long")
        tests: list[exp.Expr] = [exp.EQ(this=value.copy(), expression=item) for item in listed]
        joined = tests[0]
        for test in tests[1:]:
            joined = exp.Or(this=joined, expression=test)
        return joined

    def _like(self, node: exp.Expr) -> exp.Expr:
        """Spark always has an escape, DuckDB only where one is given: the pattern is rewritten."""
        escape = node.expression.name if isinstance(node, exp.Escape) else ""
        like = node.this if isinstance(node, exp.Escape) else node
        if isinstance(like, exp.ILike):
            raise _refused(node, "they know different pairs of small and capital letters")
        pattern = like.args["expression"]
        if not (isinstance(pattern, exp.Literal) and pattern.is_string and len(escape) <= 1):
            raise _refused(node, "the pattern is not a plain text")
        if self.type_of(like.this) != "VARCHAR":
            raise _refused(node, "it is not text")
        text = exp.Literal.string(_spark_pattern(node, pattern.name, escape))
        return exp.Like(this=self.value(like.this), expression=text)

    def _case(self, node: exp.Expr) -> exp.Expr:
        arms = node.args.get("ifs") or [node]
        results = [arm.args["true"] for arm in arms]
        default = node.args.get("default") or node.args.get("false")
        if node.args.get("this") is not None and isinstance(node, exp.Case):
            raise _refused(node, "write CASE WHEN x = 1 instead of CASE x WHEN 1")
        values = self._sides(node, [*results, *([default] if default else [])])
        written = [
            exp.If(this=self.boolean(arm.this), true=value)
            for arm, value in zip(arms, values, strict=False)
        ]
        return exp.Case(ifs=written, default=values[-1] if default else None)

    def type_of(self, node: exp.Expr) -> str:
        return types_of([duckdb_text(node)], self._columns)[0]

    def anything(self, node: exp.Expr) -> exp.Expr:
        """For IS NULL: a column of any type, or a value."""
        if isinstance(node, exp.Column | exp.Dot):
            return node.copy()
        return self.boolean(node) if self.type_of(node) == "BOOLEAN" else self.value(node)

    def value(self, node: exp.Expr) -> exp.Expr:
        """The same value in Spark, of the type that DuckDB gives it."""
        kind = self.type_of(node)
        if is_constant(node):
            return self._constant(node, kind)
        if kind not in _PLAIN and kind not in _STAMPS and kind != "UUID" and not _is_decimal(kind):
            raise _refused(node, f"{kind} is not the same there")
        if isinstance(node, exp.Column | exp.Dot):
            return node.copy()
        writer = _VALUES.get(type(node))
        if writer is None:
            raise _refused(node, "it is not known to be the same there")
        return writer(self, node)

    def _sides(self, node: exp.Expr, operands: Sequence[exp.Expr]) -> list[exp.Expr]:
        """The operands, all converted to the type in which DuckDB brings them together."""
        kind = common_type([duckdb_text(operand) for operand in operands], self._columns)
        kinds = [self.type_of(operand) for operand in operands]
        moving = [
            own
            for own, operand in zip(kinds, operands, strict=True)
            if not isinstance(operand, exp.Literal | exp.Null)
        ]
        # Text against another type is converted in ways that the common type does not tell.
        if kind is None or ("VARCHAR" in moving and {*moving} != {"VARCHAR"}):
            raise _refused(node, "it compares different types")
        if kind == "VARCHAR" and moving and {*moving} != {"VARCHAR"}:
            raise _refused(node, "it compares different types")
        return [self._converted(operand, kind) for operand in operands]

    def _converted(self, node: exp.Expr, kind: str) -> exp.Expr:
        if is_constant(node):
            return self._constant(node, kind)
        own = self.type_of(node)
        value = self.boolean(node) if own == "BOOLEAN" else self.value(node)
        if own == kind:
            return value
        if not _is_exact(own, kind):
            raise _refused(node, f"it would have to become {kind}")
        return _cast(value, kind)

    def _constant(self, node: exp.Expr, kind: str) -> exp.Expr:
        try:
            (value,) = constants([duckdb_text(node)], kind)
        except NotConstant as error:
            raise _refused(node, f"{kind} has no such value there") from error
        written = _cast(exp.Null(), kind) if value is None else _literal(value, kind)
        if written is None:
            raise _refused(node, f"{kind} is not the same there")
        return written

    def _arithmetic(self, node: exp.Expr) -> exp.Expr:
        kind = self.type_of(node)
        left, right = node.this, node.args["expression"]
        if kind not in _INTEGERS:
            raise _refused(node, "they round differently")
        if {self.type_of(left), self.type_of(right)} - _INTEGERS:
            raise _refused(node, "it mixes types")
        return type(node)(this=self._converted(left, kind), expression=self._converted(right, kind))

    def _remainder(self, node: exp.Expr) -> exp.Expr:
        right = node.args["expression"]
        if not isinstance(right, exp.Literal) or float(right.name) == 0:
            raise _refused(node, "the divisor could be zero, which is an error there")
        return self._arithmetic(node)

    def _negation(self, node: exp.Expr) -> exp.Expr:
        if self.type_of(node) not in _INTEGERS | _FLOATS:
            raise _refused(node, "it is not known to be the same there")
        return exp.Neg(this=self.value(node.this))

    def _conversion(self, node: exp.Expr) -> exp.Expr:
        own, kind = self.type_of(node.this), self.type_of(node)
        if own != kind and not _is_exact(own, kind):
            raise _refused(node, "they convert differently")
        value = self.value(node.this)
        return value if own == kind else _cast(value, kind)

    def _call(self, node: exp.Expr) -> exp.Expr:
        name, arguments = node.name.lower(), node.expressions
        if name in {"coalesce", "ifnull"}:
            return exp.Anonymous(this="coalesce", expressions=self._sides(node, arguments))
        kinds = tuple(map(self.type_of, arguments))
        if name in _PARTS and kinds in {("DATE",), *((kind,) for kind in _STAMPS)}:
            if name in {"hour", "minute"} and kinds == ("DATE",):
                raise _refused(node, "a date has no time there")
            return exp.Anonymous(this=name, expressions=[self.value(arguments[0])])
        found = _CALLS.get(name)
        if found is None or (found[1] != kinds and (name, kinds) != ("isnan", ("FLOAT",))):
            raise _refused(node, "the function is not known to be the same there")
        return exp.Anonymous(this=found[0], expressions=[self.value(item) for item in arguments])


_Writer = Callable[[_Spark, exp.Expr], exp.Expr]
_BOOLEANS: Final[dict[type, _Writer]] = {
    **dict.fromkeys(_SAME, _Spark._compare),  # noqa: SLF001
    exp.Between: _Spark._between,  # noqa: SLF001
    exp.In: _Spark._in,  # noqa: SLF001
    exp.Like: _Spark._like,  # noqa: SLF001
    exp.ILike: _Spark._like,  # noqa: SLF001
    exp.Escape: _Spark._like,  # noqa: SLF001
}
_VALUES: Final[dict[type, _Writer]] = {
    **dict.fromkeys((exp.Case, exp.If), _Spark._case),  # noqa: SLF001
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), _Spark._arithmetic),  # noqa: SLF001
    exp.Mod: _Spark._remainder,  # noqa: SLF001
    exp.Neg: _Spark._negation,  # noqa: SLF001
    exp.Cast: _Spark._conversion,  # noqa: SLF001
    exp.Anonymous: _Spark._call,  # noqa: SLF001
}


def _is_decimal(kind: str) -> bool:
    return kind.startswith("DECIMAL(")


def _is_exact(own: str, kind: str) -> bool:
    if _is_decimal(kind):
        return own in _INTEGERS or (_is_decimal(own) and _fits(own, kind))
    return kind in _WIDER.get(own, set())


def _fits(own: str, kind: str) -> bool:
    (own_width, own_scale), (width, scale) = _digits(own), _digits(kind)
    return own_scale <= scale and own_width - own_scale <= width - scale


def _digits(kind: str) -> tuple[int, int]:
    width, scale = kind.removeprefix("DECIMAL(").removesuffix(")").split(",")
    return int(width), int(scale)


def _cast(value: exp.Expr, kind: str) -> exp.Expr:
    name = "STRING" if kind == "UUID" else _NAMES.get(kind, kind)
    to = exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=name)
    return exp.Cast(this=value, to=to)


def _literal(value: Any, kind: str) -> exp.Expr | None:
    """A value in Spark's words; None for a type that Spark has not."""
    match value:
        case bool():
            return exp.Boolean(this=value)
        case bytes():
            return exp.Anonymous(this="unhex", expressions=[exp.Literal.string(value.hex())])
        case str():
            return exp.Literal.string(value)
        case Decimal():
            return _cast(exp.Literal.string(format(value, "f")), kind)
        case float():
            special = {math.inf: "Infinity", -math.inf: "-Infinity"}
            text = "NaN" if math.isnan(value) else special.get(value, repr(value))
            return _cast(exp.Literal.string(text), kind)
    if kind == "UUID":
        return exp.Literal.string(str(value))
    return _whole(int(value), kind)


def _whole(value: int, kind: str) -> exp.Expr | None:
    if kind in _INTEGERS:
        return _cast(exp.Literal.string(str(value)), kind)
    number = _cast(exp.Literal.string(str(value)), "INTEGER" if kind == "DATE" else "BIGINT")
    if kind == "DATE":
        return exp.Anonymous(this="date_from_unix_date", expressions=[number])
    if kind in _STAMPS:
        return _cast(exp.Anonymous(this="timestamp_micros", expressions=[number]), kind)
    return None


def _spark_pattern(node: exp.Expr, pattern: str, escape: str) -> str:
    written, rest = [], iter(pattern)
    for sign in rest:
        if sign == escape:
            following = next(rest, "")
            if following not in {"%", "_", escape}:
                raise _refused(node, "the escape stands before a plain letter")
            written.append(following if following not in "%_\\" else f"\\{following}")
        else:
            written.append("\\\\" if sign == "\\" else sign)
    return "".join(written)
