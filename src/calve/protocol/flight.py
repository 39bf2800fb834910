"""The JSON that goes along with Flight's calls: who sends, what was acknowledged, what to read."""

from __future__ import annotations

from typing import Final, Literal, TypeVar
from uuid import UUID

import msgspec
import pyarrow as pa

from calve.errors import InvalidRequest
from calve.protocol.problem import Problem

# In the context of an error that ends a DoPut: which batch of the stream it is about, from 0.
BATCH_KEY: Final = "batch"

_T = TypeVar("_T")


class PutMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Goes with a batch, or with the first one only: the batches after it count up."""

    producer: str | None = None
    sequence: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """To each batch, in order. Without offsets for a repeat that is too long ago.

    With a `problem` the batch was not appended, and nothing after it is acknowledged.
    """

    first: int | None = None
    end: int | None = None
    repeat: bool = False
    problem: Problem | msgspec.UnsetType = msgspec.UNSET


class LogRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ticket: from an offset, or from the first that the log holds, up to but without `to`.

    With a `stream` it is refused where the topic's rows are in another one. One with a `mac` is
    signed, in the name of a `token`, until it expires; in seconds since 1970.
    """

    topic: str
    partition: int | None = None
    stream: UUID | None = None
    from_: int | None = msgspec.field(default=None, name="from")
    to: int | None = None
    form: Literal["rows", "frames"] = "rows"
    token: str | None = None
    expires_at: int | None = None
    mac: str | None = None


class LogEnds(msgspec.Struct, frozen=True):
    """How far a log is: of each of its streams the first offset that it holds, and the first that
    is not durable yet."""

    log_id: UUID
    streams: dict[UUID, tuple[int, int]]


class Frames:
    """The columns of a range that is read as frames; one row each."""

    SCHEMA: Final = pa.schema(
        [
            pa.field("kind", pa.string(), nullable=False),  # rows, rejected or hole
            pa.field("first_offset", pa.int64(), nullable=False),
            pa.field("end_offset", pa.int64(), nullable=False),
            pa.field("ingested_at_us", pa.int64(), nullable=False),
            pa.field("content_sum", pa.uint64(), nullable=False),
            pa.field("payload", pa.large_binary()),  # an Arrow IPC stream; none for a hole
        ]
    )


def decode(content: bytes | memoryview, kind: type[_T], *, what: str) -> _T:
    """Read JSON that a client sent; InvalidRequest says what is wrong with it."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{what} cannot be read: {error}", hint="it is JSON") from error
