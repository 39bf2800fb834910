"""Asks for brackets where readers, and parsers, may differ on which operator goes first.

That `a + b * c > d AND NOT e` needs none, everybody knows. What `-a ** 2` or `a & 1 = b IN (1, 2)`
mean, DuckDB and sqlglot do not agree on; with brackets there is nothing to agree on.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from calve.condition.grammar import shown
from calve.errors import InvalidRequest

_TESTS: Final = (
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.Escape),
)
_SUMS: Final = (exp.Add, exp.Sub)
_PRODUCTS: Final = (exp.Mul, exp.Div)
_LOGIC: Final = (exp.And, exp.Or, exp.Not)
# Which operators may stand below which without brackets; none, for those not named.
_BELOW: Final[dict[type, tuple[type[exp.Expr], ...]]] = {
    **dict.fromkeys(_TESTS, (*_SUMS, *_PRODUCTS, exp.Mod, exp.IntDiv, exp.Neg, exp.DPipe, exp.Pow)),
    **dict.fromkeys((exp.And, exp.Or), (*_LOGIC, *_TESTS)),
    **dict.fromkeys(_SUMS, (*_SUMS, *_PRODUCTS, exp.Mod, exp.Neg)),
    **dict.fromkeys(_PRODUCTS, (*_PRODUCTS, exp.Neg)),
    exp.Not: _TESTS,
    exp.Is: (*_SUMS, *_PRODUCTS, exp.Neg),
    exp.Escape: (exp.Like, exp.ILike),
    exp.DPipe: (exp.DPipe,),
}
_OPERATORS: Final = (exp.Binary, exp.Unary, exp.In, exp.Between, exp.AtTimeZone)
_CLOSED: Final = (exp.Paren, exp.Dot)


def check_brackets(node: exp.Expr) -> None:
    """Refuse an operator directly under one with which it should not stand without brackets."""
    if not isinstance(node, _OPERATORS) or isinstance(node, _CLOSED):
        return
    allowed = _BELOW.get(type(node), ())
    for child in node.iter_expressions():
        if not isinstance(child, (*_CLOSED, *allowed)) and _is_open(node, child):
            raise InvalidRequest(
                f"it is not clear what goes first in {shown(node)!r}",
                hint=f"put brackets around one part, such as ({shown(child)})",
            )


def _is_open(node: exp.Expr, child: exp.Expr) -> bool:
    """Whether the child is an operator, without the commas and brackets of IN around it."""
    is_listed = isinstance(node, exp.In) and child.arg_key == "expressions"
    return isinstance(child, _OPERATORS) and not is_listed
