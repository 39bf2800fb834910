"""Writes a checked tree as SQL. Every nested operation gets brackets, every name quotes.

So the text means what the tree says, whatever an engine thinks of precedence; and a column is found
even if it is called `select` or has quotes in its name.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp
from sqlglot.dialects.dialect import DialectType

from calve.condition.grammar import ConditionDialect
from calve.errors import InvalidRequest

_OPERATIONS: Final = (
    *(exp.Binary, exp.Unary, exp.Between, exp.In, exp.Case, exp.If, exp.AtTimeZone, exp.Interval),
)


def duckdb_text(tree: exp.Expr) -> str:
    """The text for DuckDB, in brackets."""
    holder = exp.Paren(this=tree.copy())
    for node in list(holder.find_all(exp.Dot)):
        # `a.b` could also be the column b of a table a.
        field = exp.Literal.string(node.expression.name)
        node.replace(exp.Anonymous(this="struct_extract", expressions=[node.this, field]))
    return sql(holder, ConditionDialect)


def sql(holder: exp.Paren, dialect: DialectType) -> str:
    """The text of what is held, in brackets. Changes the tree."""
    for node in list(holder.this.walk()):
        if _needs_brackets(node):
            _bracket(node)
    try:
        return holder.sql(dialect=dialect, comments=False, normalize_functions=False)
    except RecursionError as error:
        raise InvalidRequest(
            "the condition is nested too deeply", hint="write it flatter, without so many brackets"
        ) from error


def _needs_brackets(node: exp.Expr) -> bool:
    parent = node.parent
    if not isinstance(node, _OPERATIONS) or isinstance(node, exp.Dot | exp.Paren):
        return False
    if not isinstance(parent, (*_OPERATIONS, exp.Bracket)) or isinstance(parent, exp.Paren):
        return False
    in_chain = isinstance(node, exp.And | exp.Or) and type(node) is type(parent)
    is_arm = isinstance(node, exp.If) and isinstance(parent, exp.Case)
    pattern = isinstance(node, exp.Like | exp.ILike) and isinstance(parent, exp.Escape)
    return not (in_chain or is_arm or pattern)


def _bracket(node: exp.Expr) -> None:
    brackets = exp.Paren()
    node.replace(brackets)
    brackets.set("this", node)
