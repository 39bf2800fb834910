"""A scalar expression as a value: what a column becomes, in the language of conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from calve.condition.binding import common_type, require_type
from calve.condition.checks import checked
from calve.condition.columns import Column, Scope
from calve.condition.grammar import check_size, read_tree
from calve.condition.spark import spark_value_text
from calve.condition.text import duckdb_text
from calve.errors import InvalidRequest

_NUMBERS: Final = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE"}
)
_MOMENTS: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_NS"})


class Scalar:
    """An expression over one table's columns that gives each row a value of one type.

    Made by `parse_scalar`, never otherwise.
    """

    def __init__(self, text: str, type_text: str, scope: Scope, tree: exp.Expr) -> None:
        self.text = text
        self.type = type_text
        self._tree = tree
        self.used = scope.pick([column.name for column in tree.find_all(exp.Column)])

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that the expression looks at, in the table's order."""
        return tuple(column.name for column in self.used)

    def duckdb_sql(self) -> str:
        """The expression for DuckDB, in a session with `SESSION`, as a value of its type."""
        return f"CAST({duckdb_text(self._tree)} AS {self.type})"

    def spark_sql(self) -> str:
        """The expression for Spark SQL. InvalidRequest where Spark could answer otherwise."""
        return spark_value_text(self._tree, self.type, self.used)

    def __repr__(self) -> str:
        return f"Scalar({self.text!r}, {self.type!r})"


def parse_scalar(text: str, type_text: str, columns: Sequence[Column]) -> Scalar:
    """Read an expression that becomes a value of a type, in DuckDB's words.

    Numbers are rounded and moments cut to the type; text becomes a number or a moment only where it
    is written in the expression itself. InvalidRequest for whatever does not fit.
    """
    scope = Scope(columns)
    tree = checked(read_tree(text), scope)
    check_size(tree)
    scalar = Scalar(text, type_text, scope, tree)
    found = require_type(duckdb_text(tree), scalar.duckdb_sql(), scalar.used)
    if not _fits(found, type_text, duckdb_text(tree), scalar.used):
        raise InvalidRequest(
            f"the expression {text!r} is of type {found}, and the column is {type_text}",
            hint=f"convert it on purpose: CAST({text} AS {type_text})",
        )
    return scalar


def _fits(found: str, wanted: str, sql: str, columns: Sequence[Column]) -> bool:
    if found == wanted or _family(found) == _family(wanted):
        return True
    return common_type([f"CAST(NULL AS {wanted})", sql], columns) == wanted


def _family(type_text: str) -> str:
    if type_text in _NUMBERS or type_text.removeprefix("U") in _NUMBERS:
        return "number"
    if type_text.startswith("DECIMAL("):
        return "number"
    return "moment" if type_text in _MOMENTS else type_text
