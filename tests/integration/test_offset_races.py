"""Two writers that feed one table at once: each offset is there once, whoever was faster.

The same with Spark at work on the table: compaction, MERGE and DELETE.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from calve.errors import Conflict
from calve.lake import Lake
from calve.settings import Settings
from calve.tables.catalog import LakeCatalog
from calve.tables.positions import committed_position
from tests.fakes import feed as feeding
from tests.fakes.feed import feed, log_range, make_table, parcel

WRITERS = 2
KEPT_SNAPSHOTS = 10
ENOUGH_FOR_SPARK = 50  # offsets, before it merges and deletes some of them


@pytest.mark.parametrize("rounds", [50, pytest.param(1000, marks=pytest.mark.torture)])
def test_two_writers_that_commit_the_same_ranges(lake: Lake, rounds: int) -> None:
    make_table(lake.catalog)
    start_together = threading.Barrier(WRITERS)

    def write() -> list[bool]:
        is_new = []
        with LakeCatalog(lake.settings) as catalog:
            for start in range(0, 10 * rounds, 10):
                table = catalog.load_table("t")
                sent = parcel(table, log_range(start, start + 10))
                start_together.wait(60)
                is_new.append(sent.send(table).is_new)
        return is_new

    with ThreadPoolExecutor(WRITERS) as pool:
        outcomes = [each.result() for each in [pool.submit(write) for _ in range(WRITERS)]]
    won = [sum(each) for each in outcomes]
    print(f"{rounds} rounds, won {won[0]} to {won[1]}")
    assert all(sum(each) == 1 for each in zip(*outcomes, strict=True))
    table = lake.catalog.load_table("t")
    feeding.require_each_once(table, 10 * rounds)
    assert len(feeding.data_files_on_disk(table)) == rounds


def feed_until(settings: Settings, seed: int, is_over: Callable[[int], bool]) -> Counter[str]:
    """Commit ranges as long as one likes, from wherever the table is."""
    random, seen = Random(seed), Counter[str]()
    with LakeCatalog(settings) as catalog:
        while True:
            table = catalog.load_table("t")
            found = committed_position(table, 0)
            start = found.offset if found else 0
            if is_over(start):
                return seen
            sent = parcel(table, log_range(start, start + random.randint(1, 20)))
            try:
                seen["committed" if sent.send(table).is_new else "was there"] += 1
            except Conflict:
                seen["did not follow"] += 1


@pytest.mark.parametrize("commits", [30, pytest.param(1000, marks=pytest.mark.torture)])
def test_two_writers_that_cut_the_log_differently(lake: Lake, commits: int) -> None:
    make_table(lake.catalog)
    end = 10 * commits
    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [
            pool.submit(feed_until, lake.settings, seed, lambda start: start >= end)
            for seed in range(WRITERS)
        ]
        seen = sum((each.result() for each in writers), Counter[str]())
    table = lake.catalog.load_table("t")
    print(f"{dict(seen)}")
    feeding.require_each_once(table, feeding.position(table).offset)
    assert len(feeding.data_files_on_disk(table)) == seen["committed"]


def work_with_spark(lake: Lake, turn: int) -> set[int]:
    """Rewrite, merge and delete while others commit; the offsets that were deleted."""
    spark = lake.spark()
    spark.sql(
        f"CALL {lake.settings.catalog.name}.system.rewrite_data_files(table => 't', "
        "options => map('min-input-files', '2', 'delete-file-threshold', '1'))"
    )
    end = feeding.position(lake.catalog.load_table("t")).offset
    spark.sql(
        f"MERGE INTO t USING (SELECT id FROM range({end})) s ON t._calve_offset = s.id "
        f"AND s.id % 3 = {turn % 3} WHEN MATCHED THEN UPDATE SET value = 'merged'"
    )
    spark.sql(f"DELETE FROM t WHERE _calve_offset < {end} AND _calve_offset % 7 = {turn % 7}")
    return {offset for offset in range(end) if offset % 7 == turn % 7}


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("turns", [1, pytest.param(10, marks=pytest.mark.torture)])
def test_two_writers_while_spark_compacts_merges_and_deletes(
    spark_lake: Lake, mode: str, turns: int
) -> None:
    # Serializable, they would refuse every append that comes meanwhile; and they look back over
    # all snapshots since they began.
    lenient = {
        f"write.{what}.{key}": value
        for what in ("delete", "merge")
        for key, value in (("isolation-level", "snapshot"), ("mode", mode))
    }
    fed = {"calve.topic": "default.default.t", "calve.snapshots.keep": "10000"}
    make_table(spark_lake.catalog, lenient | fed)
    is_begun, is_over = threading.Event(), threading.Event()

    def pause(start: int) -> bool:
        if start >= ENOUGH_FOR_SPARK:
            is_begun.set()
        return is_over.wait(0.1)

    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [
            pool.submit(feed_until, spark_lake.settings, seed, pause) for seed in range(WRITERS)
        ]
        try:
            assert is_begun.wait(120)
            deleted = [work_with_spark(spark_lake, turn) for turn in range(turns)]
        finally:
            is_over.set()
        seen = sum((each.result() for each in writers), Counter[str]())
    table = spark_lake.catalog.load_table("t")
    gone = {offset for each in deleted for offset in each}
    end = feeding.position(table).offset
    print(f"{turns} turns of Spark, {end} offsets, {len(gone)} deleted, {dict(seen)}")
    assert gone
    assert Counter(feeding.offsets(table)) == Counter(set(range(end)) - gone)
    assert "merged" in table.scan().to_arrow()["value"].to_pylist()
    feeding.require_readable(table)
    require_removals_known(spark_lake, gone, end)


def require_removals_known(lake: Lake, gone: set[int], end: int) -> None:
    """Also when the snapshots that took them out are forgotten by the commits that follow."""
    lake.spark().sql(
        f"ALTER TABLE t SET TBLPROPERTIES ('calve.snapshots.keep' = '{KEPT_SNAPSHOTS}')"
    )
    while len(lake.catalog.load_table("t").metadata.snapshots) > KEPT_SNAPSHOTS:
        end = feed(lake.catalog.load_table("t"), end, end + 1).position.offset
    found = lake.tables.verify_topic("t").partitions[0]
    assert found.is_sound
    assert sum(each.count for each in found.removed) == len(gone)
    assert gone <= {at for each in found.removed for at in range(each.first, each.end)}
