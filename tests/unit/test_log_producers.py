"""Idempotent producers: a retry is acknowledged again, and not appended again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.errors import Conflict, InvalidRequest
from calve.wal import Acknowledgement, Log, LogOptions, Stream
from calve.wal.producers import SEQUENCES_KEPT, History, OffsetPair, ProducerKey, ProducerMemory
from tests.fakes.oracle import TOPIC, read_values, rows

OPTIONS = LogOptions(
    segment_bytes_max=32_768, hot_window_seconds=0, free_bytes_min=0, producers_max=5
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        log.create_streams([(TOPIC, 0, 0), (TOPIC, 1, 0)])  # type: ignore[list-item]
        yield log


def send(log: Log, sequence: int, producer: str = "p", partition: int = 0) -> Acknowledgement:
    stream = log.stream(TOPIC, partition)
    return log.append(stream, rows(sequence), producer=producer, sequence=sequence)


def test_a_repeat_has_the_offsets_of_the_first_append(log: Log) -> None:
    first = [send(log, i) for i in range(300)]
    for i in range(300 - SEQUENCES_KEPT, 300):
        assert send(log, i) == first[i]._replace(is_repeat=True)
    assert log.next_offset(log.stream(TOPIC)) == 300


def test_an_older_repeat_is_acknowledged_as_a_duplicate(log: Log) -> None:
    for i in range(300):
        send(log, i)
    assert send(log, 300 - SEQUENCES_KEPT - 1) == Acknowledgement(None, None, is_repeat=True)
    assert log.next_offset(log.stream(TOPIC)) == 300


def test_a_gap_is_an_error_and_changes_nothing(log: Log) -> None:
    send(log, 0)
    with pytest.raises(Conflict) as refused:
        send(log, 2)
    assert refused.value.context["expected_sequence"] == "1"
    assert send(log, 1).first == 1


def test_a_producer_begins_with_0(log: Log) -> None:
    with pytest.raises(Conflict):
        send(log, 1)
    assert send(log, 0).first == 0


def test_sequences_count_per_producer_and_partition(log: Log) -> None:
    for producer in ("a", "b"):
        for partition in (0, 1):
            assert not send(log, 0, producer, partition).is_repeat
    assert send(log, 0, "a", 1).is_repeat


def test_repeats_inside_one_group_are_found(log: Log) -> None:
    stream = log.stream(TOPIC)
    numbers = [0, 1, 0, 1, 2, 4]
    handles = [log.submit(stream, rows(n), producer="p", sequence=n) for n in numbers]
    assert [handle.wait().first for handle in handles[:5]] == [0, 1, 0, 1, 2]
    assert [handle.wait().is_repeat for handle in handles[:5]] == [False, False, True, True, False]
    with pytest.raises(Conflict):
        handles[5].wait()


def test_the_memory_survives_rotation_retention_and_restart(tmp_path: Path) -> None:
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        stream = log.create_stream(TOPIC)
        first = [send(log, i) for i in range(200)]
        log.rotate()
        assert log.trim({stream.id: 200}) > 2
        with log.reader() as reader:
            assert reader.offsets(stream).first == 200
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        for i in range(200):
            assert send(log, i) == first[i]._replace(is_repeat=True)
        assert send(log, 200).first == 200


def test_the_number_of_producers_is_bounded_and_the_silent_one_is_forgotten(log: Log) -> None:
    for producer in "abcde":
        send(log, 0, producer)
    send(log, 1, "a")
    send(log, 0, "f")
    with pytest.raises(Conflict) as forgotten:
        send(log, 1, "b")
    assert "not known" in forgotten.value.message
    assert "new id" in (forgotten.value.hint or "")
    assert send(log, 1, "a").is_repeat


def test_the_same_producers_are_forgotten_after_a_restart(tmp_path: Path) -> None:
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        log.create_stream(TOPIC)
        for producer in "abcdeafgb":
            send(log, "abcdeafgb"[: "abcdeafgb".index(producer) + 1].count(producer) - 1, producer)
        known = {p for p in "abcdefg" if _is_known(log, p)}
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        assert {p for p in "abcdefg" if _is_known(log, p)} == known
        assert read_values(log.reader(), TOPIC)


def _is_known(log: Log, producer: str) -> bool:
    memory = log._journal.state.producers
    return memory.last_sequence(ProducerKey(log.stream(TOPIC).number, producer)) >= 0


def test_a_deleted_topic_takes_its_producers_along(log: Log) -> None:
    stream: Stream = log.stream(TOPIC)
    send(log, 0)
    log.delete_stream(stream)
    assert len(log._journal.state.producers) == 0
    log.create_stream(TOPIC)
    assert not send(log, 0).is_repeat


def test_producer_and_sequence_come_together(log: Log) -> None:
    stream = log.stream(TOPIC)
    with pytest.raises(InvalidRequest):
        log.append(stream, rows(0), producer="p")
    with pytest.raises(InvalidRequest):
        log.append(stream, rows(0), sequence=0)
    with pytest.raises(InvalidRequest):
        log.append(stream, rows(0), producer="x" * 256, sequence=0)
    with pytest.raises(InvalidRequest):
        log.append(stream, rows(0), producer="p", sequence=-1)


def test_the_memory_stays_small() -> None:
    memory = ProducerMemory(10)
    key = ProducerKey(1, "p")
    for i in range(10_000):
        memory.record(key, i, OffsetPair(i, i + 1))
    (history,) = dict(memory.items()).values()
    assert len(history._firsts) <= 2 * SEQUENCES_KEPT
    assert len(history.columns()[0]) == 8 * SEQUENCES_KEPT


def test_a_history_with_pieces_and_gaps_names_no_wrong_offsets() -> None:
    history = History()
    history.add(0, OffsetPair(0, 2))
    history.add(1, OffsetPair(2, 3))
    history.add(1, OffsetPair(3, 5))
    assert [history.find(n) for n in (0, 1)] == [(0, 2), (2, 5)]
    history.add(4, OffsetPair(9, 10))
    history.add(5, OffsetPair(10, 12))
    assert [history.find(n) for n in (0, 1, 3, 4, 5)] == [None, None, None, (9, 10), (10, 12)]


def fill(memory: ProducerMemory, stream: int, names: range) -> None:
    for name in names:
        memory.record(ProducerKey(stream, f"p{name}"), 0, OffsetPair(0, 1))


def known(memory: ProducerMemory, stream: int) -> list[str]:
    return [key.producer for key, _ in memory.items() if key.stream == stream]


def test_a_flood_of_producers_pushes_out_its_own_only() -> None:
    memory = ProducerMemory(12)
    fill(memory, 1, range(3))
    fill(memory, 2, range(2))
    fill(memory, 3, range(1000))
    assert known(memory, 1) == ["p0", "p1", "p2"]
    assert known(memory, 2) == ["p0", "p1"]
    assert known(memory, 3) == [f"p{i}" for i in range(993, 1000)]
    assert len(memory) == 12


def test_a_newcomer_takes_from_the_stream_that_has_most_up_to_its_share() -> None:
    memory = ProducerMemory(12)
    fill(memory, 1, range(9))
    fill(memory, 2, range(3))
    fill(memory, 3, range(100))
    assert known(memory, 1) == ["p4", "p5", "p6", "p7", "p8"]
    assert known(memory, 2) == ["p0", "p1", "p2"]
    assert known(memory, 3) == ["p96", "p97", "p98", "p99"]


def test_with_more_streams_than_places_the_silent_one_is_forgotten() -> None:
    memory = ProducerMemory(3)
    for stream in range(1, 6):
        fill(memory, stream, range(1))
    assert [key.stream for key, _ in memory.items()] == [3, 4, 5]
    fill(memory, 3, range(1))
    fill(memory, 6, range(1))
    assert [key.stream for key, _ in memory.items()] == [5, 3, 6]


def test_a_memory_that_was_made_smaller_forgets_down_to_its_bound() -> None:
    large = ProducerMemory(20)
    fill(large, 1, range(15))
    fill(large, 2, range(2))
    small = ProducerMemory(5)
    small.restore(large.items())
    fill(small, 1, range(15, 16))
    assert len(small) == 5
    assert known(small, 2) == ["p0", "p1"]
    assert known(small, 1) == ["p13", "p14", "p15"]


def test_a_topics_flood_leaves_the_producers_of_others_through_a_restart(tmp_path: Path) -> None:
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        log.create_streams([(TOPIC, 0, 0), (TOPIC, 1, 0)])  # type: ignore[list-item]
        first = [send(log, i, "quiet", partition=1) for i in range(3)]
        for i in range(40):
            send(log, 0, f"loud {i}")
        log.rotate()
        for i in range(40, 80):
            send(log, 0, f"loud {i}")
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        for i in range(40):
            send(log, 0, f"louder {i}")
        assert len(log._journal.state.producers) == OPTIONS.producers_max
        for i in range(3):
            assert send(log, i, "quiet", partition=1) == first[i]._replace(is_repeat=True)
        assert not send(log, 3, "quiet", partition=1).is_repeat


@given(
    heard=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 8)), max_size=120),
    cut=st.integers(0, 120),
)
def test_whatever_is_heard_shares_are_kept_and_a_restart_changes_nothing(
    heard: list[tuple[int, int]], cut: int
) -> None:
    memory, again = ProducerMemory(7), ProducerMemory(7)
    for at, (stream, name) in enumerate(heard):
        if at == cut:
            again.restore(list(memory.items()))
        before = dict.fromkeys(key for key, _ in memory.items())
        fill(memory, stream, range(name, name + 1))
        if at >= cut:
            fill(again, stream, range(name, name + 1))
            assert [key for key, _ in again.items()] == [key for key, _ in memory.items()]
        after = {key for key, _ in memory.items()}
        streams = {key.stream for key in after} | {stream}
        assert len(memory) <= 7
        assert ProducerKey(stream, f"p{name}") in after
        for gone in set(before) - after:
            had = sum(key.stream == gone.stream for key in before)
            assert had > 7 // len(streams) or gone.stream == stream


def test_the_log_is_asked_whether_an_append_is_in(log: Log) -> None:
    stream = log.stream(TOPIC)
    assert log.repeated(stream, "p", 0) is None
    pending = log.submit(stream, rows(7), producer="p", sequence=0)
    assert not pending.is_done
    assert log.repeated(stream, "p", 0) == (0, 1, True)
    assert pending.wait(0) == (0, 1, False)
    assert log.repeated(stream, "p", 1) is None
    assert log.repeated(stream, "q", 0) is None
    assert log.repeated(log.stream(TOPIC, 1), "p", 0) is None
    for sequence in range(1, 300):
        send(log, sequence)
    assert log.repeated(stream, "p", 0) == (None, None, True)
