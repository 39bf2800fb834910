"""When rows that wait are brought to their table: by their number, their bytes or their age.

A topic with few rows would get a small file at every interval for ever. So after each flush that
was small the interval doubles, up to the freshness that the settings promise, and is what it was
as soon as there is more to write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calve.clock import Instant
    from calve.settings import Settings
    from calve.topics.topic import Topic

SMALL_BYTES: Final = 1 << 20  # of the log
_FACTOR_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """What makes a topic due, as its own words or else the settings say."""

    rows_max: int
    bytes_max: int
    interval_ms: int
    freshness_ms: int

    @classmethod
    def of(cls, settings: Settings, topic: Topic) -> FlushLimits:
        common, own = settings.pipeline, topic.flush
        interval_ms = own.interval_ms or common.flush_interval_ms
        return cls(
            rows_max=own.rows_max or common.rows_max,
            bytes_max=own.bytes_max or common.bytes_max,
            interval_ms=interval_ms,
            freshness_ms=max(own.freshness_ms or common.freshness_ms, interval_ms),
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a partition's log has that its table has not.

    `since` is when the oldest row was taken in by the wall's clock, and when it was first seen
    here by the one that never jumps.
    """

    rows: int
    bytes: int
    since: Instant

    def age_ms(self, now: Instant) -> float:
        """By either clock: a log's times lie ahead for as long as the wall's was set back."""
        by_wall = (now.wall_us - self.since.wall_us) / 1000
        return max(by_wall, 1000 * (now.monotonic - self.since.monotonic))


class Pace:
    """How long rows of one partition wait at most, as things go."""

    def __init__(self) -> None:
        self._factor = 1

    def interval_ms(self, limits: FlushLimits) -> int:
        return min(limits.interval_ms * self._factor, limits.freshness_ms)

    def flushed(self, log_bytes: int, limits: FlushLimits, *, by_age: bool) -> None:
        """Take in that so much was brought to the table, and whether it was for its age."""
        if log_bytes >= SMALL_BYTES:
            self._factor = 1
        elif by_age and self.interval_ms(limits) < limits.freshness_ms:
            self._factor = min(2 * self._factor, _FACTOR_MAX)

    def is_due(self, waiting: Waiting, limits: FlushLimits, now: Instant) -> bool:
        return is_many(waiting, limits) or waiting.age_ms(now) >= self._patience(waiting, limits)

    def _patience(self, waiting: Waiting, limits: FlushLimits) -> int:
        is_busy = waiting.bytes >= SMALL_BYTES
        return limits.interval_ms if is_busy else self.interval_ms(limits)


def is_many(waiting: Waiting, limits: FlushLimits) -> bool:
    """Whether the rows are enough to be written, whatever their age."""
    return waiting.rows >= limits.rows_max or waiting.bytes >= limits.bytes_max
