"""A condition as a value: parsed once, compared, pickled, and written out for an engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from sqlglot import exp

from calve.condition.binding import require_boolean
from calve.condition.checks import checked
from calve.condition.columns import Column, Scope
from calve.condition.facts import Fact
from calve.condition.grammar import check_size, read_tree
from calve.condition.nan import guarded, guarded_text
from calve.condition.outline import outline
from calve.condition.spark import spark_text
from calve.condition.text import duckdb_text
from calve.errors import InvalidRequest

_SHOWN_MAX: Final = 200


class Condition:
    """An expression over one table's columns that is true, false or null for each row.

    Two conditions are equal when DuckDB would be asked the same of the same columns. Made by
    `parse_condition`, never otherwise.
    """

    def __init__(self, text: str, scope: Scope, tree: exp.Expr) -> None:
        self.text = text
        self._scope = scope
        self._tree = tree
        self._duckdb = duckdb_text(tree)

    @cached_property
    def used(self) -> tuple[Column, ...]:
        """The columns that the condition looks at, in the table's order."""
        return self._scope.pick([column.name for column in self._tree.find_all(exp.Column)])

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that the condition looks at, in the table's order."""
        return tuple(column.name for column in self.used)

    def duckdb_sql(self) -> str:
        """The condition for DuckDB, in a session with `SESSION`; true, false or null."""
        return self._duckdb

    def duckdb_filter(self) -> str:
        """The condition for DuckDB's WHERE over files or Arrow data, which may hold NaN.

        DuckDB leaves out what Parquet's bounds exclude, and those say nothing of NaN; filters on
        Arrow data it hands to Arrow, to which NaN is above nothing. Either way `d > 5` loses the
        rows where d is NaN, so floating columns are written in a form that neither looks into.
        """
        return guarded_text(self._tree, self.used)

    def spark_sql(self) -> str:
        """The condition for Spark SQL in its ANSI mode and a session in UTC.

        InvalidRequest where Spark could decide otherwise than DuckDB for some row.
        """
        return spark_text(self._tree, self.used)

    def spark_filter(self) -> str:
        """The condition for Spark SQL over files, which may hold NaN.

        As `duckdb_filter`: Iceberg's bounds say nothing of NaN, so Spark skips files that hold it.
        """
        return spark_text(guarded(self._tree, self.used), self.used)

    def facts(self) -> Fact:
        """What holds in every row for which the condition is true, as far as that is known."""
        return outline(self._tree, self.used)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Condition):
            return NotImplemented
        return (self._duckdb, self.used) == (other._duckdb, other.used)

    def __hash__(self) -> int:
        return hash((self._duckdb, self.used))

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN_MAX else self.text[: _SHOWN_MAX - 1] + "…"
        return f"Condition({text!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _read, (self.text, self.used)


def parse_condition(text: str, columns: Sequence[Column]) -> Condition:
    """Read a condition over these columns. InvalidRequest for whatever is not one."""
    condition = _read(text, columns)
    require_boolean(condition.duckdb_sql(), condition.used)
    return condition


def _read(text: str, columns: Sequence[Column]) -> Condition:
    if not isinstance(text, str):
        raise InvalidRequest(
            f"a condition is text, not {type(text).__name__}",
            hint="write 'true' to mean every row, on purpose",
        )
    scope = Scope(columns)
    tree = checked(read_tree(text), scope)
    check_size(tree)
    return Condition(text, scope, tree)
