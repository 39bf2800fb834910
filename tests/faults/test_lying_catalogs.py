"""Offset commits over catalogs and connections that lie: no offset twice, none missing, no live file
deleted, on SQLite, PostgreSQL and REST.

A run is one range brought into a table, whatever it takes, among others who do the same or change
the table. Ten runs in a row share a table, so a failing seed is repeated from its table's first on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.table import Table
from pyiceberg.types import StringType

import calve.postgres as postgres_module
from calve.errors import Conflict, Unavailable, UnknownOutcome
from calve.settings import Settings
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.staging import Edit
from calve.tables.translate import translating
from tests.conftest import MakeCatalogSettings
from tests.contract.backends import postgres_uri
from tests.fakes import feed as feeding
from tests.fakes.feed import Parcel, log_range, parcel
from tests.fakes.lying_catalog import unreliable
from tests.servers import faults
from tests.servers.faults import Fault, Faults
from tests.servers.fixtures import ServeFront, ServeTcpFront
from tests.servers.front import Request
from tests.servers.postgres import Postgres
from tests.servers.rest import Rest

RUNS_PER_TABLE = 10
SEND_MAX = 60
TRIES = {"commit.retry.num-retries": "3"}
MAY_PASS = (Conflict, Unavailable, UnknownOutcome)
SLOW_SECONDS, PATIENCE_MS = 0.7, 400

RUNS = pytest.mark.parametrize("runs", [40, pytest.param(1000, marks=pytest.mark.torture)])


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


class Story:
    """What happens to one table, decided by a seed."""

    def __init__(self, load: Callable[[], Table], random: Random) -> None:
        self._load = load
        self._random = random
        self.end = 0
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        """Bring one more range into the table, however often it takes."""
        start, self.end = self.end, self.end + self._random.randint(1, 5)
        sent: Parcel | None = None
        for _ in range(SEND_MAX):
            try:
                table = self._load()
                if sent is None or self._random.random() < 0.3:
                    sent = parcel(table, log_range(start, self.end))
                self._interfere(start)
                done = sent.send(table)
            except MAY_PASS as error:
                self.seen[type(error).__name__] += 1
            else:
                self.seen["committed" if done.is_new else "was there"] += 1
                return
        raise AssertionError(f"the range was not committed in {SEND_MAX} calls")

    def _interfere(self, start: int) -> None:
        """Do what others do at the same time, or nothing."""
        others: list[Callable[[], object]] = [
            lambda: parcel(self._load(), log_range(start, self.end)).send(self._load()),
            self._compact,
            self._add_column,
            lambda: None,
            lambda: None,
        ]
        with suppress(*MAY_PASS), translating():
            self._random.choice(others)()

    def _compact(self) -> None:
        commit = TableCommit(self._load())
        old = [task.file for task in commit.table.scan().plan_files()]
        if len(old) < 2:
            return
        rows = commit.table.scan().to_arrow_batch_reader()
        new = write_data_files(commit.table, rows, operation_id=new_operation_id("compact"))
        commit.attempt(Edit(added=new, removed=old))
        self.seen["compacted"] += 1

    def _add_column(self) -> None:
        with self._load().update_schema() as schema:
            schema.add_column(f"c{uuid4().hex[:8]}", StringType())


@RUNS
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "rest"])
def test_a_catalog_that_lies(catalog_settings: MakeCatalogSettings, kind: str, runs: int) -> None:
    told: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    with LakeCatalog(catalog_settings(kind)) as catalog:
        for first in range(0, runs, RUNS_PER_TABLE):
            table = feeding.make_table(catalog, TRIES, name=f"lied_to_{uuid4().hex}")
            story = Story(partial(loaded, catalog, table), Random(first))
            with unreliable(catalog, Random(first + 1)) as liar:
                for _ in range(RUNS_PER_TABLE):
                    story.run()
                liar.apply_late()
            feeding.require_each_once(loaded(catalog, table), story.end)
            told += liar.told
            seen += story.seen
    print(f"{kind}: {runs} runs, answered {dict(told)}, seen {dict(seen)}")
    assert told["applies_late"]
    assert told["came true late"]
    assert seen["was there"]


@RUNS
def test_connections_that_lie(wire: Wire, runs: int) -> None:
    lies = 0
    seen: Counter[str] = Counter()
    with LakeCatalog(wire.honest) as honest, LakeCatalog(wire.settings) as lied_to:
        for first in range(0, runs, RUNS_PER_TABLE):
            random = Random(first)
            table = feeding.make_table(honest, TRIES, name=f"lied_to_{uuid4().hex}")
            story = Story(partial(loaded, lied_to, table), random)
            for _ in range(RUNS_PER_TABLE):
                for fault, when in random.choices(wire.lies, k=random.randint(0, 3)):
                    wire.faults.inject(fault, when=when)
                story.run()
            lies += wire.faults.taken
            wire.faults.clear()
            # What comes late has come by then.
            time.sleep(2 * SLOW_SECONDS)
            feeding.require_each_once(loaded(honest, table), story.end)
            seen += story.seen
    print(f"{wire.settings.catalog.type}: {runs} runs, {lies} lies, seen {dict(seen)}")
    assert lies > runs / 2


def loaded(catalog: LakeCatalog, table: Table) -> Table:
    return catalog.load_table(".".join(table.name()))
