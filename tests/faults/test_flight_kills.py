"""The ingest process killed while clients produce: every acknowledged row is there, once."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
from pyarrow import flight

from calve import Client, Delivery
from calve.errors import CalveError
from tests.integration.flight_calls import rows
from tests.servers.ingest import IngestProcess
from tests.services import wait_until

PRODUCERS = 6
EARLY = 0.25  # of the kills come whether or not anything was acknowledged since the last one


class Producing:
    """One producer: sends numbers that count up, and writes down what was acknowledged."""

    def __init__(self, url: str, number: int) -> None:
        self.number = number
        self.offsets: dict[int, int] = {}
        self.failures: list[CalveError] = []
        self.sent = 0
        self._url = url
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with Client(
            self._url, linger_ms=1, delivery_timeout_seconds=120, connect_timeout_seconds=120
        ) as client:
            while not self.is_over.is_set():
                self._produce(client)
                time.sleep(0.001)

    def _produce(self, client: Client) -> None:
        first = self.sent
        batch = [{"producer": self.number, "value": first + at} for at in range(3)]
        self.sent += 3

        def told(delivery: Delivery) -> None:
            try:
                found = delivery.result()
            except CalveError as error:
                self.failures.append(error)
            else:
                assert found.first is not None
                self.offsets.update({first + at: found.first + at for at in range(3)})

        client.produce("events", batch).add_done_callback(told)


def killed_rounds(directory: Path, rounds: int, seed: int) -> str:
    """Kill the service at random. Mostly after each producer came through to it again: on a busy
    machine it would otherwise never live long enough, and time would run out for the rows."""
    choose = random.Random(seed)
    with IngestProcess(directory / "lake") as process:
        producers = [Producing(process.url, number) for number in range(PRODUCERS)]
        for _ in range(rounds):
            if choose.random() > EARLY:
                counts = [len(producer.offsets) for producer in producers]
                wait_until(partial(_have_progressed, producers, counts), 60)
            time.sleep(choose.uniform(0.0, 1.0))  # the moment of death is the test
            process.kill()
            process.start()
        time.sleep(0.5)
        for producer in producers:
            producer.is_over.set()
        for producer in producers:
            producer.thread.join(120)
            assert not producer.thread.is_alive()
        with flight.FlightClient(process.url) as client:
            found = rows(client, "events")
    check(producers, found)
    return f"\n{rounds} kills, {PRODUCERS} producers, {len(found)} rows, each acknowledged and once"


def _have_progressed(producers: list[Producing], before: list[int]) -> bool:
    return all(len(each.offsets) > count for each, count in zip(producers, before, strict=True))


def check(producers: list[Producing], found: list[dict[str, int]]) -> None:
    values: dict[int, list[int]] = defaultdict(list)
    offsets: dict[tuple[int, int], int] = {}
    for row in found:
        values[row["producer"]].append(row["value"])
        offsets[row["producer"], row["value"]] = row["_calve_offset"]
    for producer in producers:
        assert producer.failures == []
        assert producer.sent > 0
        assert len(producer.offsets) == producer.sent
        assert values[producer.number] == list(range(producer.sent))  # once each, and in order
        for value, offset in producer.offsets.items():
            assert offsets[producer.number, value] == offset


@pytest.mark.timeout(240)
def test_every_acknowledged_row_is_there_once_after_kills(tmp_path: Path) -> None:
    killed_rounds(tmp_path, rounds=3, seed=8)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_every_acknowledged_row_is_there_once_after_many_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = killed_rounds(tmp_path, rounds=50, seed=int(time.time()))
    with capsys.disabled():
        print(told)
