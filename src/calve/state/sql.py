"""The records of a state in tables of a SQL database: the statements, and who runs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from calve.state.records import Key, Records, Row, Table, Value

Run: TypeAlias = Callable[[str, Sequence[Value]], list[tuple[Any, ...]]]
RunMany: TypeAlias = Callable[[str, Sequence[Sequence[Value]]], None]


class Dialect(NamedTuple):
    """What differs: how a value's place is written, and what stands before a table's name."""

    mark: str
    prefix: str = ""


class SqlSource:
    """Reads records through a connection."""

    def __init__(self, run: Run, dialect: Dialect, now: Callable[[], datetime]) -> None:
        self._run = run
        self._dialect = dialect
        self.now = now

    def find(self, table: Table, key: Key) -> Row | None:
        rows = self._run(_find(table, self._dialect), key)
        return tuple(rows[0][1:]) if rows else None

    def scan(self, table: Table, prefix: Key) -> list[Row]:
        rows = self._run(_scan(table, len(prefix), self._dialect), prefix)
        return [tuple(row) for row in rows]


def write(records: Records, run_many: RunMany, dialect: Dialect) -> None:
    """Bring to the tables what a transaction changed."""
    for table, prefix in records.dropped:
        run_many(_drop(table, len(prefix), dialect), [prefix])
    gone: dict[Table, list[Key]] = defaultdict(list)
    put: dict[Table, list[Row]] = defaultdict(list)
    for (table, key), row in records.written.items():
        if row is None:
            gone[table].append(key)
        else:
            put[table].append((*key, *row))
    for table, keys in gone.items():
        run_many(_drop(table, len(table.key), dialect), keys)
    for table, rows in put.items():
        run_many(_put(table, dialect), rows)


@cache
def _find(table: Table, dialect: Dialect) -> str:
    # The first column is for tables that have a key alone.
    columns = ", ".join(["1", *map(quoted, table.values)])
    return f"SELECT {columns} FROM {dialect.prefix}{table.name}{_where(table.key, dialect)}"  # noqa: S608


@cache
def _scan(table: Table, width: int, dialect: Dialect) -> str:
    where = _where(list(table.key)[:width], dialect)
    return (
        f"SELECT {listed(table.columns)} FROM {dialect.prefix}{table.name}{where} "  # noqa: S608
        f"ORDER BY {listed(table.key)}"
    )


@cache
def _drop(table: Table, width: int, dialect: Dialect) -> str:
    """For records whose key begins with so many given values."""
    where = _where(list(table.key)[:width], dialect)
    return f"DELETE FROM {dialect.prefix}{table.name}{where}"  # noqa: S608


@cache
def _put(table: Table, dialect: Dialect) -> str:
    marks = ", ".join(dialect.mark for _ in table.columns)
    after = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in table.values)
    then = f"UPDATE SET {after}" if after else "NOTHING"
    return (
        f"INSERT INTO {dialect.prefix}{table.name} ({listed(table.columns)}) VALUES ({marks}) "  # noqa: S608
        f"ON CONFLICT ({listed(table.key)}) DO {then}"
    )


def _where(columns: Iterable[str], dialect: Dialect) -> str:
    tests = " AND ".join(f"{quoted(name)} = {dialect.mark}" for name in columns)
    return f" WHERE {tests}" if tests else ""


def listed(columns: Iterable[str]) -> str:
    return ", ".join(map(quoted, columns))


def quoted(column: str) -> str:
    """Some names of columns are words of a database's own."""
    return f'"{column}"'
