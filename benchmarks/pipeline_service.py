"""The whole service: how long rows take to their table, and what memory a backlog takes.

    python -m benchmarks.pipeline_service                  50,000 rows/s for 120 s; 20 GiB
    python -m benchmarks.pipeline_service --quick          for 20 s; 1 GiB

The claims: at 50,000 rows a second, the p99 from a row's acknowledgement until its commit is at
most the flush age and 2 s; a backlog of 20 GiB of the log comes to its table with the driver below
1.5 GiB, each Python worker below 768 MiB and the JVM's heap as it is set. `calve up` in processes
of its own, on SQLite, a local disk and `local[2]`; the producer runs beside it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections import deque
from contextlib import closing
from pathlib import Path
from uuid import UUID

import numpy as np
import psutil

from benchmarks.pipeline import COLUMNS, some_rows
from calve import Client
from calve.ingest import Intake
from calve.model import TableName
from calve.settings import Settings
from calve.state import State, open_state
from calve.topics import TopicRegistry, TopicSpec
from tests.services import Up, settings_of, up

TOPIC = TableName.parse("events")
RATE = 50_000
BATCH_ROWS = 500
BACKLOG_BATCH_ROWS = 10_000
GIB = 1 << 30
MIB = 1 << 20
SETS = ("--set", "wal.free_bytes_min=0", "--set", "spark.master=local[2]")


class Arrivals:
    """When each batch was acknowledged, and how long it then took to its table."""

    def __init__(self, state: State, topic_id: UUID) -> None:
        self._state = state
        self._topic_id = topic_id
        self._acknowledged: deque[tuple[int, float]] = deque()
        self._ended = threading.Event()
        self.seconds: list[float] = []
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()

    def acknowledged(self, end: int) -> None:
        self._acknowledged.append((end, time.monotonic()))

    def end(self) -> None:
        self._ended.set()
        self._watching.join()

    def _watch(self) -> None:
        while self._acknowledged or not self._ended.is_set():
            time.sleep(0.02)
            found = self._state.committed(self._topic_id, 0)
            now = time.monotonic()
            while found and self._acknowledged and self._acknowledged[0][0] <= found.offset:
                self.seconds.append(now - self._acknowledged.popleft()[1])


def send(client: Client, arrivals: Arrivals | None, seconds: float) -> None:
    """So many rows a second, whatever becomes of those before."""
    random = np.random.default_rng(1)
    batches = [some_rows(random, n * BATCH_ROWS, BATCH_ROWS) for n in range(20)]
    begun = time.monotonic()
    for number in range(int(seconds * RATE / BATCH_ROWS)):
        time.sleep(max(0.0, begun + number * BATCH_ROWS / RATE - time.monotonic()))
        delivery = client.produce(str(TOPIC), batches[number % len(batches)])
        if arrivals is not None:
            delivery.add_done_callback(lambda done: arrivals.acknowledged(done.result().end or 0))
    client.flush()


def steady(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory, "data")
        settings = settings_of(data)
        with (
            up(data, *SETS, only=None) as service,
            closing(open_state(settings)) as state,
            Client(service.addresses()["flight"], batch_rows_max=BATCH_ROWS) as client,
        ):
            client.create_topic(str(TOPIC), schema=COLUMNS)
            topic_id = TopicRegistry(state).topic(TOPIC).id
            send(client, None, 10)  # Spark's start and its first jobs
            arrivals = Arrivals(state, topic_id)
            begun = time.monotonic()
            send(client, arrivals, seconds)
            took = time.monotonic() - begun
            arrivals.end()
    age = settings.pipeline.flush_interval_ms / 1000
    p50, p99 = (statistics.quantiles(arrivals.seconds, n=100)[each] for each in (49, 98))
    print(
        f"{len(arrivals.seconds) * BATCH_ROWS / took:,.0f} rows/s for {took:.0f} s, from "
        f"acknowledged to committed: p50 {p50:.2f} s, p99 {p99:.2f} s (at most {age + 2:.0f} s), "
        f"longest {max(arrivals.seconds):.2f} s"
    )


def fill(settings: Settings, log_bytes: int) -> int:
    """A log of so many bytes, its end; made once if the directory is kept."""
    random = np.random.default_rng(0)
    batches = [some_rows(random, n * BACKLOG_BATCH_ROWS, BACKLOG_BATCH_ROWS) for n in range(100)]
    count = log_bytes // statistics.mean(batch.nbytes for batch in batches)
    with Intake(settings) as intake:
        intake.create_topic(TOPIC, TopicSpec(schema=COLUMNS))
        for number in range(int(count)):
            last = intake.submit(TOPIC, batches[number % len(batches)])
            if number % len(batches) == 0:
                last.wait()
        return last.wait().end or 0


class Memory(threading.Thread):
    """The most that each of the pipeline's processes has held, as the system counts it."""

    def __init__(self, service: Up) -> None:
        super().__init__()
        self._service = service
        self._ended = threading.Event()
        self.most: dict[str, int] = {}

    def run(self) -> None:
        while not self._ended.wait(0.2):
            pid = self._service.pipeline_pid
            if pid is not None:
                self._look(psutil.Process(pid))

    def end(self) -> None:
        self._ended.set()
        self.join()

    def _look(self, driver: psutil.Process) -> None:
        self._note("driver", driver)
        for each in driver.children(recursive=True):
            try:
                is_java = "java" in each.name()
            except psutil.NoSuchProcess:
                continue
            self._note("JVM" if is_java else "Python worker", each)

    def _note(self, name: str, process: psutil.Process) -> None:
        try:
            found = process.memory_full_info()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return
        for kind, size in (("", found.rss), (", its own", found.uss)):
            self.most[name + kind] = max(self.most.get(name + kind, 0), size)


def memory(log_bytes: int, directory: Path) -> None:
    settings = settings_of(directory / "data", wal__free_bytes_min=0, wal__sync_mode="none")
    begun = time.monotonic()
    end = fill(settings, log_bytes)
    print(f"{end:,} rows appended in {time.monotonic() - begun:.0f} s", flush=True)
    with closing(open_state(settings)) as state, up(settings.data, *SETS, only=None) as service:
        topic_id = TopicRegistry(state).topic(TOPIC).id
        service.addresses()
        watching = Memory(service)
        watching.start()
        begun = time.monotonic()
        offset = 0
        while offset < end:
            time.sleep(1)
            found = state.committed(topic_id, 0)
            offset = found.offset if found else 0
        took = time.monotonic() - begun
        watching.end()
    print(f"{log_bytes / GIB:.1f} GiB, {end:,} rows committed in {took:.0f} s: {end / took:,.0f}/s")
    for name, size in sorted(watching.most.items()):
        print(f"{name:<24} {size / MIB:>7,.0f} MiB at most")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--only", choices=["steady", "memory"])
    arguments.add_argument("--bytes", type=int, help="of the log, for memory")
    given = arguments.parse_args()
    if given.only in {None, "steady"}:
        steady(20 if given.quick else 120)
    if given.only in {None, "memory"}:
        with tempfile.TemporaryDirectory() as directory:
            memory(given.bytes or (GIB if given.quick else 20 * GIB), Path(directory))


if __name__ == "__main__":
    main()
