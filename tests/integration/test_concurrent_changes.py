"""Eight writers and four readers on one table: no update is lost, readers see whole snapshots."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from calve.changes import Expression, delete_rows, insert_rows, update_rows, upsert_rows
from calve.changes.turns import TURNS
from calve.lake import Lake
from calve.settings import load_settings
from calve.tables.schemas import define_table
from tests.forks import FORKS

WRITERS, READERS = 8, 4


class Event(Protocol):
    def set(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...


# From one row to the other: in every snapshot the two add up to the same.
MOVED = Expression("CASE WHEN id = 0 THEN n + 1 ELSE n - 1 END")
TOTAL = 1000


@pytest.fixture
def accounts(lake: Lake) -> Lake:
    """Two rows that all writers change, each together with the other."""
    lake.catalog.create_table("t", define_table({"id": "long", "n": "long"}).schema)
    insert_rows(lake.catalog, "t", [{"id": 0, "n": 0}, {"id": 1, "n": TOTAL}])
    return lake


def write(lake: Lake, number: int, rounds: int) -> None:
    own = 100 + number
    for turn in range(rounds):
        assert update_rows(lake.catalog, "t", {"n": MOVED}, "id IN (0, 1)").updated_rows == 2
        insert_rows(lake.catalog, "t", [{"id": own, "n": turn}])
        upserted = upsert_rows(lake.catalog, "t", [{"id": own, "n": -turn - 1}], ["id"])
        assert (upserted.updated_rows, upserted.inserted_rows) == (1, 0)
        assert delete_rows(lake.catalog, "t", f"id = {own}").deleted_rows == 1


def read(lake: Lake, is_over: Event) -> int:
    seen = 0
    while not is_over.wait(0.02):
        rows = lake.tables.query_table("t").to_arrow().to_pylist()
        assert sum(row["n"] for row in rows if row["id"] < 100) == TOTAL
        seen += 1
    return seen


def require_moved(lake: Lake, moved: int) -> None:
    rows = lake.catalog.load_table("t").scan().to_arrow().to_pylist()
    assert {row["id"]: row["n"] for row in rows} == {0: moved, 1: TOTAL - moved}


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.torture)])
def test_no_update_is_lost(accounts: Lake, rounds: int) -> None:
    is_over = threading.Event()
    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        readers = [pool.submit(read, accounts, is_over) for _ in range(READERS)]
        writers = [pool.submit(write, accounts, number, rounds) for number in range(WRITERS)]
        try:
            for writer in writers:
                writer.result()
        finally:
            is_over.set()
        assert all(reader.result() for reader in readers)
    require_moved(accounts, WRITERS * rounds)


def write_alone(data: str, number: int, rounds: int, began: Barrier) -> None:
    """One of several processes."""
    with Lake(load_settings(flags={"data": data}, environ={}).settings) as lake:
        began.wait(60)
        write(lake, number, rounds)


def read_alone(data: str, began: Barrier, is_over: Event) -> None:
    with Lake(load_settings(flags={"data": data}, environ={}).settings) as lake:
        began.wait(60)
        assert read(lake, is_over)


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.torture)])
def test_no_update_of_several_processes_is_lost(accounts: Lake, rounds: int) -> None:
    data = str(accounts.settings.data)
    began, is_over = FORKS.Barrier(WRITERS + READERS), FORKS.Event()
    writers = [
        FORKS.Process(target=write_alone, args=(data, number, rounds, began))
        for number in range(WRITERS)
    ]
    readers = [
        FORKS.Process(target=read_alone, args=(data, began, is_over)) for _ in range(READERS)
    ]
    for process in (*writers, *readers):
        process.start()
    try:
        for process in writers:
            process.join(120 * rounds)
    finally:
        is_over.set()
    for process in readers:
        process.join(60)
    assert [process.exitcode for process in (*writers, *readers)] == [0] * (WRITERS + READERS)
    require_moved(accounts, WRITERS * rounds)


def test_changes_of_one_process_never_stand_in_each_others_way(lake: Lake) -> None:
    defined = define_table({"id": "long", "n": "long"})
    lake.catalog.create_table("t", defined.schema, properties={"commit.retry.num-retries": "0"})
    insert_rows(lake.catalog, "t", [{"id": 0, "n": 0}])

    def count_up() -> None:
        for _ in range(3):
            update_rows(lake.catalog, "t", {"n": Expression("n + 1")})

    with ThreadPoolExecutor(WRITERS) as pool:
        for writer in [pool.submit(count_up) for _ in range(WRITERS)]:
            writer.result()
    assert lake.catalog.load_table("t").scan().to_arrow()["n"].to_pylist() == [3 * WRITERS]


def test_appends_and_readers_take_no_turn(lake: Lake) -> None:
    table = lake.catalog.create_table("t", define_table({"id": "long"}).schema)
    insert_rows(lake.catalog, "t", [{"id": 0}])
    with ThreadPoolExecutor(2) as pool:
        with TURNS.turn(table.metadata.table_uuid):
            waiting = pool.submit(delete_rows, lake.catalog, "t", "id = 0")
            pool.submit(insert_rows, lake.catalog, "t", [{"id": 1}]).result(30)
            assert lake.catalog.load_table("t").scan().to_arrow().num_rows == 2
            assert not waiting.done()
        assert waiting.result().deleted_rows == 1
