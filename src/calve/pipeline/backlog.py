"""Which topics have rows that wait, how many these are, and which of them are due.

Nothing is looked at twice that has not changed: a thousand idle topics cost one look at the log and
one at the registry.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from calve.clock import Instant
from calve.errors import CalveError
from calve.pipeline.backoff import Health
from calve.pipeline.due import FlushLimits, Waiting, is_many
from calve.pipeline.feed import TopicFeed
from calve.pipeline.lane_work import PartitionWork, TopicWork
from calve.state.work import PipelineOrders, TopicPartition
from calve.topics.topic import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from calve.clock import Clock
    from calve.model import TableName
    from calve.pipeline.feed import PartitionFeed
    from calve.settings import Settings
    from calve.sources.logs import Logs
    from calve.state import State, TopicRecord
    from calve.topics.topic import Topic

_LOG: Final = logging.getLogger(__name__)
_CYCLE_BYTES_PER_TASK: Final = 2 << 30


class Backlog:
    """Not for several threads; the feeds of topics that are taken belong to their lanes."""

    def __init__(
        self, settings: Settings, state: State, logs: Logs, *, tasks_max: int, clock: Clock
    ) -> None:
        self._settings = settings
        self._state = state
        self._logs = logs
        self._clock = clock
        self._cycle_bytes = tasks_max * _CYCLE_BYTES_PER_TASK
        self._feeds: dict[UUID, TopicFeed] = {}
        self._topics: dict[UUID, Topic] = {}
        self._decoded: dict[TableName, Topic] = {}
        self._seen: tuple[int, int] | None = None
        self._awake: set[UUID] = set()  # those that have something to be looked at again
        self._orders = PipelineOrders()
        self._asked: Mapping[TopicPartition, int] = {}
        self.is_draining = False

    @property
    def feeds(self) -> list[TopicFeed]:
        return list(self._feeds.values())

    def look(self) -> list[TopicWork]:
        """The topics that are due now, each taken for whoever works on it."""
        # The log first: a topic is changed before rows come that need the change.
        logs = self._logs.refresh()
        changes = self._state.change_count()
        if self._seen is None or changes != self._seen[1]:
            self._follow_topics()
        if (logs, changes) != self._seen:
            self._awake.update(self._feeds)
            self._seen = (logs, changes)
        self._orders = self._state.pipeline_orders()
        self._asked = self._state.flush_requests()
        self._awake.update(at.topic_id for at in self._asked if at.topic_id in self._feeds)
        self._awake.update(self._set_back())
        return self._within_bounds(self._due())

    def _set_back(self) -> Iterator[UUID]:
        """The topics of which rows have left the table, or are about to, to come again."""
        for at, resets in self._orders.resets.items():
            feed = self._feeds.get(at.topic_id)
            known = feed.partitions.get(at.partition) if feed else None
            if known is not None and known.resets != resets:
                yield at.topic_id

    def is_empty(self) -> bool:
        """Whether nothing was left in any log when last looked at, but for what is paused."""
        return not any(
            self._has_waiting(feed)
            for feed in self._feeds.values()
            if feed.is_busy or not self._orders.holds_back(feed.topic.id)
        )

    def held_back(self) -> list[TableName]:
        """The topics that have rows and are paused."""
        return sorted(
            feed.topic.name
            for feed in self._feeds.values()
            if self._has_waiting(feed) and self._orders.holds_back(feed.topic.id)
        )

    def _follow_topics(self) -> None:
        self._decoded = {
            record.name: topic
            for record in self._state.topics()
            if (topic := self._topic(record)) is not None
        }
        self._topics = {topic.id: topic for topic in self._decoded.values()}
        for topic_id in self._feeds.keys() - self._topics.keys():
            del self._feeds[topic_id]
            self._awake.discard(topic_id)
        for topic_id, topic in self._topics.items():
            if topic_id not in self._feeds:
                health = Health(self._settings.retry, self._clock)
                self._feeds[topic_id] = TopicFeed(topic, health)

    def _topic(self, record: TopicRecord) -> Topic | None:
        known = self._decoded.get(record.name)
        if known is not None and known.version == record.version:
            return known
        try:
            return decode(record)
        except CalveError as error:
            _LOG.error("%s stops: %s", record.name, error.message)
            return None

    def _due(self) -> Iterator[TopicWork]:
        for topic_id in sorted(self._awake, key=lambda each: self._feeds[each].served_at):
            feed = self._feeds[topic_id]
            if not feed.take():
                continue
            work = self._looked_at(feed)
            if work is not None:
                yield work
                continue
            feed.give_back()
            if not self._has_waiting(feed):
                self._awake.discard(topic_id)

    def _looked_at(self, feed: TopicFeed) -> TopicWork | None:
        """What has to be done for a topic now, if anything; its trouble is no other's."""
        topic = self._topics[feed.topic.id]
        if feed.topic is not topic or not feed.partitions:
            feed.follow(topic)
        parts = [part for each in feed.partitions.values() if (part := self._share(feed, each))]
        is_time = feed.health.may_try()
        if not parts and is_time:
            feed.health.went_well()
        may = is_time or any(part.skip_to for part in parts)
        if not parts or not may or self._orders.holds_back(feed.topic.id):
            return None
        return TopicWork(feed, feed.topic, parts)

    def _share(self, feed: TopicFeed, each: PartitionFeed) -> PartitionWork | None:
        """The partition's share, if it is due; what its log suffers from is no other's trouble."""
        try:
            share = self._part(feed, each)
        except CalveError as error:
            if str(error) != str(each.log_error):
                _LOG.warning("%s/%s stops: %s", feed.topic.name, each.number, error.message)
            each.log_error = error
            return None
        each.log_error = None
        return share

    def _part(self, feed: TopicFeed, each: PartitionFeed) -> PartitionWork | None:
        if each.log is None:
            each.log = self._logs.log(feed.topic, each.number)
        if each.log is None:
            return None
        durable = each.durable = each.log.durable
        at = TopicPartition(feed.topic.id, each.number)
        each.follow_resets(self._orders.resets.get(at, 0))
        skip_to = self._orders.skips.get(at, 0)
        is_asked = (
            feed.is_due_now
            or self.is_draining
            or feed.health.is_suspect
            or max(self._asked.get(at, 0), skip_to) > (each.committed or 0)
        )
        if each.committed is None:
            end = durable if is_asked else 0
            return PartitionWork(each, end, self._cycle_bytes, skip_to=skip_to)
        if durable < each.committed:
            each.log.require(each.committed)
        if durable <= each.committed:
            each.waiting = None
            return None
        waiting = self._waiting(each, each.committed, durable)
        limits = FlushLimits.of(self._settings, feed.topic)
        is_asked = is_asked or each.parcel is not None
        if not is_asked and not each.pace.is_due(waiting, limits, Instant.now(self._clock)):
            return None
        by_age = not is_asked and not is_many(waiting, limits)
        return PartitionWork(each, durable, self._cycle_bytes, by_age=by_age, skip_to=skip_to)

    def _waiting(self, each: PartitionFeed, committed: int, durable: int) -> Waiting:
        """What waits; of the log only what came since the last look."""
        assert each.log is not None
        if each.waiting is not None and each.waiting_range == (committed, durable):
            return each.waiting
        each.log.require(committed)
        extent = each.log.extent(committed, durable)
        is_seen = each.waiting is not None and each.waiting_range[0] == committed
        since = each.waiting.since if each.waiting and is_seen else self._since(extent.since_us)
        each.waiting = Waiting(durable - committed, extent.bytes, since)
        each.waiting_range = (committed, durable)
        return each.waiting

    def _since(self, taken_in_us: int | None) -> Instant:
        """Since when rows wait that are seen for the first time; never after now."""
        now = Instant.now(self._clock)
        return now if taken_in_us is None else now._replace(wall_us=min(taken_in_us, now.wall_us))

    def _has_waiting(self, feed: TopicFeed) -> bool:
        is_behind = any(each.is_behind or each.log_error for each in feed.partitions.values())
        return is_behind or feed.is_busy or feed.health.is_suspect

    def _within_bounds(self, works: Iterator[TopicWork]) -> list[TopicWork]:
        """Those that have been waiting longest, and no more than a cycle can carry."""
        chosen: list[TopicWork] = []
        bytes_left = self._cycle_bytes
        for work in works:
            wanted = sum(each.feed.waiting.bytes for each in work.parts if each.feed.waiting)
            if chosen and wanted > bytes_left:
                work.feed.give_back()
                continue
            for part in work.parts:
                part.bytes_max = max(bytes_left, 1)
            bytes_left -= min(wanted, bytes_left)
            work.feed.served_at = self._clock.monotonic()
            chosen.append(work)
        return chosen
