"""Keeps NaN and null in sight of engines, which skip files and rows that may hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from calve.condition.binding import types_of
from calve.condition.columns import Column
from calve.condition.text import duckdb_text

_FLOATING: Final = frozenset({"FLOAT", "DOUBLE"})
# What these take out of a list or a struct is a column's value, whose bounds DuckDB looks at.
_TAKING: Final = frozenset({"array_extract", "list_element", "list_extract", "struct_extract"})


def guarded_text(tree: exp.Expr, columns: Sequence[Column]) -> str:
    """The text for DuckDB, in which NaN and null cannot be overlooked."""
    holder = exp.Paren(this=guarded(tree, columns))
    for compared in list(holder.find_all(exp.NullSafeEQ, exp.NullSafeNEQ)):
        compared.replace(_spelled_out(compared))
    return duckdb_text(holder.this)


def guarded(tree: exp.Expr, columns: Sequence[Column]) -> exp.Expr:
    """The tree with each floating value as a CASE that changes nothing."""
    holder = exp.Paren(this=tree.copy())
    for node in list(holder.find_all(exp.Column, exp.Dot, exp.Bracket, exp.Anonymous)):
        if isinstance(node.parent, exp.Dot) or not _is_taken(node):
            continue
        (kind,) = types_of([duckdb_text(node)], columns)
        if kind in _FLOATING:
            node.replace(_guarded(node.copy(), kind))
    inner: exp.Expr = holder.this
    return inner.pop()


def _is_taken(node: exp.Expr) -> bool:
    return not isinstance(node, exp.Anonymous) or node.name.lower() in _TAKING


def _guarded(node: exp.Expr, kind: str) -> exp.Expr:
    nan = exp.cast(exp.Literal.string("nan"), kind, dialect="duckdb")
    is_nan = exp.Anonymous(this="isnan", expressions=[node.copy()])
    return exp.Case(ifs=[exp.If(this=is_nan, true=nan)], default=node)


def _spelled_out(compared: exp.Binary) -> exp.Expr:
    """A comparison to which null is a value, in words from which DuckDB makes no filter of its own.

    Beside another comparison of the same column, its own loses the rows where that is null.
    """
    kind = exp.EQ if isinstance(compared, exp.NullSafeEQ) else exp.NEQ
    left, right = (exp.paren(side.copy()) for side in (compared.left, compared.right))
    nulls = [
        exp.Paren(this=exp.Is(this=each.copy(), expression=exp.Null())) for each in (left, right)
    ]
    return exp.Coalesce(
        this=kind(this=left, expression=right),
        expressions=[kind(this=nulls[0], expression=nulls[1])],
    )
