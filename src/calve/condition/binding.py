"""Asks DuckDB what a condition means: its type, the type of a comparison, a constant's value.

The DuckDB that is asked holds no data and may open no file. It sees only texts made from a checked
tree.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final
from uuid import UUID

import duckdb

from calve.condition.columns import Column
from calve.condition.facts import Value
from calve.errors import InvalidRequest

# A condition means the same for everybody only where these hold. Global, or cursors of the same
# DuckDB would go by the machine's own zone.
SESSION: Final = (
    "SET GLOBAL TimeZone = 'UTC'; SET GLOBAL Calendar = 'gregorian'; "
    "SET GLOBAL default_collation = ''"
)

_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "memory_limit": "256MB",
    "threads": 1,
}
_COUNTED: Final = {
    "DATE": "CASE WHEN isfinite({0}) THEN {0} - DATE '1970-01-01' END",
    "TIME": "epoch_us({0})",
    "TIMESTAMP": "CASE WHEN isfinite({0}) THEN epoch_us({0}) END",
    "TIMESTAMP WITH TIME ZONE": "CASE WHEN isfinite({0}) THEN epoch_us({0}) END",
    "TIMESTAMP_NS": "CASE WHEN isfinite({0}) THEN epoch_ns({0}) END",
    "UUID": "CAST({0} AS VARCHAR)",
}
_PLAIN: Final = frozenset(
    {
        *("BOOLEAN", "VARCHAR", "BLOB", "FLOAT", "DOUBLE", "HUGEINT", "UHUGEINT"),
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    }
)
_lock: Final = threading.Lock()


class NotConstant(Exception):
    """DuckDB has no plain value for this."""


def require_boolean(sql: str, columns: Sequence[Column]) -> None:
    """Refuse a condition that DuckDB cannot bind to these columns, or that is not boolean."""
    rows = _from(columns)
    try:
        kind = _types(f"SELECT {sql} {rows}")[0]
        if kind == "BOOLEAN":
            # A constant that its column's type cannot hold shows here, not in the middle of work.
            _cursor().execute(f"SELECT {sql} {rows}").fetchall()
    except duckdb.Error as error:
        raise InvalidRequest(
            f"the condition does not fit the table: {_first_line(error)}",
            hint="compare values of one type, or convert one side: price > CAST('5' AS INTEGER)",
        ) from error
    if kind != "BOOLEAN":
        raise InvalidRequest(
            f"the condition is of type {kind}, not true or false",
            hint="compare it with something, as in: name = 'x' or length(name) > 0",
        )


def require_type(sql: str, cast_sql: str, columns: Sequence[Column]) -> str:
    """The type of an expression; refused where DuckDB cannot bind it or cast it."""
    rows = _from(columns)
    try:
        kind = _types(f"SELECT {sql} {rows}")[0]
        # As Arrow: Python's values of a time with a zone need another library.
        _cursor().execute(f"SELECT {cast_sql} {rows}").to_arrow_table()
    except duckdb.Error as error:
        raise InvalidRequest(
            f"the expression does not fit the table: {_first_line(error)}",
            hint="an expression is such as: age + 1, or upper(name)",
        ) from error
    return kind


def types_of(expressions: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """The type of each expression, in DuckDB's words."""
    return list(_types_cached(tuple(expressions), tuple(columns)))


def common_type(expressions: Sequence[str], columns: Sequence[Column]) -> str | None:
    """The type in which DuckDB compares these with each other; None if it would not say."""
    try:
        return types_of([f"coalesce({', '.join(expressions)})"], columns)[0]
    except duckdb.Error:
        return None


def constants(expressions: Sequence[str], type_text: str) -> list[Value | None]:
    """The values of expressions without columns, cast to a type. None stands for NULL.

    Dates and times come counted from the epoch. NotConstant if one has no plain finite value.
    """
    listed = ", ".join(f"CAST({text} AS {type_text})" for text in expressions)
    shape = "{0}"
    if type_text.startswith("DECIMAL("):
        shape = "CAST({0} AS VARCHAR)"
    elif type_text not in _PLAIN:
        if type_text not in _COUNTED:
            raise NotConstant
        shape = _COUNTED[type_text]
    query = f"SELECT c IS NULL, {shape.format('c')} FROM (SELECT unnest([{listed}]) AS c)"  # noqa: S608
    try:
        rows = _cursor().execute(query).fetchall()
    except duckdb.Error as error:
        raise NotConstant from error
    return [_value(value, type_text, is_null=is_null) for is_null, value in rows]


def _value(value: object, type_text: str, *, is_null: bool) -> Value | None:
    if is_null:
        return None
    if value is None:
        raise NotConstant
    if type_text.startswith("DECIMAL("):
        return Decimal(str(value))
    return UUID(str(value)) if type_text == "UUID" else value


@lru_cache(maxsize=4096)
def _types_cached(expressions: tuple[str, ...], columns: tuple[Column, ...]) -> tuple[str, ...]:
    return tuple(_types(f"SELECT {', '.join(expressions)} {_from(columns)}"))


def _types(select: str) -> list[str]:
    return [str(row[1]) for row in _cursor().execute(f"DESCRIBE {select}").fetchall()]


def _from(columns: Sequence[Column]) -> str:
    """One row of nulls."""
    listed = ", ".join(
        f"CAST(NULL AS {column.type}) AS {_quoted(column.name)}" for column in columns
    )
    return f"FROM (SELECT {listed or 'NULL'})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: duckdb.Error) -> str:
    line = str(error).partition("\n")[0]
    return line.partition(": ")[2] or line


def _cursor() -> duckdb.DuckDBPyConnection:
    with _lock:
        return _connection(os.getpid()).cursor()


@lru_cache(maxsize=1)
def _connection(_process: int) -> duckdb.DuckDBPyConnection:
    # One for each process: a fork must not use its parent's.
    connection = duckdb.connect(config=_CONFIG)
    connection.execute(SESSION)
    connection.execute("SET lock_configuration = true")
    return connection
