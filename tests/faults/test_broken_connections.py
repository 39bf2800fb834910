"""Connections that break at any moment while clients produce, some of it wrong."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pytest

from calve import Client, Delivery
from calve.errors import InvalidRequest
from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.model import TableName
from calve.wal import Kind
from tests.conftest import MakeSettings

TOPICS = ("first", "second")
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("who", pa.int64())])
REQUIRED = {
    "columns": [
        {"name": "id", "type": "long", "required": True},
        {"name": "who", "type": "long"},
    ]
}


@dataclass(frozen=True)
class Call:
    topic: str
    first: int
    count: int
    is_wrong: bool
    delivery: Delivery


class Producing:
    """One thread that sends numbers counting up; now and then rows that no topic takes."""

    def __init__(self, client: Client, number: int, seed: int) -> None:
        self.number = number
        self.calls: list[Call] = []
        self._client = client
        self._choose = random.Random(seed)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        sent = 0
        while not self.is_over.is_set():
            topic = self._choose.choice(TOPICS)
            count = self._choose.randrange(1, 5)
            is_wrong = self._choose.random() < 0.05
            ids = [None if is_wrong else sent + at for at in range(count)]
            rows = pa.table({"id": ids, "who": [self.number] * count}, schema=SCHEMA)
            delivery = self._client.produce(topic, rows)
            self.calls.append(Call(topic, sent, count, is_wrong, delivery))
            sent += count
            time.sleep(self._choose.choice([0, 0, 0.001, 0.004]))


def ids_in(intake: Intake, topic: str) -> dict[int, tuple[int, int]]:
    """By offset: the row's number, and whose it is."""
    found: dict[int, tuple[int, int]] = {}
    for entry in intake.read(TableName.parse(topic), 0):
        if entry.kind == Kind.ROWS and entry.batch is not None:
            rows = zip(*(column.to_pylist() for column in entry.batch.columns), strict=True)
            found.update(enumerate(rows, entry.first_offset))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_every_call_is_told_the_truth_while_connections_break(
    make_settings: MakeSettings, seed: int
) -> None:
    choose = random.Random(seed)
    settings = make_settings(ingest__flight_port=0)
    with Intake(settings) as intake, FlightServer(intake) as server:
        client = Client(server.url, linger_ms=2, delivery_timeout_seconds=60)
        for topic in TOPICS:
            client.create_topic(topic, **REQUIRED)
        producers = [Producing(client, number, seed * 10 + number) for number in range(3)]
        for _ in range(30):
            time.sleep(choose.uniform(0.01, 0.1))
            server._connections.shut()
        for producer in producers:
            producer.is_over.set()
            producer.thread.join()
        with suppress(InvalidRequest):  # the first that was wrong
            client.close(60)
        logs = {topic: ids_in(intake, topic) for topic in TOPICS}
    for rows in logs.values():
        assert max(Counter(rows.values()).values()) == 1  # nothing twice
    for producer in producers:
        check(producer, logs)


def check(producer: Producing, logs: dict[str, dict[int, tuple[int, int]]]) -> None:
    delivered: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    for call in producer.calls:
        assert call.delivery.is_done
        if call.is_wrong:
            assert isinstance(call.delivery.error, InvalidRequest)
        else:
            delivered[call.topic].append(check_delivered(call, producer.number, logs[call.topic]))
    for offsets in delivered.values():
        assert offsets == sorted(offsets)
        assert len(offsets) > 10


def check_delivered(call: Call, number: int, log: dict[int, tuple[int, int]]) -> int:
    found = call.delivery.result()
    assert found.first is not None
    assert found.end == found.first + call.count
    for at in range(call.count):
        assert log[found.first + at] == (call.first + at, number)
    return found.first
