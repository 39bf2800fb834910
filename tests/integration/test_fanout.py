"""Subscribers near the end of a topic share one read; those behind, and stalled ones, read alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from calve.errors import Conflict, InvalidRequest
from calve.subscriptions import Batch, TopicReader, tail
from calve.subscriptions.shared import Fanout, SharedReading
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.topic_site import TopicSite, batch_offsets, offsets_of, topic_site

FLAGS = {
    "wal__free_bytes_min": 0,
    "wal__hot_window_seconds": 0,
    "pipeline__flush_interval_ms": 1,
    "reader__poll_interval_ms": 50,
    **QUICK_RETRIES,
}


@pytest.fixture
def site(make_settings: MakeSettings) -> Iterator[TopicSite]:
    with topic_site(make_settings(**FLAGS), partitions=2) as made:
        yield made


@contextmanager
def shared(site: TopicSite, age_seconds: float = 30) -> Iterator[Fanout]:
    made = Fanout(
        lambda topic, start, **options: site.lake.read(str(topic), start, **options),
        age_seconds=age_seconds,
    )
    try:
        yield made
    finally:
        made.close()


def reading(fanout: Fanout, site: TopicSite, start: object = "latest") -> SharedReading:
    found = fanout.read(site.name, start, where=None)  # type: ignore[arg-type]
    assert isinstance(found, SharedReading)
    return found


def tails() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("calve-tail")]


def test_those_near_the_end_get_the_same_rows_of_one_read(site: TopicSite) -> None:
    site.append(3)
    with shared(site) as fanout, ExitStack() as open_ones:
        readings = [reading(fanout, site) for _ in range(5)]
        for each in readings:
            open_ones.callback(each.close)
            assert each.poll(0) is None
        site.append(2)
        site.append(4, partition=1)
        found = [[each.poll(5), each.poll(5)] for each in readings]
        assert all(offsets_of(each) == {0: [3, 4], 1: [0, 1, 2, 3]} for each in found)
        assert len({id(batch.rows) for pair in found for batch in pair if batch}) == 2
        assert all(each.is_shared for each in readings)
        assert readings[0].positions == {0: 5, 1: 4}
        assert readings[0].ends() == {0: 5, 1: 4}
        assert len(tails()) == 1
    assert not tails()


def test_one_that_is_behind_reads_alone_until_it_has_caught_up(site: TopicSite) -> None:
    site.append(10)
    site.commit()
    with shared(site) as fanout, ExitStack() as open_ones:
        old, new = reading(fanout, site, "earliest"), reading(fanout, site)
        open_ones.callback(old.close)
        open_ones.callback(new.close)
        assert [each.is_shared for each in (old, new)] == [False, False]
        site.append(5)
        assert batch_offsets(next_of(new)) == list(range(10, 15))
        assert read_up_to(old, {0: 15}) == {0: list(range(15))}
        site.append(1)
        assert batch_offsets(next_of(old)) == [15]
        assert [each.is_shared for each in (old, new)] == [True, True]
        old.seek(14)
        assert read_up_to(old, {0: 16}) == {0: [14, 15]}
        with pytest.raises(InvalidRequest, match="no offset 99 yet"):
            old.seek(99)
        assert old.poll(0) is None


def test_a_stalled_one_holds_nothing_and_reads_everything_later(
    site: TopicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.append(1)
    monkeypatch.setattr(tail, "RING_BYTES_MAX", 2_000)
    with shared(site) as fanout, ExitStack() as open_ones:
        stalled, quick = reading(fanout, site), reading(fanout, site)
        open_ones.callback(stalled.close)
        open_ones.callback(quick.close)
        assert stalled.poll(0) is None
        assert stalled.is_shared
        for n in range(40):
            end = site.append(10)
            assert read_up_to(quick, {0: end}) == {0: list(range(end - 10, end))}
            assert fanout.join(site.name).size_bytes <= 2_000
            if n % 10 == 0:
                site.commit()
                site.trim()
        assert quick.is_shared
        assert read_up_to(stalled, {0: 401}) == {0: list(range(1, 401))}


def test_rows_are_not_kept_longer_than_a_reader_may_know_of_them(site: TopicSite) -> None:
    site.append(1)
    with shared(site, age_seconds=0.1) as fanout, ExitStack() as open_ones:
        one, other = reading(fanout, site), reading(fanout, site)
        open_ones.callback(one.close)
        open_ones.callback(other.close)
        assert (one.poll(0), other.poll(0)) == (None, None)
        site.append(4)
        assert batch_offsets(next_of(one)) == [1, 2, 3, 4]
        site.commit()
        site.lake.tables.delete_data("orders", "id in (2, 3)")
        time.sleep(0.15)
        assert batch_offsets_without_ids(other) == [1, 4]


@pytest.mark.parametrize("seed", range(3))
def test_everybody_gets_everything_once_and_in_order_however_they_come(
    site: TopicSite, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "RING_BATCHES_MAX", 3)
    chance = random.Random(seed)
    site.append(5)
    with shared(site) as fanout, ExitStack() as open_ones:
        readings = [reading(fanout, site, "earliest") for _ in range(4)]
        found: list[dict[int, list[int]]] = [{} for _ in readings]
        for each in readings:
            open_ones.callback(each.close)
        for _ in range(60):
            match chance.randrange(8):
                case 0 | 1 | 2:
                    site.append(chance.randrange(1, 5), partition=chance.randrange(2))
                case 3:
                    site.commit()
                case _:
                    number = chance.randrange(4) ** 2 // 4  # some come rarely
                    batch = readings[number].poll(chance.choice([0, 0.01]))
                    if batch is not None:
                        found[number].setdefault(batch.partition, []).extend(batch_offsets(batch))
        ends = readings[0].ends()
        for each, got in zip(readings, found, strict=True):
            for partition, offsets in read_up_to(each, ends).items():
                got.setdefault(partition, []).extend(offsets)
            assert got == {p: list(range(end)) for p, end in ends.items() if end}


def test_a_rollback_fails_everybody_and_a_new_one_reads_on(site: TopicSite) -> None:
    site.append(2)
    site.commit()
    before = site.table.metadata.current_snapshot_id
    assert before is not None
    with shared(site) as fanout, ExitStack() as open_ones:
        readings = [reading(fanout, site) for _ in range(2)]
        for each in readings:
            open_ones.callback(each.close)
        site.append(2)
        assert [batch_offsets(next_of(each)) for each in readings] == [[2, 3]] * 2
        site.commit()
        time.sleep(0.1)
        site.lake.tables.rollback("orders", before)
        for each in readings:
            with pytest.raises(Conflict, match="rolled back"):
                each.poll(5)
        again = reading(fanout, site)
        open_ones.callback(again.close)
        assert again.poll(0) is None
        site.append(1)
        assert next_of(again).next_offset == 5


def test_one_that_wants_some_rows_or_an_end_reads_alone(site: TopicSite) -> None:
    site.append(3)
    with shared(site) as fanout:
        for options in ({"where": "id = 1"}, {"columns": ["id"]}, {"follow": False}):
            alone = fanout.read(site.name, "earliest", **options)
            assert isinstance(alone, TopicReader)
            alone.close()


def test_another_thread_ends_one_that_waits(site: TopicSite) -> None:
    site.append(1)
    with shared(site) as fanout:
        waiting = reading(fanout, site)
        threading.Timer(0.1, waiting.close).start()
        assert waiting.poll(20) is None
        assert waiting.is_done


def next_of(found: SharedReading) -> Batch:
    batch = found.poll(5)
    assert batch is not None
    return batch


def batch_offsets_without_ids(found: SharedReading) -> list[int]:
    offsets: list[int] = []
    while found.positions[0] < 5:
        batch = found.poll(0.05)
        if batch is not None:
            offsets += batch.to_arrow().column("_calve_offset").to_pylist()
    return offsets


def read_up_to(found: SharedReading, ends: dict[int, int]) -> dict[int, list[int]]:
    batches = []
    deadline = time.monotonic() + 20
    while any(found.positions.get(p, 0) < end for p, end in ends.items()):
        assert time.monotonic() < deadline
        batch = found.poll(0.05)
        if batch is not None:
            batches.append(batch)
    return offsets_of(batches)
