"""What goes over the wire, as types: the answers, and the bodies that are JSON of ours.

A contract: fields are added, never renamed. The OpenAPI document is made from these.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType, field

Count = Annotated[int, Meta(ge=0)]
Bound = Annotated[int, Meta(ge=1, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Retention = Annotated[
    int, Meta(ge=1, description="how long the table is to keep rows; nothing removes them yet")
]
OnUnknownColumn = Literal["add", "ignore", "dead_letter", "refuse"]
OnBadRow = Literal["refuse", "dead_letter"]


class Appended(Struct, frozen=True, kw_only=True):
    """Rows that are durable, at offsets from `first` up to but not including `end`.

    The two are null for a repeat that is older than the log remembers. Rejected rows come after
    the others, and take offsets too. Of a repeat that could not be read again, `rows` counts them
    all; 0 if they are not known.
    """

    topic: str
    partition: int
    first: int | None
    end: int | None
    rows: Count
    repeat: bool
    rejected: Count = 0
    reasons: list[str] = field(default_factory=list)


class RowView(Struct, frozen=True, kw_only=True):
    partition: int
    offset: int
    ingested_at: datetime
    value: dict[str, Any]


class RowsPage(Struct, frozen=True, kw_only=True):
    """Rows from the log. `next` is the offset to go on from; `end` that of what is durable."""

    topic: str
    rows: list[RowView]
    next: int
    first: int
    end: int


class Column(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A column; `type` such as long, string, timestamptz, decimal(10,2), list<string>."""

    name: Name
    type: Name
    required: bool = False
    doc: str | None = None


class ColumnView(Struct, frozen=True, kw_only=True):
    """A column of a topic, as every door shows it."""

    name: str
    type: str
    required: bool


class BindingView(Struct, frozen=True, kw_only=True):
    """Which stream of which log holds a partition."""

    log_id: UUID
    stream_id: UUID


class FlushView(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When rows go to the table: at so many, so large, or so old; null is the pipeline's setting.

    A topic with little to write waits longer each time, up to `freshness_ms`.
    """

    rows_max: Bound | None = None
    bytes_max: Bound | None = None
    interval_ms: Bound | None = None
    freshness_ms: Bound | None = None


class FlushPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays; null goes back to the pipeline's setting."""

    rows_max: Bound | UnsetType | None = UNSET
    bytes_max: Bound | UnsetType | None = UNSET
    interval_ms: Bound | UnsetType | None = UNSET
    freshness_ms: Bound | UnsetType | None = UNSET


class TopicView(Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    kind: Literal["rows", "messages"]
    columns: list[ColumnView]
    partition_by: list[str]
    sort_by: list[str]
    properties: dict[str, str]
    retention_seconds: int | None
    on_unknown_column: OnUnknownColumn
    on_bad_row: OnBadRow
    flush: FlushView
    is_bound: bool
    created_at: datetime
    version: int
    dropped_columns: list[list[str]]
    renamed_columns: list[list[list[str]]]
    partitions: dict[int, BindingView]
    problem: str | None = None  # why it does not go on here, if it does not


class Offsets(Struct, frozen=True, kw_only=True):
    """Of one partition: what the log still holds, what is durable, what is in the table."""

    topic: str
    partition: int
    first: int
    durable: int
    committed: int


class TopicDetails(Struct, frozen=True, kw_only=True):
    topic: TopicView
    offsets: Offsets
    rows: Count
    bytes: Count
    producers: Count


class TopicList(Struct, frozen=True, kw_only=True):
    topics: list[TopicView]


class NewTopic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic to be made. One of messages, or one that is bound to its table, has no columns."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    kind: Literal["rows", "messages"] = "rows"
    columns: list[Column] | None = None
    partition_by: list[str] = field(default_factory=list)
    sort_by: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    retention_seconds: Retention | None = None
    on_unknown_column: OnUnknownColumn | None = None
    on_bad_row: OnBadRow = "refuse"
    flush: FlushView = FlushView()
    bind_table: bool = False


class TopicPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes different; whatever is left out stays. A property of null is removed."""

    on_unknown_column: OnUnknownColumn | None = None
    on_bad_row: OnBadRow | None = None
    retention_seconds: Retention | UnsetType | None = UNSET
    properties: dict[str, str | None] = field(default_factory=dict)
    flush: FlushPatch = FlushPatch()
    add_columns: list[Column] = field(default_factory=list)
    drop_columns: list[str] = field(default_factory=list)
    rename_columns: dict[str, str] = field(default_factory=dict)


class NewMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message; its payload in base64."""

    payload: bytes
    key: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    content_type: str | None = None
    schema: str | None = None
    publish_time: datetime | None = None


class PauseOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One topic; all of them, if it is left out."""

    topic: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class SkipOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rows of a topic before the offset `to`; the partition, if the topic has several."""

    topic: Annotated[str, Meta(min_length=1, max_length=200)]
    to: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class PartitionPlace(Struct, frozen=True, kw_only=True):
    """Where a subscription is: the offset that comes next, and the end of the partition; null if
    the topic is gone, or cannot be read now."""

    partition: int
    position: Count
    end: Count | None


class SubscriptionView(Struct, frozen=True, kw_only=True):
    """A subscription. `lag` counts the offsets that are not acknowledged."""

    topic: str
    name: str
    partitions: list[PartitionPlace]
    lag: Count | None
    owner: str | None
    owned_until: datetime | None
    created_at: datetime


class SubscriptionList(Struct, frozen=True, kw_only=True):
    subscriptions: list[SubscriptionView]


class Acknowledge(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The id of an event: everything up to it, in all partitions, is done with."""

    id: Annotated[str, Meta(min_length=1, max_length=10_000)]


class Acknowledged(Struct, frozen=True, kw_only=True):
    """False if the subscription was moved since the event was sent: its rows come again."""

    counts: bool


class SeekOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`earliest`, `latest`, an offset, `0:1200,1:800` by partition, or a time."""

    to: Annotated[str, Meta(min_length=1, max_length=10_000)]


class TopicProblem(Struct, frozen=True, kw_only=True):
    """A topic that does not go on here, and why."""

    topic: str
    detail: str
    hint: str | None


class Status(Struct, frozen=True, kw_only=True):
    version: str
    partition: int
    log_id: UUID
    topics: Count
    problems: list[TopicProblem]
    stopped: str | None  # why no rows are taken in, if none are
    requests: Count
    memory_bytes: Count
    memory_bytes_max: Count


class Health(Struct, frozen=True, kw_only=True):
    status: Literal["live", "ready"]
