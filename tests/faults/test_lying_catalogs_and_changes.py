"""Transactions, inserts, updates, deletes and upserts over catalogs and connections that lie, on
SQLite, PostgreSQL and REST: each is made once or not at all, and no live file is deleted.

A run is one change, among others who insert, add columns, compact and expire snapshots. Several in a row
share a table, so a failing seed is repeated from its table's first on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from pyiceberg.table import Table

from calve import Expression
from calve.errors import Conflict, Unavailable, UnknownOutcome
from calve.lake import Lake
from calve.tables.commit import TableCommit
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.expiry import referred_files
from calve.tables.staging import Edit
from calve.writer import IcebergTableWriter, RetryConfig
from tests.conftest import MakeCatalogSettings
from tests.fakes.lying_catalog import unreliable
from tests.faults.conftest import SLOW_SECONDS, Wire
from tests.integration.writing import writer_for

RUNS_PER_TABLE = 8
COMMIT_MAX = 60
PROPERTIES = {
    "commit.retry.num-retries": "3",
    "commit.retry.min-wait-ms": "1",
    "commit.retry.max-wait-ms": "5",
}
RETRY = RetryConfig(max_attempts=4, initial_delay=0.001, max_delay=0.005)
RUNS = pytest.mark.parametrize("runs", [24, pytest.param(1000, marks=pytest.mark.torture)])
FEW_RUNS = pytest.mark.parametrize("runs", [16, pytest.param(500, marks=pytest.mark.torture)])

# What a table holds: values by id; a row that is there twice is there with both values.
Rows: TypeAlias = dict[int, int]


class Story:
    """What happens to one table, decided by a seed."""

    def __init__(self, lied_to: Lake, honest: Lake, random: Random, settle: Callable[[], None]):
        self._honest = honest
        self._random = random
        self._settle = settle
        self._name = f"lied_to_{uuid4().hex}"
        self._tables = lied_to.tables
        self._next = 0
        self._rows: Rows = {}
        self.seen: Counter[str] = Counter()
        honest.tables.create_table(
            self._name, {"id": "long", "value": "long"}, properties=PROPERTIES
        )
        self._writer: IcebergTableWriter = writer_for(lied_to, self._name, retry=RETRY)
        self._insert_honestly()

    def run(self) -> None:
        """Make one change, and look what became of it."""
        change = self._random.choice(
            [
                self._write_batch,
                self._write_batch,
                self._transaction,
                self._transaction,
                self._insert,
                self._update,
                self._delete,
                self._upsert,
            ]
        )
        wanted, make = change()
        try:
            make()
        except (Conflict, Unavailable) as error:
            self.seen[type(error).__name__] += 1
        except UnknownOutcome:
            self._settle()
            came_true = self._found() == sorted(wanted.items())
            self.seen["unknown, and was made" if came_true else "unknown, and was not"] += 1
            self._rows = wanted if came_true else self._rows
        else:
            self.seen[change.__name__.strip("_")] += 1
            self._rows = wanted
        self._require_rows()
        self._interfere()

    def end(self) -> None:
        """All that is to come has come: nothing of it counts twice."""
        self._settle()
        self._require_rows()
        self._writer.close()
        table = self._honest.catalog.load_table(self._name)
        for path in referred_files(table.io, table.metadata.snapshots):
            assert table.io.new_input(path).exists(), path

    def _require_rows(self) -> None:
        assert self._found() == sorted(self._rows.items())

    def _found(self) -> list[tuple[int, int]]:
        rows = self._honest.catalog.load_table(self._name).scan().to_arrow().to_pylist()
        return sorted((row["id"], row["value"]) for row in rows)

    def _new(self, count: int) -> Rows:
        first, self._next = self._next, self._next + count
        return dict.fromkeys(range(first, first + count), self._random.randrange(10))

    def _write_batch(self) -> tuple[Rows, Callable[[], object]]:
        new = self._new(2)
        return self._rows | new, lambda: self._writer.write_batch(listed(new))

    def _transaction(self) -> tuple[Rows, Callable[[], object]]:
        """Committed as often as it takes, or rolled back after some tries."""
        first, second = self._new(2), self._new(1)

        def make() -> None:
            transaction = self._writer.begin_transaction()
            self._writer.write_batch(listed(first), transaction)
            self._writer.write_batch(listed(second), transaction)
            self._change_aside()
            for _ in range(COMMIT_MAX):
                try:
                    self._writer.commit_transaction(transaction)
                except (Conflict, Unavailable, UnknownOutcome):
                    if self._random.random() < 0.3:
                        self._roll_back(transaction)
                        return
                else:
                    return
            raise AssertionError(f"not committed in {COMMIT_MAX} calls")

        return self._rows | first | second, make

    def _roll_back(self, transaction: str) -> None:
        """Raises Conflict for what is rolled back, as a commit that has changed nothing does."""
        try:
            self._writer.rollback_transaction(transaction)
        except Conflict:
            return  # It had been committed.
        except Unavailable as error:
            raise UnknownOutcome("nobody knows yet", hint="") from error
        raise Conflict("rolled back", hint="")

    def _insert(self) -> tuple[Rows, Callable[[], object]]:
        new = self._new(2)
        return self._rows | new, lambda: self._tables.insert_data(self._name, listed(new))

    def _update(self) -> tuple[Rows, Callable[[], object]]:
        wanted = {key: value + 1 for key, value in self._rows.items()}
        more = {"value": Expression("value + 1")}
        return wanted, lambda: self._tables.update_data(self._name, more)

    def _delete(self) -> tuple[Rows, Callable[[], object]]:
        gone = self._random.choice(list(self._rows))
        wanted = {key: value for key, value in self._rows.items() if key != gone}
        return wanted, lambda: self._tables.delete_data(self._name, f"id = {gone}")

    def _upsert(self) -> tuple[Rows, Callable[[], object]]:
        known = self._random.choice(list(self._rows))
        new = {known: 100 + self._random.randrange(10), **self._new(1)}
        return self._rows | new, lambda: self._tables.upsert_data(
            self._name, listed(new), keys=["id"]
        )

    def _interfere(self) -> None:
        """Do what others do meanwhile, or nothing."""
        if not self._rows or self._random.random() < 0.3:
            self._insert_honestly()
        elif self._random.random() < 0.5:
            self._change_aside()

    def _change_aside(self) -> None:
        """What others do and no row shows."""
        tables = self._honest.tables
        others: list[Callable[[], Any]] = [
            lambda: tables.add_column(self._name, f"c{uuid4().hex[:8]}", "string"),
            lambda: tables.expire_snapshots(self._name, older_than_days=0),
            lambda: None,
        ]
        self._random.choice(others)()

    def shorten_history(self) -> None:
        """Others commit, compact perhaps, and keep nothing but the newest snapshot."""
        if self._random.random() < 0.4:
            return
        table = self._honest.catalog.load_table(self._name)
        if self._random.random() < 0.5:
            compact(table)
            table.refresh()
        TableCommit(table).attempt(Edit())
        self._honest.tables.expire_snapshots(self._name, older_than_days=0)
        self.seen["history shortened"] += 1

    def _insert_honestly(self) -> None:
        new = self._new(3)
        self._honest.tables.insert_data(self._name, listed(new))
        self._rows |= new


def compact(table: Table) -> None:
    old = [task.file for task in table.scan().plan_files()]
    rows = table.scan().to_arrow_batch_reader()
    new = write_data_files(table, rows, operation_id=new_operation_id("compact"))
    TableCommit(table).attempt(Edit(added=new, removed=old))


def listed(rows: Rows) -> list[dict[str, int]]:
    return [{"id": key, "value": value} for key, value in rows.items()]


@RUNS
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "rest"])
def test_changes_over_a_catalog_that_lies(
    catalog_settings: MakeCatalogSettings, kind: str, runs: int
) -> None:
    told: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    settings = catalog_settings(kind)
    with Lake(settings) as lied_to, Lake(settings) as honest:
        for first in range(0, runs, RUNS_PER_TABLE):
            with unreliable(lied_to.catalog, Random(first + 1)) as liar:
                story = Story(lied_to, honest, Random(first), liar.apply_late)
                liar.meanwhile = story.shorten_history
                for _ in range(RUNS_PER_TABLE):
                    story.run()
                story.end()
            told += liar.told
            seen += story.seen
    print(f"{kind}: {runs} runs, answered {dict(told)}, seen {dict(seen)}")
    assert told["came true late"]
    assert seen["history shortened"]


@FEW_RUNS
def test_changes_over_connections_that_lie(wire: Wire, runs: int) -> None:
    lies = 0
    seen: Counter[str] = Counter()
    # What comes late has come by then.
    settle = partial(time.sleep, 2 * SLOW_SECONDS)
    with Lake(wire.honest) as honest, Lake(wire.settings) as lied_to:
        for first in range(0, runs, RUNS_PER_TABLE):
            random = Random(first)
            story = Story(lied_to, honest, random, settle)
            for _ in range(RUNS_PER_TABLE):
                for fault, when in random.choices(wire.lies, k=random.randint(0, 3)):
                    wire.faults.inject(fault, when=when)
                story.run()
            lies += wire.faults.taken
            wire.faults.clear()
            story.end()
            seen += story.seen
    print(f"{wire.settings.catalog.type}: {runs} runs, {lies} lies, seen {dict(seen)}")
    assert lies > runs / 2
