"""Many topics in one cycle of the pipeline, one table that fails among others, and doing nothing.

    python -m benchmarks.pipeline_topics                100 and 1,000 topics, 3 x 40 s and 30 s
    python -m benchmarks.pipeline_topics --quick        25 and 100 topics, 10 s and 10 s

The claims: 1,000 topics with 100 rows each are committed in one cycle of at most 60 s, and a topic
of a thousand costs what one of a hundred does; one table among 50 whose catalog or whose store
fails leaves the others' p99 from acknowledgement to commit at most 1.2 times what it is without;
an idle pipeline with 1,000 topics takes less than 3 % of one core, its JVM and its Python workers
included. On SQLite, a local disk and `local[2]`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pyarrow as pa
from pyiceberg.table import Table

from calve.errors import Unavailable
from calve.ingest import Intake
from calve.lake import Lake
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.settings import Settings, load_settings
from calve.state import State, open_state
from calve.tables.catalog import LakeCatalog

ROWS = 100
TABLES = 50
BATCH = pa.record_batch(
    {"id": list(range(ROWS)), "name": [f"n{n}" for n in range(ROWS)], "value": [0.5] * ROWS}
)


@contextmanager
def lake(**flags: Any) -> Iterator[tuple[Lake, Intake, State]]:
    with tempfile.TemporaryDirectory() as data:
        given = {"data": data, "spark.master": "local[2]", "wal.free_bytes_min": 0, **flags}
        settings: Settings = load_settings(flags=given, environ={}).settings
        state = open_state(settings)
        with Lake(settings) as opened, Intake(settings) as intake:
            opened.spark()
            yield opened, intake, state
        state.close()


def names(count: int) -> list[TableName]:
    return [TableName.parse(f"t{number}") for number in range(count)]


def send(intake: Intake, topics: list[TableName]) -> None:
    for handle in [intake.submit(topic, BATCH) for topic in topics]:
        handle.wait()


def cycle(pipeline: Pipeline, rows: int) -> tuple[float, int]:
    """Seconds until all of them are committed, and how many cycles that took."""
    seconds, cycles = 0.0, 0
    while rows:
        begun = time.perf_counter()
        report = pipeline.run_cycle()
        if report.commits:
            seconds += time.perf_counter() - begun
            cycles += 1
            rows -= report.rows
    return seconds, cycles


def many_topics(count: int) -> None:
    with lake(**{"pipeline.flush_interval_ms": 1}) as (opened, intake, state):
        pipeline = Pipeline(opened.settings, opened.spark(), state, opened.catalog)
        send(intake, names(1))
        cycle(pipeline, ROWS)  # Spark's first job
        topics = names(count + 1)[1:]
        for what in ("with new tables", "once more", "once more"):
            send(intake, topics)
            used = time.process_time()
            seconds, cycles = cycle(pipeline, ROWS * count)
            used = time.process_time() - used
            print(
                f"{count:5} topics, {what}: {seconds:6.2f} s in {cycles} cycles, "
                f"{1000 * seconds / count:5.1f} ms each, {1000 * used / count:5.1f} ms of them "
                "the driver's",
                flush=True,
            )
        pipeline.close()


class FailingCatalog(LakeCatalog):
    """One of its tables hangs for a while, then fails, each time."""

    def __init__(self, settings: Settings, failing: TableName | None) -> None:
        super().__init__(settings)
        self._failing = failing

    def find_table(self, name: TableName | str) -> Table | None:
        if name == self._failing:
            time.sleep(5)
            raise Unavailable("the catalog does not answer")
        return super().find_table(name)


def one_round(intake: Intake, state: State, known: dict[TableName, UUID]) -> list[float]:
    """Seconds from acknowledgement to commit of a batch of each topic, the first one's apart."""
    times = []
    ends = {topic: intake.submit(topic, BATCH).wait().end or 0 for topic in known}
    begun = time.monotonic()
    missing = list(known)[1:]
    while missing:
        time.sleep(0.01)
        for topic in list(missing):
            found = state.committed(known[topic], 0)
            if found is not None and found.offset >= ends[topic]:
                times.append(time.monotonic() - begun)
                missing.remove(topic)
    return times


