"""Fresh SQL while producers write, a pipeline on Spark commits, Spark compacts and the log is
trimmed: every answer has the acknowledged rows, each once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from calve.pipeline.job import run_pieces
from calve.pipeline.pipeline import Pipeline
from calve.query.queries import Queries, Question
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.topic_site import TopicSite, topic_site

FLAGS: dict[str, Any] = {
    "wal__free_bytes_min": 0,
    "wal__hot_window_seconds": 0,
    "pipeline__flush_interval_ms": 1,
    "spark__master": "local[2]",
    **QUICK_RETRIES,
}
PRODUCERS = 2
BATCH_ROWS = 3
TABLE = "default.default.orders"
QUESTION = (
    "SELECT producer, count(*) AS rows, sum(n) AS total, count(DISTINCT n) AS different, "
    "count(DISTINCT _calve_offset) AS offsets, sum(_calve_offset) AS offset_total "
    "FROM orders GROUP BY producer"
)


@dataclass
class Bustle:
    """What goes on around the questions, each in a thread, and how often it was done."""

    site: TopicSite
    compaction_pause_seconds: float
    cycle_pause_seconds: float = 0.02
    stop: threading.Event = field(default_factory=threading.Event)
    done: Counter[str] = field(default_factory=Counter)
    failed: list[BaseException] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=lambda: [0] * PRODUCERS)

    def produce(self, producer: int) -> None:
        """Rows that the producer counts; a row's number is known when it is acknowledged."""
        first = self.acknowledged[producer]
        numbers = list(range(first, first + BATCH_ROWS))
        rows = pa.record_batch({"producer": [producer] * BATCH_ROWS, "n": numbers})
        self.site.intakes[0].submit(self.site.name, rows).wait()
        self.acknowledged[producer] = first + BATCH_ROWS

    def commit(self) -> None:
        self.site.pipeline.run_cycle()
        before = self.site.intakes[0].offsets(self.site.name).first
        self.site.trim()
        self.done["trims"] += self.site.intakes[0].offsets(self.site.name).first > before

    def compact(self) -> None:
        call = (
            f"CALL system.rewrite_data_files(table => '{TABLE}', options => "
            "map('min-input-files', '2', 'partial-progress.enabled', 'false'))"
        )
        try:
            (rewritten,) = self.site.lake.spark().sql(call).collect()
        except Exception as error:
            # Whoever comes too late with a compaction does it again.
            if "commit" not in str(error).lower():
                raise
            self.done["compactions too late"] += 1
        else:
            self.done["compactions"] += rewritten.rewritten_data_files_count > 0

    @contextmanager
    def going_on(self) -> Iterator[None]:
        works: list[tuple[str, Callable[[], object], float]] = [
            *((f"batches of {n}", lambda n=n: self.produce(n), 0.01) for n in range(PRODUCERS)),
            ("cycles", self.commit, self.cycle_pause_seconds),
            ("calls for compaction", self.compact, self.compaction_pause_seconds),
        ]
        threads = [threading.Thread(target=self._repeat, args=work) for work in works]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self.stop.set()
            for each in threads:
                each.join()
        assert not self.failed, self.failed

    def _repeat(self, name: str, act: Callable[[], object], pause_seconds: float) -> None:
        try:
            while not self.stop.is_set():
                act()
                self.done[name] += 1
                self.stop.wait(pause_seconds)
        except BaseException as error:  # noqa: BLE001
            self.failed.append(error)


def require_exact(rows: list[dict[str, Any]], end: int, before: list[int]) -> None:
    """Each producer's rows are all that it had counted and had acknowledged, or more, each once."""
    found = {row["producer"]: row for row in rows}
    assert set(found) == set(range(PRODUCERS))
    for producer, row in found.items():
        count = row["rows"]
        assert count >= before[producer], (row, before)
        assert row["total"] == count * (count - 1) // 2, row
        assert row["different"] == row["offsets"] == count, row
    assert sum(row["rows"] for row in rows) == end
    assert sum(row["offset_total"] for row in rows) == end * (end - 1) // 2


def ask_in_turns(site: TopicSite, queries: Queries, number: int) -> tuple[list[Any], int]:
    """In a program, and as the service does: the rows, and the offset that they are as of."""
    if number % 2:
        rows = site.lake.sql(QUESTION)
        return list(rows), rows.as_of[0].durable[0]
    answer = queries.ask(Question(QUESTION))
    found = [row for batch in answer.batches() for row in batch.to_pylist()]
    return found, answer.as_of[0].durable[0]


def commit_on_spark(site: TopicSite) -> None:
    """Have Spark's tasks write the files, which in this process takes a tenth of the time."""
    site.pipeline.close()
    site.pipeline = Pipeline(
        site.settings,
        state=site.state,
        catalog=site.lake.catalog,
        session=site.lake.spark(),
        run_pieces=run_pieces,
    )


def ask_all(site: TopicSite, bustle: Bustle, answers: int) -> str:
    """Ask until there were enough answers, and Spark has compacted and the log been trimmed."""
    started, given, end = time.monotonic(), 0, 0
    with closing(Queries(site.settings, lambda: site.lake.catalog)) as queries, bustle.going_on():
        while given < answers or not (bustle.done["compactions"] and bustle.done["trims"]):
            before = list(bustle.acknowledged)
            rows, end = ask_in_turns(site, queries, given)
            require_exact(rows, end, before)
            given += 1
            assert not bustle.failed, bustle.failed
    took = time.monotonic() - started
    return f"{given:,} answers exact in {took:.0f} s, the last of {end:,} rows; {dict(bustle.done)}"


@pytest.mark.parametrize(
    ("answers", "is_on_spark"),
    [(20, False), pytest.param(10_000, True, marks=pytest.mark.torture)],
)
def test_every_answer_is_exact_while_spark_compacts_and_the_log_is_trimmed(
    make_settings: MakeSettings,
    spark_running: None,
    capsys: pytest.CaptureFixture[str],
    answers: int,
    is_on_spark: bool,
) -> None:
    with topic_site(make_settings(**FLAGS)) as site:
        if is_on_spark:
            commit_on_spark(site)
        # Whoever ends the short form waits for the compaction that is under way. In the long one
        # they come in hundreds, with room for answers between.
        bustle = (
            Bustle(site, compaction_pause_seconds=2, cycle_pause_seconds=0.2)
            if is_on_spark
            else Bustle(site, compaction_pause_seconds=60)
        )
        for producer in range(PRODUCERS):
            bustle.produce(producer)
        site.commit()
        told = ask_all(site, bustle, answers)
        with capsys.disabled():
            print(f"\n{told}")
