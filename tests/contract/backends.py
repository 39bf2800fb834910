"""Every pair of catalog and store that Calve opens, as settings, with what each cannot show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from calve.settings import Settings, load_settings
from tests.servers.fixtures import ServeFront
from tests.servers.gates import Bearer
from tests.servers.glue import Glue
from tests.servers.postgres import Postgres
from tests.servers.rest import Rest
from tests.servers.s3 import S3

CATALOGS: Final = ("sqlite", "postgres", "memory", "rest", "glue")
STORES: Final = ("local", "s3")
PAIRS: Final = [f"{catalog} × {store}" for catalog in CATALOGS for store in STORES] + [
    "memory × memory"
]

# Nothing listens there: the port is reserved, and loopback answers at once.
CLOSED: Final = "127.0.0.1:1"
NOT_TESTABLE: Final = "not testable here"


@dataclass(frozen=True)
class Backend:
    """A lake of one kind; `flags` are its settings."""

    pair: str
    flags: dict[str, object]
    directory: Path
    wrong_credentials: list[dict[str, object]] = field(default_factory=list)
    unreachable: list[dict[str, object]] = field(default_factory=list)
    not_testable: dict[str, str] = field(default_factory=dict)

    def settings(self, **changes: object) -> Settings:
        # A server that is not there should not be asked five times by a test.
        quick = {"retry.max_attempts": 2, "retry.initial_delay_ms": 10}
        flags = {"data": str(self.directory / "lake"), **quick, **self.flags, **changes}
        return load_settings(flags=flags, environ={}, directory=self.directory).settings


class Servers:
    """The servers of this test run, started when a pair first needs one."""

    def __init__(self, ask: Callable[[str], Any]) -> None:
        self._ask = ask

    @property
    def postgres(self) -> Postgres:
        server: Postgres = self._ask("postgres_server")
        return server

    @property
    def s3(self) -> S3:
        server: S3 = self._ask("s3_server")
        return server

    def rest(self, store: str) -> Rest:
        server: Rest = self._ask("rest_server" if store == "local" else "rest_server_on_s3")
        return server

    def guarded(self, rest: Rest) -> str:
        """The address of a door to the server that asks for a token."""
        serve_front: ServeFront = self._ask("serve_front")
        return serve_front(rest.port, gates=[Bearer()]).url

    @property
    def glue(self) -> Glue:
        server: Glue = self._ask("glue_server")
        return server


@contextmanager
def backend(pair: str, servers: Servers, directory: Path) -> Iterator[Backend]:
    catalog, store = pair.split(" × ")
    flags: dict[str, object] = {}
    wrong: list[dict[str, object]] = []
    closed: list[dict[str, object]] = []
    impossible: dict[str, str] = {}
    _add_store(store, catalog, servers, flags, wrong, closed)
    if catalog == "memory":
        flags["catalog.type"] = "memory"
    if catalog == "postgres":
        database = servers.postgres.create_database()
        flags["catalog.uri"] = postgres_uri(database)
        wrong.append({"catalog.uri": postgres_uri(database, password="wrong")})
        closed.append({"catalog.uri": f"postgresql://calve:x@{CLOSED}/lake"})
    if catalog == "rest":
        rest = servers.rest(store)
        flags |= {"catalog.type": "rest", "catalog.uri": rest.uri}
        # The server's own catalog is shared by the whole run; a warehouse of our own is not.
        flags["storage.dsn"] = f"{rest.warehouse.rstrip('/')}/{uuid4().hex}"
        closed.append({"catalog.uri": f"http://{CLOSED}"})
        guarded = servers.guarded(rest)
        wrong.append({"catalog.uri": guarded, "catalog.properties.token": "wrong"})
    if catalog == "glue":
        glue = servers.glue
        flags |= {
            "catalog.type": "glue",
            "catalog.uri": glue.endpoint,
            "storage.region": glue.region,
        }
        flags |= {} if store == "s3" else _glue_keys(glue)
        closed.append({"catalog.uri": f"http://{CLOSED}"})
        lost = f"{NOT_TESTABLE}: moto takes every commit, also a stale one"
        impossible = {"conflict on a stale snapshot": lost, "concurrent append": lost}
        if store == "local":
            impossible["wrong credentials"] = f"{NOT_TESTABLE}: moto takes any key"
    yield Backend(pair, flags, directory, wrong, closed, impossible)
    if catalog == "postgres":
        database.drop_database()


def _add_store(
    store: str,
    catalog: str,
    servers: Servers,
    flags: dict[str, object],
    wrong: list[dict[str, object]],
    closed: list[dict[str, object]],
) -> None:
    if store == "memory":
        flags["storage.dsn"] = "memory://"
    if store == "s3":
        s3 = servers.s3
        flags |= {
            "storage.dsn": f"s3://{s3.bucket}/{uuid4().hex}/",
            "storage.region": s3.region,
            "storage.endpoint": s3.endpoint,
            "storage.path_style": True,
            "storage.access_key_id": s3.keys.access_key,
            "storage.secret_access_key": s3.keys.secret_key,
        }
        if catalog != "rest":
            wrong.append({"storage.secret_access_key": "wrong"})
            closed.append({"storage.endpoint": f"http://{CLOSED}"})


def _glue_keys(glue: Glue) -> dict[str, object]:
    return {
        "storage.access_key_id": glue.access_key,
        "storage.secret_access_key": glue.secret_key,
    }


def postgres_uri(database: Postgres, password: str | None = None) -> str:
    return (
        f"postgresql://{database.user}:{password or database.password}"
        f"@{database.host}:{database.port}/{database.database}"
    )
