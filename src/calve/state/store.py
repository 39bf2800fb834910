"""What a store of the registry must do, whatever keeps it; one module per backend.

Records are bytes to it: what is in them is the registry's business. Every call is one short
transaction, durable when it returns, and safe beside other threads and processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from calve.model import TableName
from calve.state.subscriptions import Follower, Subscription, SubscriptionClaim, SubscriptionName
from calve.state.work import Lease, PipelineOrders, Progress, ProgressReport, TopicPartition


class TopicRecord(NamedTuple):
    """A topic as it is kept. A version is never used twice, also not after a deletion."""

    name: TableName
    content: bytes
    version: int


class CommittedOffset(NamedTuple):
    """The end of what is in the table of one partition's log, and when that was published.

    `resets` counts how often it was set back.
    """

    log_id: UUID
    offset: int
    at: datetime
    resets: int = 0


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

    def reached(self, topic_id: UUID, partition: int) -> int:
        """Up to where the table has the rows; of one that was set back, what is left in it."""
        ...

    def all_committed(self, partition: int) -> dict[UUID, CommittedOffset]:
        """The offsets of a partition, by topic, as the log may go by them now.

        Of a table that was set back without anybody saying so, what is left in it.
        """
        ...

    def keeping_committed(
        self, partition: int
    ) -> AbstractContextManager[dict[UUID, CommittedOffset]]:
        """The offsets of a partition, by topic. Nobody sets one back before the block ends."""
        ...

    def publish_committed(
        self,
        topic_id: UUID,
        partition: int,
        *,
        log_id: UUID,
        offset: int,
        resets: int | None = None,
        is_commit: bool = False,
    ) -> CommittedOffset:
        """Say how far the table has come; what holds now. It never goes back.

        Nothing changes if it was set back since the caller saw `resets`, nor while it is held. A
        commit of the caller's own, made since then, ends that: it comes after whatever the hold
        was for, or in its place. Conflict if another log's offset is known: `reset_committed`
        sets it on purpose.
        """
        ...

    def reset_committed(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int
    ) -> CommittedOffset:
        """Set the offset, also back or to another log's: the table decides, or a new log."""
        ...

    def hold_committed(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int, seconds: float
    ) -> CommittedOffset:
        """Set the offset back before rows leave the table that are to come again; what holds now.

        So the log keeps them. It stays there until `release_committed`, or for so long.
        """
        ...

    def note_rewound(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int, resets: int
    ) -> bool:
        """Say that a table has come to less than is known, so that the log keeps the rest.

        The committed offset stays. It is over when the table is said to have come that far after
        all, or when the offset is set. False, and nothing changes, if it was set back since the
        caller saw `resets`, or is known to be no more than that.
        """
        ...

    def release_committed(self, topic_id: UUID, partition: int, *, resets: int) -> None:
        """End a hold, unless there was another since; whoever follows the table reads it again."""
        ...

    def take_lease(self, name: str, owner: str, seconds: float) -> bool:
        """Whether the lease is the owner's now, for so long; taking it again renews it.

        It ends by the wall clock. A clock that jumps by more than the lease's length ends it too,
        so that no jump keeps it for ever; correctness must not rest on it.
        """
        ...

    def release_lease(self, name: str, owner: str) -> None:
        """Let others have it; nothing happens if it is somebody else's by now."""
        ...

    def lease(self, name: str) -> Lease | None:
        """Who has it, if anybody has."""
        ...

    def request_flush(self, topic_id: UUID, partition: int, offset: int) -> None:
        """Have the pipeline bring the rows below an offset to the table without waiting.

        The request is gone when they are there: when that is published as committed.
        """
        ...

    def flush_requests(self) -> dict[TopicPartition, int]:
        """The highest offset that was asked for, of each partition where some are missing yet."""
        ...

    def pause_pipeline(self, topic_id: UUID | None = None) -> None:
        """Have it leave a topic alone, or without one all of them, until it is resumed."""
        ...

    def resume_pipeline(self, topic_id: UUID | None = None) -> None:
        """Have it go on with a topic; without one with all, also those paused by themselves."""
        ...

    def request_skip(self, topic_id: UUID, partition: int, end: int) -> int:
        """Have it set aside, as dead letters, all rows below `end` that are in no table yet.

        The end that holds now: an earlier order may go further. It is gone when that is published
        as committed.
        """
        ...

    def pipeline_orders(self) -> PipelineOrders:
        """What it was told to leave alone and to set aside."""
        ...

    def publish_progress(self, changed: Sequence[Progress]) -> None:
        """Say that the pipeline works, and what became different; the rest stays as it was."""
        ...

    def progress(self) -> ProgressReport:
        """How far the pipeline is, as it said last; maybe also of topics that are gone by now."""
        ...

    def add_bytes(self, partition: int, more_bytes: Mapping[UUID, int]) -> None:
        """Count what was sent to topics, by their ids."""
        ...

    def bytes_appended(self, topic_id: UUID, partition: int) -> int: ...

    def create_subscription(
        self, name: SubscriptionName, topic_id: UUID, positions: Mapping[int, int]
    ) -> Subscription | None:
        """A new one, whose partitions begin at these offsets; None if there is one."""
        ...

    def subscription(self, name: SubscriptionName) -> Subscription | None: ...

    def subscriptions(self, topic: TableName | None = None) -> list[Subscription]:
        """All of them, or a topic's, by name."""
        ...

    def positions(self, name: SubscriptionName) -> dict[int, int]:
        """By partition, the offset below which everything is acknowledged."""
        ...

    def delete_subscription(self, name: SubscriptionName) -> bool:
        """Forget it and its progress; False if there is none."""
        ...

    def claim_subscription(
        self, name: SubscriptionName, owner: str, seconds: float, *, succeeds: int | None = None
    ) -> SubscriptionClaim | None:
        """Have it for so long; None while somebody else has it. An owner's name is used once.

        A token is greater than any that was given before. Whoever `succeeds` the owner with that
        token, because it is the same consumer and has lost its connection, has it at once; the
        former one is fenced.
        """
        ...

    def renew_subscription(self, claimed: SubscriptionClaim, seconds: float) -> SubscriptionClaim:
        """Keep it for so long from now on, in its present generation; Fenced if it was lost."""
        ...

    def release_subscription(self, claimed: SubscriptionClaim) -> None:
        """Let others have it; nothing happens if it is somebody else's by now."""
        ...

    def acknowledge(self, claimed: SubscriptionClaim, partition: int, offset: int) -> int:
        """Say that everything below an offset is done with; what holds now, never less than before.

        Fenced if somebody else has claimed it since; Conflict if it was moved since.
        """
        ...

    def move_subscription(self, name: SubscriptionName, to: Mapping[int, int]) -> Subscription:
        """Set partitions to offsets, also back, as a new generation."""
        ...

    def follow(
        self, table: TableName, follower: str, snapshot_id: int | None, seconds: float
    ) -> None:
        """Say which snapshot a follower is done with, if any, and that it goes on for so long."""
        ...

    def unfollow(self, table: TableName, follower: str) -> None: ...

    def follower(self, table: TableName, name: str) -> Follower | None:
        """Where a follower is, alive or not."""
        ...

    def followers(self, table: TableName) -> list[Follower]:
        """All of them, alive or not, by name."""
        ...

    def create_token(self, token_id: str, content: bytes) -> bool:
        """Keep a token; False if there is one of that id."""
        ...

    def token(self, token_id: str) -> bytes | None: ...

    def tokens(self) -> dict[str, bytes]:
        """All of them, by id."""
        ...

    def delete_token(self, token_id: str) -> bool:
        """Forget it; False if there is none."""
        ...

    def signing_key(self, name: str) -> bytes:
        """Random bytes that everybody who uses this state has in common; made when first asked."""
        ...

    def close(self) -> None: ...
