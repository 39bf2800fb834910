"""What a store of the registry must do, whatever keeps it; one module per backend.

Records are bytes to it: what is in them is the registry's business. Every call is one short
transaction, durable when it returns, and safe beside other threads and processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from calve.model import TableName


class TopicRecord(NamedTuple):
    """A topic as it is kept. A version is never used twice, also not after a deletion."""

    name: TableName
    content: bytes
    version: int


class CommittedOffset(NamedTuple):
    """The end of what is in the table of one partition's log, and when that was published."""

    log_id: UUID
    offset: int
    at: datetime


class State(Protocol):
    def create_topic(self, name: TableName, content: bytes) -> TopicRecord | None:
        """The new record; None if there is a topic of that name."""
        ...

    def topic(self, name: TableName) -> TopicRecord | None: ...

    def topics(self, tenant: str | None = None) -> list[TopicRecord]:
        """All of them, or a tenant's, by name."""
        ...

    def replace_topic(self, expected: TopicRecord, content: bytes) -> TopicRecord | None:
        """The new record; None if the topic is no longer at the expected version."""
        ...

    def delete_topic(
        self, expected: TopicRecord, topic_id: UUID, ended_streams: Sequence[UUID]
    ) -> bool:
        """Forget the topic with its offsets, and remember the streams that ended with it.

        False if it is no longer at the expected version.
        """
        ...

    def ended_streams(self) -> set[UUID]:
        """Streams of deleted topics, whose logs may go."""
        ...

    def forget_ended(self, stream_id: UUID) -> None:
        """Its log is gone."""
        ...

    def change_count(self) -> int:
        """A number that is another one after every change of a topic."""
        ...

    def committed(self, topic_id: UUID, partition: int) -> CommittedOffset | None: ...

    def publish_committed(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int
    ) -> CommittedOffset:
        """Say how far the table has come; what holds now. It never goes back.

        Conflict if another log's offset is known: `reset_committed` sets it on purpose.
        """
        ...

    def reset_committed(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int
    ) -> CommittedOffset:
        """Set the offset, also back or to another log's: a replay, or a new log for the topic."""
        ...

    def add_bytes(self, partition: int, more_bytes: Mapping[UUID, int]) -> None:
        """Count what was sent to topics, by their ids."""
        ...

    def bytes_appended(self, topic_id: UUID, partition: int) -> int: ...

    def close(self) -> None: ...
