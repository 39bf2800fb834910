"""The tables of a state in PostgreSQL: a schema of their own, made by whoever is first.

A version only adds tables, so that nothing is lost on the way.
"""

from __future__ import annotations

from typing import Any, Final

from calve.errors import Conflict, Corruption
from calve.state.recorded import not_made
from calve.state.records import COUNTERS, KEYS, REWOUND, TABLES, TOKENS, Table
from calve.state.sql import Run, listed, quoted

FORMAT_VERSION: Final = 3
_BROUGHT: Final = {2: (TOKENS, KEYS), 3: (REWOUND,)}  # by the versions after the first
_APPLICATION: Final = "calve"
_TYPES: Final = {str: 'TEXT COLLATE "C"', int: "BIGINT", bytes: "BYTEA"}


def make_or_check(run: Run, schema: str, *, create: bool) -> None:
    """Have all tables, or say why not; inside of a transaction that nobody else is in."""
    there = {
        name
        for (name,) in run(
            "SELECT relname FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)",
            (schema,),
        )
    }
    if not there and not create:
        raise not_made(f"schema {schema}")
    if not there:
        _make(run, schema)
        return
    wanted = {"format", *(table.name for table in TABLES)}
    if "format" not in there:
        raise Corruption(
            f"schema {schema} has tables, but not those of Calve's state",
            hint="name another schema in state.dsn, with ?schema=name",
        )
    version = _version(run(f"SELECT application, version FROM {schema}.format", ()), schema)  # noqa: S608
    if version < FORMAT_VERSION:
        there |= _bring_up_to_date(run, schema, version)
    if missing := wanted - there:
        raise Corruption(
            f"schema {schema} lacks tables of the state: {', '.join(sorted(missing))}",
            hint="bring the schema back from a copy of the database",
        )


def _version(found: list[tuple[Any, ...]], schema: str) -> int:
    if len(found) != 1 or found[0][0] != _APPLICATION or found[0][1] < 1:
        raise Corruption(
            f"the table {schema}.format cannot be read: {found}",
            hint="bring the schema back from a copy of the database",
        )
    version: int = found[0][1]
    if version > FORMAT_VERSION:
        raise Conflict(
            f"the state in schema {schema} has format {version}, this Calve knows {FORMAT_VERSION}",
            hint="a newer Calve wrote it: install that one or a later one",
        )
    return version


def _bring_up_to_date(run: Run, schema: str, version: int) -> set[str]:
    """Give a state of an older version the tables that came since; their names."""
    missing = [each for since in range(version + 1, FORMAT_VERSION + 1) for each in _BROUGHT[since]]
    for table in missing:
        run(_definition(table, schema), ())
    run(f"UPDATE {schema}.format SET version = %s", (FORMAT_VERSION,))  # noqa: S608
    return {table.name for table in missing}


def _make(run: Run, schema: str) -> None:
    # Where it is there already, the right to make schemas is not needed.
    if not run("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)):
        run(f"CREATE SCHEMA {schema}", ())
    run(
        f"CREATE TABLE {schema}.format "
        '("only" INT PRIMARY KEY CHECK ("only" = 1), application TEXT NOT NULL, '
        "version INT NOT NULL)",
        (),
    )
    run(f"INSERT INTO {schema}.format VALUES (1, %s, %s)", (_APPLICATION, FORMAT_VERSION))  # noqa: S608
    for table in TABLES:
        run(_definition(table, schema), ())
    for table in COUNTERS:
        run(f"INSERT INTO {schema}.{table.name} VALUES (1, 0)", ())  # noqa: S608


def _definition(table: Table, schema: str) -> str:
    columns = [f"{quoted(name)} {_TYPES[kind]} NOT NULL" for name, kind in table.columns.items()]
    return (
        f"CREATE TABLE {schema}.{table.name} "
        f"({', '.join(columns)}, PRIMARY KEY ({listed(table.key)}))"
    )
