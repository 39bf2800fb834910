"""Readers in the process that writes the log are told of new rows, and need not look for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from calve.ingest import Intake
from calve.model import TableName
from calve.subscriptions import TopicReader
from calve.subscriptions.opening import Readers
from calve.wal import Log, LogOptions
from calve.wal.bells import Bells
from tests.conftest import MakeSettings
from tests.fakes.oracle import TOPIC, rows

ORDERS = TableName.parse("orders")
ROW = pa.record_batch({"id": [1]})


@pytest.fixture
def intake(make_settings: MakeSettings) -> Iterator[Intake]:
    with Intake(make_settings(reader__poll_interval_ms=60_000)) as made:
        made.submit(ORDERS, ROW).wait()
        yield made


def opened(intake: Intake) -> TopicReader:
    readers = Readers(intake.settings, bells=intake._kept.bells)
    return readers.read(intake.catalog, ORDERS, "latest")


def test_a_reader_that_waits_is_woken_by_rows_and_does_not_look_meanwhile(intake: Intake) -> None:
    with opened(intake) as reader, ThreadPoolExecutor(1) as pool:
        for number in range(1, 4):
            polls = reader.stats.polls
            waiting = pool.submit(reader.poll, 30)
            time.sleep(0.2)
            assert reader.stats.polls <= polls + 2
            begun = time.monotonic()
            intake.submit(ORDERS, ROW).wait()
            batch = waiting.result(10)
            assert batch is not None
            assert batch.first_offset == number
            assert time.monotonic() - begun < 5


def test_rows_of_other_topics_wake_nobody(intake: Intake) -> None:
    with opened(intake) as reader, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.poll, 0.5)
        polls = reader.stats.polls
        for _ in range(20):
            intake.submit(TableName.parse("others"), ROW).wait()
        assert waiting.result(10) is None
        assert reader.stats.polls <= polls + 4


def test_a_reader_that_waits_is_closed_by_another_thread(intake: Intake) -> None:
    reader = opened(intake)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.poll, 30)
        time.sleep(0.1)
        reader.close()
        assert waiting.result(5) is None
    assert not intake._kept.bells.has_listeners


def test_readers_are_woken_also_after_the_log_was_opened_again(intake: Intake) -> None:
    with opened(intake) as reader, ThreadPoolExecutor(1) as pool:
        intake.log._journal.fence("the disk went away")
        assert intake._kept.reopen_if_due() or not intake.log.is_fenced
        waiting = pool.submit(reader.poll, 30)
        time.sleep(0.1)
        intake.log.append(intake.log.stream(ORDERS), ROW)
        batch = waiting.result(10)
        assert batch is not None


def test_a_bell_rings_when_rows_are_durable_and_not_before(tmp_path: Path) -> None:
    options = LogOptions(free_bytes_min=0, sync_mode="periodic", sync_interval_seconds=60)
    bells, woken = Bells(), threading.Event()
    bells.listen(TOPIC, woken)
    with Log(tmp_path / "wal", options, background=False) as log:
        log.ring(bells)
        stream = log.create_stream(TOPIC)
        woken.clear()
        log.append(stream, rows(0))
        assert not woken.is_set()
        log.flush()
        assert woken.is_set()
        woken.clear()
        bells.leave(TOPIC, woken)
        log.append(stream, rows(1))
        log.flush()
        assert not woken.is_set()
