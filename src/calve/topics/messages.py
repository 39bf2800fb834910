"""Messages: a payload with what goes along with it, for topics whose rows have no columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from calve.errors import InvalidRequest

if TYPE_CHECKING:
    from calve.model import TableName

# A key is text, because people ask for it in SQL; what is not text goes into the payload.
MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("payload", pa.large_binary(), nullable=False),
        pa.field("key", pa.large_string()),
        pa.field("attributes", pa.map_(pa.large_string(), pa.large_string())),
        pa.field("content_type", pa.large_string()),
        pa.field("schema", pa.large_string()),
        pa.field("publish_time", pa.timestamp("us", tz="UTC")),
        pa.field("producer", pa.large_string()),
        pa.field("sequence", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message. `topic` and `offset` are known once it was stored.

    `schema` names what the payload is written in, such as a subject and its version; nobody here
    looks it up.
    """

    payload: bytes
    key: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    publish_time: datetime | None = None
    producer: str | None = None
    sequence: int | None = None
    topic: str | None = None
    offset: int | None = None
    content_type: str | None = None
    schema: str | None = None


def message_batch(messages: Sequence[StreamMessage], *, now: datetime) -> pa.RecordBatch:
    """The messages as rows; those without a time were published `now`.

    The column `schema` is there if one of them has one: topics that were made before there was
    such a column take the others as ever.
    """
    columns: dict[str, list[Any]] = {
        "payload": [each.payload for each in messages],
        "key": [each.key for each in messages],
        "attributes": [list(each.attributes.items()) for each in messages],
        "content_type": [each.content_type for each in messages],
        "schema": [each.schema for each in messages],
        "publish_time": [_aware(each.publish_time or now) for each in messages],
        "producer": [each.producer for each in messages],
        "sequence": [each.sequence for each in messages],
    }
    fields = [each for each in MESSAGE_SCHEMA if each.name != "schema" or any(columns["schema"])]
    try:
        arrays = [pa.array(columns[each.name], each.type) for each in fields]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"a message cannot be stored: {error}",
            hint="payload is bytes, sequence a whole number, and the rest text",
        ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def messages_of(
    batch: pa.RecordBatch, topic: TableName, first_offset: int
) -> Iterator[StreamMessage]:
    """The messages in rows that were read, with their offsets."""
    for offset, row in enumerate(batch.to_pylist(), first_offset):
        yield message_at(row, str(topic), offset)


def message_at(row: Mapping[str, Any], topic: str, offset: int) -> StreamMessage:
    """The message in a row."""
    return StreamMessage(
        payload=row["payload"],
        key=row.get("key"),
        attributes=dict(row.get("attributes") or ()),
        publish_time=row.get("publish_time"),
        producer=row.get("producer"),
        sequence=row.get("sequence"),
        topic=topic,
        offset=offset,
        content_type=row.get("content_type"),
        schema=row.get("schema"),
    )


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
