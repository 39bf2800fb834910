"""Every store that Calve keeps its state in, for one test alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from calve.clock import Clock
from calve.settings import Settings, load_settings
from calve.state import State, open_state
from tests.servers.etcd import Etcd
from tests.servers.postgres import Postgres

STORES: Final = ("sqlite", "postgres", "etcd")
SERVERS: Final = ("postgres", "etcd")


@dataclass
class StateStore:
    """A place that holds nothing yet; `damage` makes its records unreadable, `forget` a counter's."""

    kind: str
    dsn: str
    directory: Path
    damage: Callable[[str], None]
    forget: Callable[[str], None]
    settings_flags: Mapping[str, object] = field(default_factory=dict)

    def settings(self, **flags: object) -> Settings:
        return load_settings(
            flags={
                "data": str(self.directory / "lake"),
                "state.dsn": self.dsn,
                **self.settings_flags,
                **{name.replace("__", "."): value for name, value in flags.items()},
            },
            environ={},
            directory=self.directory,
        ).settings

    def open(self, *, clock: Clock | None = None, **flags: object) -> State:
        return open_state(self.settings(**flags), clock=clock)


@contextmanager
def state_store(kind: str, fixture: Callable[[str], Any], directory: Path) -> Iterator[StateStore]:
    if kind == "sqlite":
        yield _in_sqlite(directory)
    elif kind == "etcd":
        yield _in_etcd(fixture("etcd_server"), directory)
    else:
        with _in_postgres(fixture("postgres_server"), directory) as store:
            yield store


def _in_sqlite(directory: Path) -> StateStore:
    import sqlite3

    path = directory / "deep" / "state.db"

    def execute(statement: str) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()

    return StateStore(
        "sqlite",
        f"sqlite:///{path}",
        directory,
        damage=lambda table: execute(_damaging(table)),
        forget=lambda table: execute(f"DELETE FROM {table}"),
    )


@contextmanager
def _in_postgres(server: Postgres, directory: Path) -> Iterator[StateStore]:
    schema = f"state_{uuid4().hex}"
    yield StateStore(
        "postgres",
        f"{server.url.replace('+psycopg', '')}?schema={schema}",
        directory,
        damage=lambda table: _void(server.query(_damaging(f"{schema}.{table}"))),
        forget=lambda table: _void(server.query(f"DELETE FROM {schema}.{table}")),
    )
    server.query(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def _in_etcd(server: Etcd, directory: Path) -> StateStore:
    prefix = f"/{uuid4().hex}"
    root = f"{prefix}/persistent_storage/iceberg"
    return StateStore(
        "etcd",
        f"{server.url}{prefix}",
        directory,
        damage=lambda table: server.overwrite(f"{root}/state/{table}/", b"{"),
        forget=lambda table: server.delete(f"{root}/state/{table}/"),
    )


def _damaging(table: str) -> str:
    column = "content" if table.endswith("progress") else "log_id"
    return f"UPDATE {table} SET {column} = '{{'"


def _void(_: object) -> None:
    pass
