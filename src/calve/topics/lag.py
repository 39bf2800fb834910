"""How far topics are from their tables: what waits in the log, and what the pipeline said of it.

What waits is read from the log, so that it is true also while no pipeline runs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import UUID

import msgspec

from calve.errors import Corruption
from calve.state import PIPELINE_LEASE, Progress, TopicPartition
from calve.topics.registry import TopicRegistry
from calve.wal.extent import extent_of

if TYPE_CHECKING:
    from calve.state import State
    from calve.topics.topic import Topic
    from calve.wal import LogReader, Stream

Condition: TypeAlias = Literal["failing", "paused", "waiting", "done"]
_WORST_FIRST: tuple[Condition, ...] = ("failing", "paused", "waiting", "done")


_Waiting: TypeAlias = tuple[int | None, int, int | None, datetime | None]


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """Of one partition of a topic. `lag_rows` are durable and not in the table yet, `lag_seconds`
    is the age of the oldest. None is what cannot be told here: its log is elsewhere. What is paused
    may be failing too; `next_try_at` is None while nothing is tried."""

    topic: str
    partition: int
    condition: Condition
    committed: int
    durable: int | None
    lag_rows: int
    lag_bytes: int | None
    lag_seconds: float | None
    flush_interval_ms: int | None = None
    last_commit_at: datetime | None = None
    last_error: str | None = None
    hint: str | None = None
    failures: int = 0
    next_try_at: datetime | None = None
    flush_to: int | None = None
    skip_to: int | None = None
    is_paused: bool = False  # alone, or with the whole pipeline


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`owner` runs it, if anybody does. `partitions` come the worst first."""

    is_running: bool
    is_paused: bool  # all of it
    owner: str | None
    partitions: list[PartitionLag]


def pipeline_status(
    state: State, reader: LogReader | None, *, now: datetime, topic_id: UUID | None = None
) -> PipelineStatus:
    """How the pipeline is doing, or how it is with one topic."""
    lease = state.lease(PIPELINE_LEASE)
    look = _Look(state, reader, now, is_running=lease is not None)
    found = [
        look.at(topic, partition)
        for topic in TopicRegistry(state).list()
        if topic_id in {None, topic.id}
        for partition in sorted(topic.partitions)
    ]
    found.sort(key=lambda each: (_WORST_FIRST.index(each.condition), -each.lag_rows, each.topic))
    return PipelineStatus(
        is_running=lease is not None,
        is_paused=look.orders.is_paused,
        owner=lease.owner if lease else None,
        partitions=found,
    )


class _Look:
    """Everything that is the same for all partitions, read once."""

    def __init__(
        self, state: State, reader: LogReader | None, now: datetime, *, is_running: bool
    ) -> None:
        self.orders = state.pipeline_orders()
        self._state = state
        self._reader = reader
        self._streams = {each.id: each for each in reader.streams} if reader else {}
        self._flushes = state.flush_requests()
        self._progress = state.progress().partitions
        self._now = now
        self._is_running = is_running

    def at(self, topic: Topic, partition: int) -> PartitionLag:
        at = TopicPartition(topic.id, partition)
        told = self._progress.get(at) or Progress(topic_id=topic.id, partition=partition)
        stream = self._streams.get(topic.partitions[partition].stream_id)
        known = self._state.committed(topic.id, partition)
        begin = stream.first_offset if stream else topic.first_offsets.get(partition, 0)
        committed = known.offset if known else begin
        waiting: _Waiting = (None, told.rows_waiting, None, told.waiting_since)
        damage: Corruption | None = None
        if stream is not None and self._reader is not None:
            try:
                waiting = _waiting(self._reader, stream, committed)
            except Corruption as error:
                damage = error  # of this one's rows; the others are looked at all the same
        durable, rows, size, since = waiting
        is_paused = self.orders.holds_back(topic.id)
        return PartitionLag(
            topic=str(topic.name),
            partition=partition,
            condition=_condition(
                rows, is_failing=(damage or told.error) is not None, is_paused=is_paused
            ),
            committed=committed,
            durable=durable,
            lag_rows=rows,
            lag_bytes=size,
            lag_seconds=self._age_seconds(since, told) if since else None,
            flush_interval_ms=told.flush_interval_ms or None,
            last_commit_at=told.committed_at,
            last_error=damage.message if damage else told.error,
            hint=damage.hint if damage else told.hint,
            failures=told.failures,
            next_try_at=told.next_try_at if self._is_running and not is_paused else None,
            flush_to=self._flushes.get(at),
            skip_to=self.orders.skips.get(at),
            is_paused=is_paused,
        )

    def _age_seconds(self, since: datetime, told: Progress) -> float:
        """Where the log's times lie ahead of a clock that was set back, since the pipeline saw."""
        if since > self._now and told.waiting_since is not None:
            since = told.waiting_since
        return max(0.0, (self._now - since).total_seconds())


def _condition(rows: int, *, is_failing: bool, is_paused: bool) -> Condition:
    if is_failing:
        return "failing"
    if is_paused:
        return "paused"
    return "waiting" if rows else "done"


def _waiting(reader: LogReader, stream: Stream, committed: int) -> _Waiting:
    """The durable end; how many rows wait before it, their bytes, and since when."""
    offsets = reader.offsets(stream)
    start = max(committed, offsets.first)
    if start >= offsets.durable:
        return offsets.durable, 0, 0, None
    extent = extent_of(reader, stream, start, offsets.durable)
    since = None if extent.since_us is None else _at(extent.since_us)
    return offsets.durable, offsets.durable - start, extent.bytes, since


def _at(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)
