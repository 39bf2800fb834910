"""Two writers that feed one table at once: each offset is there once, whoever was faster.

The same with Spark at work on the table: compaction, MERGE and DELETE.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from random import Random

import pytest

from calve.errors import Conflict
from calve.lake import Lake
from calve.settings import Settings
from calve.tables.catalog import LakeCatalog
from calve.tables.expiry import clear_away
from calve.tables.positions import committed_position
from tests.fakes import feed as feeding
from tests.fakes.feed import feed, log_range, make_table, parcel

WRITERS = 2
ROUND = 10  # offsets
KEPT_SNAPSHOTS = 10
ENOUGH_FOR_SPARK = 50  # before it merges and deletes some of them


class Race:
    """Writers that commit the same ranges, all at the same moment, until somebody says enough."""

    def __init__(self, settings: Settings, is_over: Callable[[int], bool]) -> None:
        self._settings = settings
        self._rounds = 0
        self._is_over = False
        # Decided once for all of them, who would wait for each other else.
        self._start_together = threading.Barrier(WRITERS, lambda: self._decide(is_over))
        # For each writer, whether it was the one that committed the range of a round.
        self.won: list[list[bool]] = [[] for _ in range(WRITERS)]

    def _decide(self, is_over: Callable[[int], bool]) -> None:
        self._is_over = is_over(self._rounds)
        self._rounds += 1

    def run(self, writer: int) -> None:
        try:
            with LakeCatalog(self._settings) as catalog:
                for start in count(step=ROUND):
                    table = catalog.load_table("t")
                    sent = parcel(table, log_range(start, start + ROUND))
                    self._start_together.wait(60)
                    if self._is_over:
                        clear_away(table.io, [file.file_path for file in sent.files])
                        return
                    self.won[writer].append(sent.send(table).is_new)
        except BaseException:
            # Whoever fails holds up nobody.
            self._start_together.abort()
            raise

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(WRITERS) as pool:
            writers = [pool.submit(self.run, writer) for writer in range(WRITERS)]
            yield
            for each in writers:
                each.result()

    def require_one_winner_each(self) -> int:
        """How many offsets there are."""
        first, second = map(sum, self.won)
        print(f"{first + second} rounds, won {first} to {second}")
        assert all(sum(each) == 1 for each in zip(*self.won, strict=True))
        return ROUND * (first + second)


@pytest.mark.parametrize("rounds", [50, pytest.param(1000, marks=pytest.mark.torture)])
def test_two_writers_that_commit_the_same_ranges(lake: Lake, rounds: int) -> None:
    make_table(lake.catalog)
    race = Race(lake.settings, lambda done: done == rounds)
    with race.running():
        pass
    assert race.require_one_winner_each() == ROUND * rounds
    table = lake.catalog.load_table("t")
    feeding.require_each_once(table, ROUND * rounds)
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
@pytest.mark.parametrize("turns", [1, pytest.param(120, marks=pytest.mark.torture)])
def test_two_writers_of_the_same_ranges_while_spark_compacts_merges_and_deletes(
    spark_lake: Lake, mode: str, turns: int
) -> None:
    # Serializable, they would refuse every append that comes meanwhile; and they look back over
    # all snapshots since they began.
    lenient = {
        f"write.{what}.{key}": value
        for what in ("delete", "merge")
        for key, value in (("isolation-level", "snapshot"), ("mode", mode))
    }
    fed = {"calve.topic": "default.default.t", "calve.snapshots.keep": "200"}
    make_table(spark_lake.catalog, lenient | fed)
    is_begun, is_over = threading.Event(), threading.Event()

    def pause(rounds: int) -> bool:
        if ROUND * rounds >= ENOUGH_FOR_SPARK:
            is_begun.set()
        return is_over.wait(0.05)

    race = Race(spark_lake.settings, pause)
    deleted: set[int] = set()
    beside: list[int] = []
    with race.running():
        try:
            assert is_begun.wait(120)
            for turn in range(turns):
                before = len(race.won[0])
                deleted |= work_with_spark(spark_lake, turn)
                beside.append(len(race.won[0]) - before)
        finally:
            is_over.set()
    table = spark_lake.catalog.load_table("t")
    end = race.require_one_winner_each()
    print(
        f"{turns} turns of Spark, {end} offsets, {len(deleted)} deleted, {min(beside)} to {max(beside)} rounds beside each turn"
    )
    assert min(beside) > 0
    assert deleted
    assert feeding.position(table).offset == end
    assert Counter(feeding.offsets(table)) == Counter(set(range(end)) - deleted)
    assert "merged" in table.scan().to_arrow()["value"].to_pylist()
    feeding.require_readable(table)
    require_removals_known(spark_lake, deleted, end)


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
