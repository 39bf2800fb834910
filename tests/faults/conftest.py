"""Connections to catalogs that break, stall and lie, for whoever commits through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import calve.postgres as postgres_module
from calve.settings import Settings
from tests.conftest import MakeCatalogSettings
from tests.contract.backends import postgres_uri
from tests.servers import faults
from tests.servers.faults import Fault, Faults
from tests.servers.fixtures import ServeFront, ServeTcpFront
from tests.servers.front import Request
from tests.servers.postgres import Postgres
from tests.servers.rest import Rest

SLOW_SECONDS, PATIENCE_MS = 0.5, 300


@dataclass(frozen=True)
class Wire:
    """A connection to a catalog, with faults on demand."""

    honest: Settings
    settings: Settings
    faults: Faults[Any]
    lies: Sequence[tuple[Fault, Callable[[Any], bool]]]


@pytest.fixture(params=["rest", "postgres"])
def wire(
    request: pytest.FixtureRequest,
    catalog_settings: MakeCatalogSettings,
    serve_front: ServeFront,
    serve_tcp_front: ServeTcpFront,
    monkeypatch: pytest.MonkeyPatch,
) -> Wire:
    if request.param == "rest":
        server: Rest = request.getfixturevalue("rest_server")
        front = serve_front(server.port)
        patience = {"catalog__properties__rest.client.socket-timeout-ms": PATIENCE_MS}
        settings = catalog_settings("rest", catalog__uri=front.url, **patience)
        return Wire(catalog_settings("rest"), settings, front.faults, REST_LIES)
    database: Postgres = request.getfixturevalue("postgres_database")
    tcp_front = serve_tcp_front(database.port)
    monkeypatch.setattr(postgres_module, "ANSWER_SECONDS_MAX", PATIENCE_MS / 1000)
    uri = postgres_uri(database.through(tcp_front.port))
    settings = catalog_settings("postgres", catalog__uri=uri)
    return Wire(catalog_settings("postgres"), settings, tcp_front.faults, POSTGRES_LIES)


def is_commit(request: Request) -> bool:
    return request.method == "POST" and "/tables/" in request.path


REST_LIES = [
    (fault, is_commit)
    for fault in (
        faults.reset(),
        faults.drop_answer(),
        faults.delay(SLOW_SECONDS),
        faults.delay_answer(SLOW_SECONDS),
        faults.refuse(409),
        faults.refuse(500),
        faults.refuse(503),
        faults.deny_after(409),
        faults.deny_after(500),
        faults.deny_after(503),
    )
]


def says_commit(data: bytes) -> bool:
    return b"COMMIT" in data


def says_update(data: bytes) -> bool:
    return b"UPDATE iceberg_tables" in data


POSTGRES_LIES = [
    (faults.reset(), says_update),
    (faults.delay(SLOW_SECONDS), says_update),
    (faults.reset(), says_commit),
    (faults.drop_answer(), says_commit),
    (faults.delay(SLOW_SECONDS), says_commit),
    (faults.delay_answer(SLOW_SECONDS), says_commit),
]
