"""When rows are due, how a topic with few of them slows down, and how what waits is cut."""

from __future__ import annotations

import random
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.clock import Instant
from calve.errors import Unavailable
from calve.pipeline.backoff import Health
from calve.pipeline.due import SMALL_BYTES, FlushLimits, Pace, Waiting
from calve.pipeline.plan import FileRatio, cut, pieces_of, sample_bytes
from calve.settings import RetrySettings
from calve.sources.place import LogPlace
from calve.wal.extent import Extent
from tests.fakes.clocks import HandClock

LIMITS = FlushLimits(rows_max=1_000, bytes_max=1 << 24, interval_ms=5_000, freshness_ms=60_000)
START = Instant(0, 0.0)
FEW = Waiting(rows=1, bytes=100, since=START)


def seconds(count: float) -> Instant:
    return Instant(int(count * 1_000_000), count)


def test_rows_bytes_or_age_make_a_topic_due() -> None:
    pace = Pace()
    assert not pace.is_due(FEW, LIMITS, seconds(4.9))
    assert pace.is_due(FEW, LIMITS, seconds(5))
    assert pace.is_due(Waiting(1_000, 100, START), LIMITS, START)
    assert pace.is_due(Waiting(1, 1 << 24, START), LIMITS, START)


def test_a_trickle_waits_longer_each_time_up_to_the_freshness_and_not_once_it_is_busy() -> None:
    pace = Pace()
    intervals = []
    for _ in range(7):
        intervals.append(pace.interval_ms(LIMITS) // 1000)
        pace.flushed(100, LIMITS, by_age=True)
    assert intervals == [5, 10, 20, 40, 60, 60, 60]
    assert not pace.is_due(FEW, LIMITS, seconds(59))
    # More than a little waits: not a trickle any more.
    assert pace.is_due(Waiting(2, SMALL_BYTES, START), LIMITS, seconds(5))
    pace.flushed(SMALL_BYTES, LIMITS, by_age=True)
    assert pace.interval_ms(LIMITS) == 5_000


def test_a_flush_that_was_asked_for_is_no_trickle() -> None:
    pace = Pace()
    pace.flushed(100, LIMITS, by_age=False)
    assert pace.interval_ms(LIMITS) == 5_000


def test_a_freshness_of_one_interval_keeps_the_interval() -> None:
    limits = FlushLimits(1_000, 1 << 24, interval_ms=5_000, freshness_ms=5_000)
    pace = Pace()
    pace.flushed(100, limits, by_age=True)
    assert pace.interval_ms(limits) == 5_000


TARGET = 512 << 20


@given(
    log_bytes=st.integers(1, 1 << 40),
    ratio=st.floats(0.01, 3),
    target=st.sampled_from([1 << 20, TARGET]),
    tasks=st.integers(1, 16),
)
def test_pieces_of_a_backlog_become_files_of_a_good_size(
    log_bytes: int, ratio: float, target: int, tasks: int
) -> None:
    pieces = pieces_of(log_bytes, ratio, target, tasks)
    assert 1 <= len(pieces) <= tasks
    assert sum(pieces) <= log_bytes * 1.0001
    files = [size * ratio / target for size in pieces]
    if log_bytes * ratio <= 1.1 * target:
        assert pieces == [log_bytes]  # whoever writes it makes two even files if it has to
    else:
        assert all(0.54 <= size <= 0.951 for size in files), files


@given(
    files=st.floats(1.0, 100), tasks=st.integers(1, 16), target=st.sampled_from([1 << 20, TARGET])
)
def test_a_backlog_has_no_small_file_at_its_end(files: float, tasks: int, target: int) -> None:
    left = files * target
    while left > 1:
        pieces = pieces_of(int(left), 1.0, target, tasks)
        assert min(pieces) >= 0.499 * target, (left / target, pieces)
        left -= sum(pieces)


def test_of_an_unknown_topic_a_sample_is_written_first() -> None:
    assert sample_bytes(10 << 30, None, TARGET) == 32 << 20
    assert sample_bytes(10 << 30, None, 1 << 20) == int(0.85 * (1 << 20))
    assert sample_bytes(10 << 20, None, TARGET) is None
    assert sample_bytes(10 << 30, 0.5, TARGET) is None
    ratio = FileRatio()
    ratio.learn(1_000, 100_000)
    assert ratio.known is None
    ratio.learn(32 << 20, 16 << 20)
    assert ratio.known == 0.5


class _Frames:
    """A log whose frames have ten rows each, or as many as is said."""

    place = LogPlace(log_id=UUID(int=1), stream_id=UUID(int=2), directory="")
    durable = 1_000
    begins_at = 0

    def __init__(self, frame_rows: int = 10) -> None:
        self._frame_rows = frame_rows

    def require(self, committed: int) -> None:
        raise NotImplementedError

    def extent(self, start: int, end: int) -> Extent:
        return Extent(100 * (end - start), 0)

    def cut(self, start: int, offset: int) -> int:
        found = offset - offset % self._frame_rows
        return found if found > start else offset


def test_ranges_are_cut_where_frames_end() -> None:
    assert cut(_Frames(), 0, 1_000, [25_500, 25_500, 25_500], 100_000) == [0, 250, 510, 760]
    assert cut(_Frames(), 0, 1_000, [33_400, 33_300, 33_300], 100_000) == [0, 330, 660, 1_000]
    assert cut(_Frames(), 3, 1_000, [1_000_000], 99_700) == [3, 1_000]
    assert cut(_Frames(), 3, 1_000, [1, 1], 99_700) == [3, 4, 5]


@given(
    start=st.integers(0, 10_000),
    rows=st.integers(1, 1_000_000),
    row_bytes=st.integers(1, 10_000),
    ratio=st.floats(0.01, 3),
    tasks=st.integers(1, 16),
    frame_rows=st.integers(1, 1_000_000),
)
def test_pieces_cut_from_a_log_follow_each_other_and_have_their_size_however_large_frames_are(
    start: int, rows: int, row_bytes: int, ratio: float, tasks: int, frame_rows: int
) -> None:
    target, end, log_bytes = 1 << 20, start + rows, rows * row_bytes
    sizes = pieces_of(log_bytes, ratio, target, tasks)
    ends = cut(_Frames(frame_rows), start, end, sizes, log_bytes)
    assert ends[0] == start
    assert ends[-1] <= end
    assert ends == sorted(set(ends)), "every offset once"
    for (first, last), size in zip(pairwise(ends), sizes, strict=False):
        if last < end and size > 100 * row_bytes:
            assert 0.96 * size <= (last - first) * row_bytes <= 1.05 * size


def test_a_topic_that_fails_is_tried_ever_more_seldom_and_at_once_when_it_is_well() -> None:
    clock = HandClock()
    retry = RetrySettings(initial_delay_ms=100, max_delay_ms=1_000, backoff_multiplier=2)
    health = Health(retry, clock)
    waits = []
    for _ in range(6):
        health.failed(Unavailable("no answer"))
        before = clock.monotonic()
        while not health.may_try():
            clock.pass_seconds(0.005)
        waits.append(clock.monotonic() - before)
    for wait, most in zip(waits, [0.1, 0.2, 0.4, 0.8, 1, 1], strict=True):
        assert 0.7 * most <= wait <= most + 0.01
    assert health.is_suspect
    health.went_well()
    assert health.may_try()
    assert (health.error, health.next_try_at, health.failures) == (None, None, 0)


def test_a_very_long_outage_does_not_end_in_an_overflow() -> None:
    health = Health(RetrySettings(), HandClock())
    for _ in range(5_000):
        health.failed(Unavailable("no answer"))
    assert not health.may_try()


@pytest.mark.parametrize("seed", range(3))
def test_being_overtaken_is_no_failure_unless_it_goes_on(seed: int) -> None:
    health = Health(RetrySettings(), HandClock(), _random=random.Random(seed))
    for _ in range(3):
        health.overtaken(Unavailable("somebody was faster"))
        assert not health.is_suspect
    health.overtaken(Unavailable("somebody was faster"))
    assert health.is_suspect
