"""Retention, and the bounds on disk."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from calve.errors import NotFound, Overloaded, Unavailable
from calve.wal import Log, LogOptions, OsFiles, Stream
from tests.fakes.oracle import TOPIC, read_values, rows


class HandClock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.ahead = timedelta(0)  # of the wall's clock

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds) + self.ahead

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def open_log(path: Path, clock: HandClock, **options: int) -> Log:
    given = {"free_bytes_min": 0, "hot_window_seconds": 60, **options}
    return Log(path / "wal", LogOptions(**given), clock=clock, background=False)  # type: ignore[arg-type]


def segments(log: Log) -> int:
    return len(list(log.directory.glob("*.seg")))


def append_many(log: Log, stream: Stream, count: int) -> None:
    for i in range(count):
        log.append(stream, rows(i))


def test_a_segment_goes_when_its_rows_are_committed_and_old(
    tmp_path: Path, clock: HandClock
) -> None:
    log = open_log(tmp_path, clock)
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(0, 10))
    log.rotate()
    assert log.trim({stream.id: 10}) == 0, "committed, but hot"
    clock.seconds = 61
    assert log.trim({stream.id: 10}) == 1
    assert segments(log) == 1
    with log.reader() as reader:
        assert reader.offsets(stream) == (10, 10)
        with pytest.raises(NotFound) as gone:
            list(reader.read(stream, 0))
        assert gone.value.context["first"] == "10"
    assert log.append(stream, rows(10)).first == 10


def test_rows_that_are_not_committed_stay(tmp_path: Path, clock: HandClock) -> None:
    log = open_log(tmp_path, clock)
    stream = log.create_stream(TOPIC)
    other = log.create_stream(TOPIC, 1)
    log.append(stream, rows(0, 10))
    log.append(other, rows(0))
    log.rotate()
    clock.seconds = 3600
    assert log.trim({stream.id: 9, other.id: 1}) == 0
    assert log.trim({stream.id: 10}) == 1, "what was told of the other one is remembered"


def test_a_topic_nobody_commits_holds_its_segment(tmp_path: Path, clock: HandClock) -> None:
    log = open_log(tmp_path, clock)
    stream = log.create_stream(TOPIC)
    other = log.create_stream(TOPIC, 1)
    log.append(stream, rows(0, 10))
    log.append(other, rows(0))
    log.rotate()
    clock.seconds = 3600
    assert log.trim({stream.id: 10}) == 0
    log.delete_stream(other)
    assert log.trim({}) == 1, "the rows of a deleted topic wait for nobody"


def test_over_the_bound_appends_are_refused_until_space_returns(
    tmp_path: Path, clock: HandClock
) -> None:
    log = open_log(tmp_path, clock, segment_bytes_max=16_384, disk_bytes_max=65_536)
    stream = log.create_stream(TOPIC)
    with pytest.raises(Unavailable) as refused:
        append_many(log, stream, 1000)
    assert int(refused.value.context["retry_after_ms"]) > 0
    assert "wal.disk_bytes_max" in refused.value.message
    end = log.next_offset(stream)
    with log.reader() as reader:
        assert read_values(reader, TOPIC) == list(range(end))
    log.trim({stream.id: end})
    assert log.append(stream, rows(end)).first == end
    assert sum(path.stat().st_size for path in log.directory.iterdir()) < 65_536 + 16_384


def test_over_the_bound_committed_rows_go_before_the_hot_window_ends(
    tmp_path: Path, clock: HandClock
) -> None:
    log = open_log(tmp_path, clock, segment_bytes_max=16_384, disk_bytes_max=65_536)
    stream = log.create_stream(TOPIC)
    for i in range(1000):
        log.append(stream, rows(i))
        log.trim({stream.id: i + 1})
    assert segments(log) < 6
    with log.reader() as reader:
        assert 0 < reader.offsets(stream).first < reader.offsets(stream).durable == 1000


def test_over_the_bound_the_log_asks_what_is_committed(tmp_path: Path, clock: HandClock) -> None:
    """What it was told may have been set back since."""
    log = open_log(tmp_path, clock, segment_bytes_max=16_384, disk_bytes_max=65_536)
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(0))
    committed = {stream.id: 1}
    log.ask_committed(lambda: nullcontext(committed))
    assert log.trim() == 0
    committed[stream.id] = 0
    with pytest.raises(Overloaded):
        append_many(log, stream, 1000)
    with log.reader() as reader:
        assert reader.offsets(stream).first == 0
    committed[stream.id] = log.next_offset(stream)
    append_many(log, stream, 100)


def test_a_log_that_gets_no_answer_keeps_its_rows(tmp_path: Path, clock: HandClock) -> None:
    def fails() -> NoReturn:
        raise Unavailable("the state is locked")

    log = open_log(tmp_path, clock, segment_bytes_max=16_384, disk_bytes_max=65_536)
    stream = log.create_stream(TOPIC)
    log.ask_committed(fails)
    with pytest.raises(Overloaded):
        append_many(log, stream, 1000)
    with pytest.raises(Unavailable, match="locked"):
        log.trim()
    assert not log.is_fenced


class FullDisk(OsFiles):
    free = 1 << 40

    def free_bytes(self, directory: Path) -> int:
        return self.free


def test_a_log_that_asks_lets_go_of_nothing_that_was_told_before(
    tmp_path: Path, clock: HandClock
) -> None:
    """The table may have been set back since, so that its rows are to come again."""
    log = open_log(tmp_path, clock)
    stream = log.create_stream(TOPIC)
    other = log.create_stream(TOPIC, 1)
    log.ask_committed(lambda: nullcontext({other.id: 1}))
    log.append(other, rows(0))
    log.rotate()
    log.append(stream, rows(0, 10))
    log.rotate()
    assert log.trim({stream.id: 10, other.id: 1}) == 0, "committed, but hot"
    clock.seconds = 61
    assert log.trim() == 1, "of the second topic nobody said anything this time"
    with log.reader() as reader:
        assert reader.offsets(stream) == (0, 10)


def test_below_the_floor_of_free_space_appends_are_refused(
    tmp_path: Path, clock: HandClock
) -> None:
    files = FullDisk()
    options = LogOptions(free_bytes_min=1000)
    log = Log(tmp_path / "wal", options, files=files, clock=clock, background=False)
    stream = log.create_stream(TOPIC)
    files.free = 999
    clock.seconds += 1
    with pytest.raises(Unavailable) as refused:
        log.append(stream, rows(0))
    assert "wal.free_bytes_min" in refused.value.message
    files.free = 1000
    clock.seconds += 1
    assert log.append(stream, rows(0)).first == 0


def test_below_the_floor_committed_rows_go_before_the_hot_window_ends(
    tmp_path: Path, clock: HandClock
) -> None:
    """And no sooner: only what the disk has left makes them go."""

    class SharedDisk(OsFiles):
        others = 0

        def free_bytes(self, directory: Path) -> int:
            used = sum(path.stat().st_size for path in directory.iterdir())
            return 100_000 - self.others - used

    files = SharedDisk()
    options = LogOptions(free_bytes_min=1000, segment_bytes_max=16_384)
    log = Log(tmp_path / "wal", options, files=files, clock=clock, background=False)
    stream = log.create_stream(TOPIC)
    append_many(log, stream, 150)
    before = segments(log)
    assert before > 2
    files.others = files.free_bytes(log.directory) - 999
    clock.seconds += 1
    with pytest.raises(Overloaded, match="free_bytes_min"):
        log.append(stream, rows(150))
    assert segments(log) == before, "nothing is committed"
    assert log.trim({stream.id: 150}) == 0, "committed, but hot"
    assert log.append(stream, rows(150)).first == 150
    assert segments(log) < before


def test_an_idle_segment_is_sealed_so_that_it_can_go(tmp_path: Path, clock: HandClock) -> None:
    log = open_log(tmp_path, clock)
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(0))
    clock.seconds = 59
    log._leader._do_what_is_due()
    assert segments(log) == 1
    clock.seconds = 61
    log._leader._do_what_is_due()
    assert segments(log) == 2
    clock.seconds = 130
    assert log.trim({stream.id: 1}) == 1


def test_the_clock_going_back_keeps_times_in_order(tmp_path: Path, clock: HandClock) -> None:
    log = open_log(tmp_path, clock)
    stream = log.create_stream(TOPIC)
    for seconds in (100, 50, 60, 110):
        clock.seconds = seconds
        log.append(stream, rows(0))
        log.rotate()
    with log.reader() as reader:
        times = [entry.ingested_at_us for entry in reader.read(stream, 0)]
        assert times == sorted(times)
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=105)
        assert reader.offset_at(stream, moment) == 3


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_a_clock_that_was_ahead_keeps_rows_no_longer_than_the_hot_window(
    tmp_path: Path, clock: HandClock, is_opened_again: bool
) -> None:
    log = open_log(tmp_path, clock)
    stream = log.create_stream(TOPIC)
    clock.ahead = timedelta(days=400)
    log.append(stream, rows(0))
    log.rotate()
    clock.ahead = timedelta(0)
    if is_opened_again:
        log.close()
        clock.seconds = 50
        log = open_log(tmp_path, clock)
    clock.seconds += 59
    assert log.trim({stream.id: 1}) == 0
    clock.seconds += 2
    assert log.trim() == 1
    log.close()


def test_a_full_log_still_lets_topics_go_and_records_losses(
    tmp_path: Path, clock: HandClock
) -> None:
    with open_log(tmp_path / "wal", clock) as log:
        stream = log.create_stream(TOPIC)
        log.append(stream, rows(0))
    full = {"free_bytes_min": 1 << 62, "disk_bytes_max": 1}
    with open_log(tmp_path / "wal", clock, **full) as log:
        with pytest.raises(Unavailable):
            log.append(stream, rows(1))
        log.record_hole(stream, 1, 3)
        log.delete_stream(stream)
        assert log.streams == []
