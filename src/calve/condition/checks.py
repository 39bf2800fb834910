"""Lets through only what is known to be harmless: every node of a tree is on a list, or refused.

The lists name the kinds of nodes and, for each, the parts it may have. Whatever a later sqlglot
learns to read is refused until somebody adds it here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from sqlglot import exp

from calve.condition import functions
from calve.condition.brackets import check_brackets
from calve.condition.columns import Scope
from calve.condition.grammar import shown
from calve.errors import InvalidRequest

_TWO: Final = frozenset({"this", "expression"})
_ONE: Final = frozenset({"this"})
_PARTS: Final[dict[type, frozenset[str]]] = {
    **dict.fromkeys((exp.And, exp.Or), _TWO),
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), _TWO),
    **dict.fromkeys((exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is, exp.Escape), _TWO),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod, exp.Pow), _TWO),
    **dict.fromkeys((exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor), _TWO),
    **dict.fromkeys((exp.Not, exp.Neg, exp.Paren, exp.BitwiseNot, exp.Boolean, exp.Var), _ONE),
    **dict.fromkeys((exp.BitwiseLeftShift, exp.BitwiseRightShift), _TWO | {"requires_int128"}),
    **dict.fromkeys((exp.Like, exp.ILike), _TWO | {"negate"}),
    exp.Div: _TWO | {"typed", "safe"},
    exp.DPipe: _TWO | {"safe"},
    exp.Null: frozenset(),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true", "false"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to", "safe", "requires_string"}),
    exp.DataType: frozenset({"this", "expressions", "nested"}),
    exp.DataTypeParam: _ONE,
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Column: frozenset({"this", "table", "db", "catalog"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Dot: _TWO,
    exp.Anonymous: frozenset({"this", "expressions"}),
    exp.Bracket: frozenset({"this", "expressions", "offset"}),
    exp.Slice: _TWO,
    exp.Array: frozenset({"expressions", "value_constructor", "bracket_notation"}),
    exp.Extract: _TWO,
    exp.Interval: frozenset({"this", "unit"}),
    exp.AtTimeZone: frozenset({"this", "zone"}),
}
_T: Final = exp.DataType.Type
_TYPES: Final = frozenset(
    {
        *(_T.BOOLEAN, _T.TINYINT, _T.SMALLINT, _T.INT, _T.BIGINT, _T.INT128),
        *(_T.UTINYINT, _T.USMALLINT, _T.UINT, _T.UBIGINT, _T.FLOAT, _T.DOUBLE, _T.DECIMAL),
        *(_T.VARCHAR, _T.TEXT, _T.DATE, _T.TIME, _T.TIMESTAMP, _T.TIMESTAMPNTZ),
        *(_T.TIMESTAMPTZ, _T.TIMESTAMP_NS, _T.UUID, _T.VARBINARY, _T.BLOB, _T.INTERVAL),
    }
)
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_QUERIES: Final = (exp.Query, exp.Subquery, exp.Exists, exp.With, exp.DDL, exp.DML, exp.Table)
_UNITS: Final = frozenset(
    {
        *("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH"),
        *("QUARTER", "YEAR", "DECADE", "CENTURY", "MILLENNIUM", "DOW", "ISODOW", "DOY"),
        *("ISOYEAR", "EPOCH", "ERA", "YEARWEEK", "NANOSECOND"),
    }
)


def checked(tree: exp.Expr, scope: Scope) -> exp.Expr:
    """The tree with real column names and without brackets; InvalidRequest for its first flaw."""
    holder = exp.Paren(this=tree)
    for node in list(tree.walk()):
        _check(node)
    for node in list(holder.find_all(exp.Column, exp.Dot)):
        if not isinstance(node.parent, exp.Dot):
            node.replace(scope.resolve(_written(node)))
    for node in list(holder.find_all(exp.Like, exp.ILike)):
        _spell_out_not(node)
    for node in list(tree.find_all(exp.Paren)):
        node.replace(node.this)
    inner: exp.Expr = holder.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    return inner.pop()


def _check(node: exp.Expr) -> None:
    kind = type(node)
    if isinstance(node, exp.Anonymous):
        _check_call(node)
    allowed = _PARTS.get(kind)
    if allowed is None:
        raise _refused(node)
    extra = {name for name, value in node.args.items() if value not in (None, False, [])} - allowed
    if extra:
        raise _refused(node)
    check_brackets(node)
    if special := _SPECIAL.get(kind):
        special(node)


def _refused(node: exp.Expr) -> InvalidRequest:
    if isinstance(node, _QUERIES) or node.args.get("query"):
        what, hint = "a sub-query", "a condition looks at one row of one table; use `calve sql`"
    elif isinstance(node, exp.Window | exp.Filter | exp.WithinGroup | exp.Distinct | exp.Ordered):
        what, hint = "a window or an aggregate", "a condition looks at one row; use `calve sql`"
    elif isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
        what, hint = "a parameter", "write the value itself"
    elif isinstance(node, exp.Star):
        what, hint = "a star", "name the columns"
    else:
        what, hint = f"{shown(node)!r}", "see docs/guides/conditions.md for what may be written"
        return InvalidRequest(f"{what} cannot stand in a condition", hint=hint)
    return InvalidRequest(f"{what} cannot stand in a condition: {shown(node)}", hint=hint)


def _check_call(node: exp.Anonymous) -> None:
    name = str(node.name).lower()
    if name not in functions.ALLOWED or not isinstance(node.this, str):
        raise InvalidRequest(f"a condition cannot call {name}()", hint=_why_not(name))
    if name == "replace":
        _check_replace(node)
    if name in functions.DOUBLING and any(
        other is not node and str(other.name).lower() in functions.DOUBLING
        for other in node.find_all(exp.Anonymous)
    ):
        raise InvalidRequest(f"{name}() of such a function again: {shown(node)}")


def _why_not(name: str) -> str:
    if name in functions.CHANGES_EACH_TIME:
        return "it answers differently each time; write the value, such as TIMESTAMP '2024-05-01'"
    if name in functions.AGGREGATES:
        return "it looks at many rows, a condition at one; use `calve sql`"
    return "docs/guides/conditions.md lists the functions that it can"


def _check_replace(node: exp.Anonymous) -> None:
    """A replacement that is longer than what it replaces could make texts without bound."""
    texts = node.expressions[1:]
    if not all(isinstance(text, exp.Literal) and text.is_string for text in texts):
        raise InvalidRequest(f"what replace() looks for and puts in must be text: {shown(node)}")
    if len(texts) == 2 and len(texts[1].name.encode()) > len(texts[0].name.encode()):
        raise InvalidRequest(
            f"replace() can put in nothing longer than what it takes out: {shown(node)}"
        )


def _check_type(node: exp.Expr) -> None:
    sized = bool(node.expressions) and node.this is not _T.DECIMAL
    if node.this not in _TYPES or node.args.get("nested") or sized:
        raise InvalidRequest(
            f"a condition cannot convert to {shown(node)}",
            hint="convert to a plain type without a length, such as INTEGER, DATE or VARCHAR",
        )


def _check_in(node: exp.Expr) -> None:
    if not node.expressions:
        raise InvalidRequest(
            f"IN needs a list of values: {shown(node)}",
            hint="write x IN (1, 2, 3), or list_contains(list, x)",
        )


def _check_column(node: exp.Expr) -> None:
    if not isinstance(node.this, exp.Identifier):
        raise _refused(exp.Star() if isinstance(node.this, exp.Star) else node)
    name = node.this.name.lower()
    bare = not node.this.args.get("quoted") and not node.args.get("table")
    if bare and name.startswith(("current_", "local", "session_")):
        raise InvalidRequest(f"a condition cannot use {node.this.name}", hint=_why_not(name))


def _check_dot(node: exp.Expr) -> None:
    left = node.this
    plain = isinstance(left, exp.Column | exp.Dot) and isinstance(node.expression, exp.Identifier)
    if not plain:
        raise _refused(node)


def _check_unit(node: exp.Expr) -> None:
    if node.name.upper().removesuffix("S") not in {unit.removesuffix("S") for unit in _UNITS}:
        raise _refused(node)


def _check_interval(node: exp.Expr) -> None:
    if not isinstance(node.this, exp.Literal) or node.args.get("unit") is None:
        raise InvalidRequest(
            f"an interval is a number and a unit, not {shown(node)}",
            hint="write INTERVAL 3 DAY, or to_days(x) for one that differs by row",
        )


def _check_like(node: exp.Expr) -> None:
    if isinstance(node.expression, exp.Any | exp.All):
        raise _refused(node.expression)


def _check_escape(node: exp.Expr) -> None:
    if not isinstance(node.this, exp.Like | exp.ILike):
        raise _refused(node)


def _check_literal(node: exp.Expr) -> None:
    if not node.is_string and not _NUMBER.fullmatch(str(node.this)):
        raise InvalidRequest(f"{shown(node)} is not a number")


_SPECIAL: Final[dict[type, Callable[[exp.Expr], None]]] = {
    exp.Literal: _check_literal,
    exp.DataType: _check_type,
    exp.In: _check_in,
    exp.Column: _check_column,
    exp.Dot: _check_dot,
    exp.Var: _check_unit,
    exp.Interval: _check_interval,
    exp.Like: _check_like,
    exp.ILike: _check_like,
    exp.Escape: _check_escape,
}


def _written(node: exp.Expr) -> list[str]:
    if isinstance(node, exp.Dot):
        return [*_written(node.this), node.expression.name]
    return [part.name for part in node.parts] if isinstance(node, exp.Column) else []


def _spell_out_not(node: exp.Expr) -> None:
    """`a NOT LIKE b` becomes `NOT (a LIKE b)`."""
    if not node.args.get("negate"):
        return
    node.set("negate", None)
    whole = node.parent if isinstance(node.parent, exp.Escape) else node
    negation = exp.Not()
    whole.replace(negation)
    negation.set("this", whole)
