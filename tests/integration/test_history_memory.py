"""Many readers of history in one process: what they hold together is bounded, and all get theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from calve.clock import SystemClock
from calve.subscriptions import Batch, TopicReader, history, windows
from calve.subscriptions.memory import HistoryMemory
from calve.subscriptions.opening import Readers
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.topic_site import TopicSite, batch_offsets, offsets_of, topic_site

ROWS = 200
FLAGS = {
    "wal__free_bytes_min": 0,
    "wal__hot_window_seconds": 0,
    "pipeline__flush_interval_ms": 1,
    "reader__poll_interval_ms": 50,
    **QUICK_RETRIES,
}


@pytest.fixture
def site(make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[TopicSite]:
    """Windows of 20 rows, which are handed out in pieces."""
    monkeypatch.setattr(windows, "WINDOW_ROWS", 20)
    monkeypatch.setattr(history, "_PIECE_BYTES", 150)
    with topic_site(make_settings(**FLAGS)) as made:
        made.append(ROWS)
        made.commit()
        made.compact(file_rows=20)
        yield made


class Crowd:
    """Readers that have room for one window together."""

    def __init__(self, site: TopicSite, bytes_max: int = 1) -> None:
        self.memory = HistoryMemory(bytes_max, clock=SystemClock(), stalled_seconds=0.05)
        self._readers = Readers(site.settings, memory=self.memory)
        self._site = site

    def open(self) -> TopicReader:
        return self._readers.read(
            self._site.lake.catalog, self._site.name, "earliest", follow=False
        )

    @property
    def holding(self) -> int:
        return sum(share.held_bytes > 0 for share in list(self.memory._shares))


def next_of(reader: TopicReader) -> Batch:
    batch = reader.poll(20)
    assert batch is not None
    return batch


def test_all_get_every_row_in_order_and_hold_no_more_than_there_is_room_for(
    site: TopicSite,
) -> None:
    crowd = Crowd(site)
    done = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        while not done.wait(0.001):
            seen.append(crowd.holding)

    def read() -> dict[int, list[int]]:
        with crowd.open() as reader:
            return offsets_of(reader)

    with ThreadPoolExecutor(5) as pool:
        watching = pool.submit(watch)
        found = [each.result(60) for each in [pool.submit(read) for _ in range(4)]]
        done.set()
        watching.result()
    assert found == [{0: list(range(ROWS))}] * 4
    assert max(seen) == 1
    assert crowd.memory.held_bytes == 0


def test_one_that_stands_still_keeps_nobody_from_reading_and_misses_nothing(
    site: TopicSite,
) -> None:
    crowd = Crowd(site)
    with crowd.open() as stalled, crowd.open() as live:
        first = next_of(stalled)
        assert 0 < len(first) < 20
        assert crowd.holding == 1
        assert offsets_of(live) == {0: list(range(ROWS))}
        rest = [first, *stalled]
    assert offsets_of(rest) == {0: list(range(ROWS))}


def test_what_is_handed_out_does_not_keep_the_window_it_came_from(site: TopicSite) -> None:
    with Crowd(site, 1 << 30).open() as reader:
        batch = next_of(reader)
    rows = batch.to_arrow()
    assert 0 < len(batch) < 20
    assert batch_offsets(batch) == list(range(len(batch)))
    assert rows.get_total_buffer_size() <= 2 * rows.nbytes
