"""What the pipeline tells those who watch it: of each partition, whenever that has changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from calve.errors import Corruption
from calve.pipeline.due import FlushLimits
from calve.state.work import Progress, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from calve.clock import Clock
    from calve.pipeline.feed import PartitionFeed, TopicFeed
    from calve.settings import Settings
    from calve.state import State

_CHANGED_SECONDS: Final = 1.0
_ALIVE_SECONDS: Final = 5.0


class ProgressReports:
    def __init__(self, settings: Settings, state: State, clock: Clock) -> None:
        self._settings = settings
        self._state = state
        self._clock = clock
        self._told: dict[TopicPartition, Progress] = {}
        self._told_at = float("-inf")
        self._earlier: Mapping[TopicPartition, Progress] | None = None

    def publish(self, feeds: Iterable[TopicFeed], *, at_once: bool = False) -> None:
        """Tell what has changed, now and then; and from time to time that the pipeline is alive."""
        since = self._clock.monotonic() - self._told_at
        if since < _CHANGED_SECONDS and not at_once:
            return
        found = [each for feed in feeds for each in self.of(feed)]
        changed = [each for each in found if self._told.get(each.at) != each]
        if not changed and since < _ALIVE_SECONDS:
            return
        self._state.publish_progress(changed)
        self._told.update((each.at, each) for each in changed)
        self._told_at = self._clock.monotonic()

    def of(self, feed: TopicFeed) -> list[Progress]:
        limits = FlushLimits.of(self._settings, feed.topic)
        return [self._of(feed, each, limits) for each in feed.partitions.values()]

    def _of(self, feed: TopicFeed, each: PartitionFeed, limits: FlushLimits) -> Progress:
        waiting, error = each.waiting, each.log_error or feed.health.error
        return Progress(
            topic_id=feed.topic.id,
            partition=each.number,
            rows_waiting=waiting.rows if waiting else 0,
            bytes_waiting=waiting.bytes if waiting else 0,
            waiting_since=_moment(waiting.since.wall_us) if waiting else None,
            flush_interval_ms=each.pace.interval_ms(limits),
            committed_at=each.committed_at or self._committed_before(feed.topic.id, each.number),
            error=error.message if error else None,
            hint=error.hint if error else None,
            failures=feed.health.failures,
            next_try_at=feed.health.next_try_at,
        )

    def _committed_before(self, topic_id: UUID, partition: int) -> datetime | None:
        """The last commit as told, maybe by an earlier driver; the table was not read yet."""
        if self._earlier is None:
            self._earlier = self._read_earlier()
        at = TopicPartition(topic_id, partition)
        told = self._told.get(at) or self._earlier.get(at)
        return told.committed_at if told else None

    def _read_earlier(self) -> Mapping[TopicPartition, Progress]:
        try:
            return self._state.progress().partitions
        except Corruption:
            return {}  # which is written anew


def _moment(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC)
