"""Many subscribers of one topic: one stalled, one from the start; the others and memory stay flat."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from calve import Client
from calve.client.subscription import ClientSubscription
from tests.servers.ingest import IngestProcess

TEXT = "x" * 1_000


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


def subscribers(directory: Path, count: int, rounds: int, pause_seconds: float) -> str:
    flags = {"wal__free_bytes_min": 0, "reader__poll_interval_ms": 1000}
    with (
        IngestProcess(directory / "lake", **flags) as service,
        Client(service.url) as client,
        ExitStack() as opened,
    ):
        client.produce("orders", [{"sent_at": time.time(), "text": TEXT}]).result()

        def subscribe(name: str, start: str) -> ClientSubscription:
            return opened.enter_context(client.subscribe("orders", name, start))  # type: ignore[arg-type]

        stalled = subscribe("stalled", "latest")
        live = [Live(subscribe(f"live{n}", "latest"), rounds * 10) for n in range(count)]
        before = 0
        for number in range(rounds):
            rows = [{"sent_at": time.time(), "text": TEXT} for _ in range(10)]
            client.produce("orders", rows).result()
            time.sleep(pause_seconds)  # they keep up: this is about one that does not
            if number == rounds // 4:
                before = service.memory_bytes
        for each in live:
            each.thread.join(120)
            assert each.offsets == list(range(1, rounds * 10 + 1))
        grown = service.memory_bytes - before
        for late in (stalled, subscribe("earliest", "earliest")):
            seen = 0
            while seen < rounds * 10:
                batch = late.poll(30)
                assert batch is not None
                assert batch.first_offset <= batch.last_offset
                seen += len(batch)
    delays = sorted(delay for each in live for delay in each.delays)
    assert grown < 64 << 20
    told = (
        f"{delays[len(delays) // 2] * 1000:.0f} ms, {delays[len(delays) * 99 // 100] * 1000:.0f} ms"
    )
    return (
        f"\n{count} subscribers, {rounds * 10} rows each: p50, p99 {told}; {grown >> 20} MiB more"
    )


@pytest.mark.timeout(120)
def test_some_subscribers_and_a_stalled_one(tmp_path: Path) -> None:
    subscribers(tmp_path, count=10, rounds=50, pause_seconds=0.02)


@pytest.mark.torture
@pytest.mark.timeout(1_200)
def test_a_hundred_subscribers_and_a_stalled_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = subscribers(tmp_path, count=100, rounds=600, pause_seconds=0.5)
    with capsys.disabled():
        print(told)
