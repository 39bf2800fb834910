"""Offset commits over catalogs and connections that lie: no offset twice, none missing, no live file
deleted, on SQLite, PostgreSQL and REST.

A run is one range brought into a table, whatever it takes, among others who do the same or change
the table. Ten runs in a row share a table, so a failing seed is repeated from its table's first on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from uuid import uuid4

import pytest
from pyiceberg.table import Table
from pyiceberg.types import StringType

from calve.errors import Conflict, Unavailable, UnknownOutcome
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.staging import Edit
from calve.tables.translate import translating
from tests.conftest import MakeCatalogSettings
from tests.fakes import feed as feeding
from tests.fakes.feed import Parcel, log_range, parcel
from tests.fakes.lying_catalog import unreliable
from tests.faults.conftest import SLOW_SECONDS, Wire

RUNS_PER_TABLE = 10
SEND_MAX = 60
TRIES = {"commit.retry.num-retries": "3"}
MAY_PASS = (Conflict, Unavailable, UnknownOutcome)

RUNS = pytest.mark.parametrize("runs", [40, pytest.param(1000, marks=pytest.mark.torture)])


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
