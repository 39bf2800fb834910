"""What the state keeps between the pipeline and those who watch and direct it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

PIPELINE_LEASE = "pipeline"


class TopicPartition(NamedTuple):
    topic_id: UUID
    partition: int


class Lease(NamedTuple):
    owner: str
    until: datetime


class PipelineOrders(NamedTuple):
    """`skips` are the ends up to which rows are set aside instead of written to their table.

    `resets` counts how often a committed offset was set back; where it never was, it has no entry.
    """

    is_paused: bool = False  # all of it
    paused_topics: frozenset[UUID] = frozenset()
    skips: Mapping[TopicPartition, int] = {}
    resets: Mapping[TopicPartition, int] = {}

    def holds_back(self, topic_id: UUID) -> bool:
        """Whether a topic is to be left alone."""
        return self.is_paused or topic_id in self.paused_topics


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Of a partition: what waits for its table, and how the last attempts went.

    Times instead of ages, so that what stands still need not be published again.
    """

    topic_id: UUID
    partition: int
    rows_waiting: int = 0
    bytes_waiting: int = 0
    waiting_since: datetime | None = None  # when the oldest of them was taken in
    flush_interval_ms: int = 0  # how old rows become before they are written, as things are
    committed_at: datetime | None = None  # the last commit
    error: str | None = None  # of the last attempt, None once one went well
    hint: str | None = None
    failures: int = 0  # in a row
    next_try_at: datetime | None = None

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class ProgressReport(NamedTuple):
    """`at` is when the pipeline published something last, None if it never did."""

    at: datetime | None
    partitions: dict[TopicPartition, Progress]
