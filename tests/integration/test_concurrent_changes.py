"""Eight writers and four readers on one table: no update is lost, readers see whole snapshots."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from calve.changes import Expression, delete_rows, insert_rows, update_rows, upsert_rows
from calve.changes.turns import TURNS
from calve.lake import Lake
from calve.tables.schemas import define_table

WRITERS, READERS = 8, 4


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.torture)])
def test_no_update_is_lost(lake: Lake, rounds: int) -> None:
    defined = define_table({"id": "long", "n": "long"})
    lake.catalog.create_table("t", defined.schema)
    insert_rows(lake.catalog, "t", [{"id": 0, "n": 0}, {"id": 1, "n": 1000}])
    is_over = threading.Event()

    def write(number: int) -> None:
        own = 100 + number
        for turn in range(rounds):
            # From one row to the other: in every snapshot the two add up to the same.
            moved = Expression("CASE WHEN id = 0 THEN n + 1 ELSE n - 1 END")
            assert update_rows(lake.catalog, "t", {"n": moved}, "id IN (0, 1)").updated_rows == 2
            insert_rows(lake.catalog, "t", [{"id": own, "n": turn}])
            upserted = upsert_rows(lake.catalog, "t", [{"id": own, "n": -turn - 1}], ["id"])
            assert (upserted.updated_rows, upserted.inserted_rows) == (1, 0)
            assert delete_rows(lake.catalog, "t", f"id = {own}").deleted_rows == 1

    def read() -> int:
        seen = 0
        while not is_over.is_set():
            rows = lake.catalog.load_table("t").scan().to_arrow().to_pylist()
            assert sum(row["n"] for row in rows if row["id"] < 100) == 1000
            seen += 1
        return seen

    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        readers = [pool.submit(read) for _ in range(READERS)]
        writers = [pool.submit(write, number) for number in range(WRITERS)]
        try:
            for writer in writers:
                writer.result()
        finally:
            is_over.set()
        assert all(reader.result() for reader in readers)
    rows = lake.catalog.load_table("t").scan().to_arrow().to_pylist()
    moved = WRITERS * rounds
    assert {row["id"]: row["n"] for row in rows} == {0: moved, 1: 1000 - moved}


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
