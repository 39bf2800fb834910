"""A topic as plain data: what it is, what was asked for, and what may be changed later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from calve.errors import Corruption
from calve.model import TableName
from calve.tables.column_memory import ColumnMemory
from calve.topics.flush import FlushBounds

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema

    from calve.state import TopicRecord
    from calve.tables.schemas import SchemaSource

Kind: TypeAlias = Literal["rows", "messages"]
OnUnknownColumn: TypeAlias = Literal["add", "ignore", "dead_letter", "refuse"]
OnBadRow: TypeAlias = Literal["refuse", "dead_letter"]
Path: TypeAlias = tuple[str, ...]


class Binding(msgspec.Struct, frozen=True):
    """Which stream of which log holds the rows of one of a topic's partitions."""

    log_id: UUID
    stream_id: UUID


class Topic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic. Whatever changes, `id` stays; made again after a deletion, it is another one."""

    id: UUID
    name: TableName
    kind: Kind = "rows"
    schema_json: str  # Iceberg's own form
    last_column_id: int  # of all columns that there ever were
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    retention_seconds: int | None = None
    on_unknown_column: OnUnknownColumn = "add"
    on_bad_row: OnBadRow = "refuse"
    flush: FlushBounds = FlushBounds()
    is_bound: bool = False  # to a table that was there before it
    dropped_columns: tuple[Path, ...] = ()
    renamed_columns: tuple[tuple[Path, Path], ...] = ()
    partitions: dict[int, Binding] = msgspec.field(default_factory=dict)
    first_offsets: dict[int, int] = msgspec.field(default_factory=dict)  # of the next stream
    created_at: datetime
    asked: str  # what `create` was asked for, to know the same request again
    version: int = 0  # the registry's

    @property
    def schema(self) -> Schema:
        """The columns that users see. Made anew at each call."""
        from calve.tables.schemas import schema_from_json

        return schema_from_json(self.schema_json)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The same as Arrow has them; batches may have a part of these, in any order."""
        from calve.tables.schemas import arrow_schema

        return arrow_schema(self.schema)

    @property
    def memory(self) -> ColumnMemory:
        """What became of columns that were dropped or renamed."""
        return ColumnMemory(frozenset(self.dropped_columns), dict(self.renamed_columns))

    def with_memory(self, memory: ColumnMemory) -> Topic:
        return msgspec.structs.replace(
            self,
            dropped_columns=tuple(sorted(memory.dropped)),
            renamed_columns=tuple(sorted(memory.renamed.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """What a new topic is to be. `schema` is whatever makes a table, or the path of its file.

    A topic of messages has a schema of its own; one that is bound takes its table's. How long rows
    are to be kept is remembered, and nothing removes any yet.
    """

    kind: Kind = "rows"
    schema: SchemaSource | None = None
    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    retention_seconds: int | None = None
    on_unknown_column: OnUnknownColumn | None = None  # None: add, or for messages refuse
    on_bad_row: OnBadRow = "refuse"
    flush: Mapping[str, int | None] = field(default_factory=dict)  # the keys of FlushBounds
    bind_table: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """What becomes different; whatever is left out stays. A property of None is removed."""

    on_unknown_column: OnUnknownColumn | None = None
    on_bad_row: OnBadRow | None = None
    retention_seconds: int | msgspec.UnsetType | None = msgspec.UNSET
    properties: Mapping[str, str | None] = field(default_factory=dict)
    flush: Mapping[str, int | None] = field(default_factory=dict)  # None: as the pipeline's
    add_columns: SchemaSource | None = None
    drop_columns: Sequence[str] = ()
    rename_columns: Mapping[str, str] = field(default_factory=dict)


_DECODER: Final = msgspec.json.Decoder(Topic)


def encode(topic: Topic) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(topic, version=0))


def decode(record: TopicRecord) -> Topic:
    try:
        topic = _DECODER.decode(record.content)
    except msgspec.MsgspecError as error:
        raise Corruption(
            f"the record of topic {record.name} cannot be read: {error}",
            hint="bring the state back from a copy; the topic's rows are in its log and its table",
            context={"topic": str(record.name)},
        ) from error
    return msgspec.structs.replace(topic, version=record.version)
