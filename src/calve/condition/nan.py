"""Keeps NaN in sight of engines, which skip files and rows by bounds that leave it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from calve.condition.binding import types_of
from calve.condition.columns import Column
from calve.condition.text import duckdb_text

_FLOATING: Final = frozenset({"FLOAT", "DOUBLE"})


def guarded_text(tree: exp.Expr, columns: Sequence[Column]) -> str:
    """The text for DuckDB, with each floating value as a CASE that changes nothing."""
    return duckdb_text(guarded(tree, columns))


def guarded(tree: exp.Expr, columns: Sequence[Column]) -> exp.Expr:
    """The tree with each floating value as a CASE that changes nothing."""
    holder = exp.Paren(this=tree.copy())
    for node in list(holder.find_all(exp.Column, exp.Dot, exp.Bracket)):
        if isinstance(node.parent, exp.Dot):
            continue
        (kind,) = types_of([duckdb_text(node)], columns)
        if kind in _FLOATING:
            node.replace(_guarded(node.copy(), kind))
    inner: exp.Expr = holder.this
    return inner.pop()


def _guarded(node: exp.Expr, kind: str) -> exp.Expr:
    nan = exp.cast(exp.Literal.string("nan"), kind, dialect="duckdb")
    is_nan = exp.Anonymous(this="isnan", expressions=[node.copy()])
    return exp.Case(ifs=[exp.If(this=is_nan, true=nan)], default=node)
