"""Many subscribers of one topic: one stalled, one from the start; the others and memory stay flat."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from calve import Client
from calve.client.subscription import ClientSubscription
from tests.servers.ingest import ROOT, IngestProcess

TEXT = "x" * 1_000
ROUND_ROWS = 10
HISTORY_BATCH_ROWS = 1_000
QUARTERS = 4


class Live:
    """Follows from the end on, acknowledges, and notes how late rows are."""

    def __init__(self, subscription: ClientSubscription, end: int) -> None:
        self.subscription = subscription
        self.delays: list[float] = []
        self.offsets: list[int] = []
        self._end = end
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while len(self.offsets) < self._end:
            batch = self.subscription.poll(30)
            assert batch is not None
            rows = batch.to_arrow()
            self.delays += [time.time() - sent for sent in rows["sent_at"].to_pylist()]
            self.offsets += rows["_calve_offset"].to_pylist()
            self.subscription.ack(batch)


class FromTheStart:
    """Reads all rows of before, again and again, while the others are live."""

    def __init__(self, url: str, rows: int) -> None:
        words = [sys.executable, "-m", "tests.integration.replaying", url, str(rows)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def end(self) -> int:
        """How often it has come to the end of them."""
        told, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0
        return int(told)


class Load(NamedTuple):
    """So many live subscribers, rounds of ten rows and pauses between them; rows of before."""

    subscribers: int
    rounds: int
    pause_seconds: float
    history_rows: int

    @property
    def live_rows(self) -> int:
        return self.rounds * ROUND_ROWS

    @property
    def all_rows(self) -> int:
        return self.history_rows + self.live_rows


def produced(client: Client, load: Load, service: IngestProcess) -> list[int]:
    """The memory of the service after each quarter of the live rows."""
    memory = []
    for number in range(1, load.rounds + 1):
        rows = [{"sent_at": time.time(), "text": TEXT} for _ in range(ROUND_ROWS)]
        client.produce("orders", rows).result()
        time.sleep(load.pause_seconds)  # they keep up: this is about one that does not
        if number % (load.rounds // QUARTERS) == 0:
            memory.append(service.anonymous_bytes)
    return memory


def subscribers(directory: Path, load: Load) -> str:
    flags = {"wal__free_bytes_min": 0, "reader__poll_interval_ms": 1000}
    with (
        IngestProcess(directory / "lake", **flags) as service,
        Client(service.url) as client,
        ExitStack() as opened,
    ):
        for _ in range(load.history_rows // HISTORY_BATCH_ROWS):
            rows = [{"sent_at": 0.0, "text": TEXT}] * HISTORY_BATCH_ROWS
            client.produce("orders", rows).result()

        def subscribe(name: str) -> ClientSubscription:
            return opened.enter_context(client.subscribe("orders", name, "latest"))

        stalled = subscribe("stalled")
        live = [Live(subscribe(f"live{n}"), load.live_rows) for n in range(load.subscribers)]
        old = FromTheStart(service.url, load.history_rows)
        memory = produced(client, load, service)
        expected = list(range(load.history_rows, load.all_rows))
        for each in live:
            each.thread.join(120)
            assert each.offsets == expected
        replays = old.end()
        late: list[int] = []
        while len(late) < load.live_rows:  # the stalled one, of which nothing was lost
            batch = stalled.poll(30)
            assert batch is not None
            late += batch.to_arrow()["_calve_offset"].to_pylist()
        assert late == expected
    grown = memory[-1] - memory[0]
    assert grown < 64 << 20
    delays = [delays_of(live, load, quarter) for quarter in range(QUARTERS)]
    assert delays[-1][1] < max(0.5, 5 * delays[0][1])
    told = (
        f"\n{load.subscribers} live subscribers, {load.live_rows} rows each, one stalled for "
        f"{load.rounds * load.pause_seconds:.0f} s, one that read {load.history_rows} rows from "
        f"the start {replays} times; by quarters:"
    )
    for (p50, p99), held in zip(delays, memory, strict=True):
        told += f"\n  delay p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms; {held >> 20} MiB"
    return told


def delays_of(live: list[Live], load: Load, quarter: int) -> tuple[float, float]:
    """The median and the 99th percentile of one quarter of the live rows, of all subscribers."""
    size = load.live_rows // QUARTERS
    parts = [each.delays[quarter * size : (quarter + 1) * size] for each in live]
    found = sorted(delay for part in parts for delay in part)
    return found[len(found) // 2], found[len(found) * 99 // 100]


@pytest.mark.timeout(120)
def test_some_subscribers_and_a_stalled_one(tmp_path: Path) -> None:
    told = subscribers(tmp_path, Load(10, 40, 0.02, history_rows=5_000))
    assert told.count("p99") == QUARTERS


@pytest.mark.torture
@pytest.mark.timeout(1_200)
def test_a_hundred_subscribers_and_a_stalled_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = subscribers(tmp_path, Load(100, 600, 0.5, history_rows=100_000))
    with capsys.disabled():
        print(told)