def break_store(catalog: LakeCatalog, topic: TableName) -> None:
    """No task can write the table's data files from now on: their directory is none any more."""
    data = Path(catalog.load_table(topic).location().removeprefix("file://")) / "data"
    data.rename(data.with_name("aside"))
    data.touch()


def times_beside(seconds: float, fails: str) -> list[float]:
    """Seconds from acknowledgement to commit, of the tables that are well; `fails` what fails."""
    topics = names(TABLES)
    times: list[float] = []
    # Each round is small; what is measured is not how a trickle slows down.
    flags = {"pipeline.flush_interval_ms": 1000, "pipeline.freshness_ms": 1000}
    with lake(**flags) as (opened, intake, state):
        failing = topics[0] if fails == "catalog" else None
        with FailingCatalog(opened.settings, failing) as catalog:
            pipeline = Pipeline(opened.settings, opened.spark(), state, catalog)
            stop = threading.Event()
            running = threading.Thread(target=pipeline.run, args=(stop,))
            running.start()
            send(intake, topics)
            known = {topic: intake.topics.topic(topic).id for topic in topics}
            if fails == "store":
                intake.flush(topics[0], 120)
                break_store(catalog, topics[0])
            for _ in range(2):  # Spark's first job, and the first failure
                one_round(intake, state, known)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                times += one_round(intake, state, known)
            stop.set()
            running.join()
            pipeline.close()
    return times


def p99s(turns: int, seconds: float) -> dict[str, float]:
    """With what fails, and nothing; they take turns, so that all of them meet a slow minute."""
    times: dict[str, list[float]] = {"": [], "catalog": [], "store": []}
    for _ in range(turns):
        for fails in times:
            times[fails] += times_beside(seconds, fails)
    return {fails: statistics.quantiles(found, n=100)[98] for fails, found in times.items()}


def used_seconds() -> dict[str, float]:
    """Processor time of this driver, of its JVM and of Spark's Python workers, also ended ones."""
    found = {"driver": 0.0, "JVM": 0.0, "workers": 0.0}
    driver = psutil.Process()
    for process in (driver, *driver.children(recursive=True)):
        try:
            is_jvm = process.name().startswith("java")
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        name = "driver" if process == driver else "JVM" if is_jvm else "workers"
        found[name] += times.user + times.system
        # What a process has waited for is its own no more, and nobody else's yet.
        found["workers"] += times.children_user + times.children_system
    return found


def idle(count: int, seconds: float) -> dict[str, float]:
    """The shares of one core that a pipeline and what it has started take with nothing to do."""
    with lake(**{"pipeline.flush_interval_ms": 1}) as (opened, intake, state):
        pipeline = Pipeline(opened.settings, opened.spark(), state, opened.catalog)
        send(intake, names(count))
        pipeline.drain(300)
        intake.close()
        stop = threading.Event()
        running = threading.Thread(target=pipeline.run, args=(stop,))
        running.start()
        time.sleep(2)
        begun = used_seconds()
        time.sleep(seconds)
        used = used_seconds()
        stop.set()
        running.join()
        pipeline.close()
    return {name: (used[name] - begun[name]) / seconds for name in used}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--only", choices=["topics", "failing", "idle"])
    given = arguments.parse_args()
    counts = (25, 100) if given.quick else (100, 1_000)
    if given.only in {None, "topics"}:
        for count in counts:
            many_topics(count)
    if given.only in {None, "failing"}:
        found = p99s(1 if given.quick else 3, 10 if given.quick else 40)
        without = found.pop("")
        for what, with_one in found.items():
            print(
                f"p99 of {TABLES} tables: {without:.2f} s, with one whose {what} fails "
                f"{with_one:.2f} s: {with_one / without:.2f} times",
                flush=True,
            )
    if given.only in {None, "idle"}:
        shares = idle(counts[-1], 10 if given.quick else 30)
        parts = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
        print(
            f"idle with {counts[-1]} topics: {100 * sum(shares.values()):.1f} % of one core "
            f"({parts}; wanted: < 3 %)"
        )


if __name__ == "__main__":
    main()
