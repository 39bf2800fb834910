"""Topics of messages as a store: for programs that handle payloads, not rows."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from calve.connections import settings_of
from calve.errors import InvalidRequest, Unavailable
from calve.ingest.messages import ensure_message_topic, message_topic
from calve.ingest.refusals import refusing
from calve.lake import Lake
from calve.model import TableName
from calve.topics.messages import message_batch, messages_of
from calve.wal import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from calve.connections import LakeSource
    from calve.topics.messages import StreamMessage

_POLL_SECONDS: Final = 0.05


class StorageStats(NamedTuple):
    """What a topic has taken in. Bytes are those of the messages in memory, about."""

    message_count: int
    bytes_stored: int


class PersistentStorage(Protocol):
    """Keeps messages in topics. Every method returns when its work is done."""

    def initialize_topic(self, topic: str) -> None:
        """Make the topic, if it is not there."""
        ...

    def store(self, topic: str, messages: Sequence[StreamMessage]) -> list[int]:
        """Keep the messages, all or none; their offsets, once they are durable."""
        ...

    def get_topic_stats(self, topic: str) -> StorageStats:
        """How much the topic has taken in."""
        ...

    def subscribe(self, topic: str, start: int | None = None) -> Iterator[StreamMessage]:
        """The messages from an offset on, and then those that arrive."""
        ...

    def shutdown(self) -> None:
        """Finish what is under way and let go of everything; again does nothing."""
        ...


class IcebergStorage:
    """Messages in topics of a lake, in this process. A context manager; safe for threads."""

    def __init__(self, lake: Lake | LakeSource = None) -> None:
        """Open the lake in a directory, or the one that the settings describe.

        A lake that is open already stays the caller's to close.
        """
        self._is_own = not isinstance(lake, Lake)
        self._lake = lake if isinstance(lake, Lake) else Lake(settings_of(lake))
        self._is_shut = threading.Event()

    def initialize_topic(self, topic: str) -> None:
        """Make a topic of messages; nothing is done if it is there. Conflict if it holds rows."""
        self._require_open()
        ensure_message_topic(self._lake.intake, TableName.parse(topic), is_asked=True)

    def store(
        self,
        topic: str,
        messages: Sequence[StreamMessage],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> list[int]:
        """Append the messages, all or none, and return their offsets when they are durable.

        With a producer and a sequence, which counts its calls up from 0, the same call again
        appends nothing. The fields of that name in a message are kept with it, and no more.
        """
        self._require_open()
        name = TableName.parse(topic)
        intake = self._lake.intake
        message_topic(intake, name)
        if not messages:
            return []
        batch = message_batch(messages, now=intake.clock.now())
        pending = intake.submit(name, batch, producer=producer, sequence=sequence)
        with refusing():
            done = pending.wait()
        if done.first is None or done.end is None:
            raise InvalidRequest(
                f"sequence {sequence} of {producer!r} was stored too long ago for its offsets to "
                "be known",
                hint="the messages are there; go on with the next sequence",
            )
        return list(range(done.first, done.end))

    def get_topic_stats(self, topic: str) -> StorageStats:
        """How many messages the topic took in since it was made, and their bytes."""
        self._require_open()
        name = TableName.parse(topic)
        message_topic(self._lake.intake, name)
        stats = self._lake.intake.stats(name)
        return StorageStats(stats.row_count, stats.bytes_appended)

    def subscribe(self, topic: str, start: int | None = None) -> Iterator[StreamMessage]:
        """The messages in the log from an offset on, or all that it holds; then those that arrive.

        Ends with the storage. NotFound if the log has let go of the offset: its messages are in
        the table. Where a reader has got to is the caller's to remember.
        """
        self._require_open()
        name = TableName.parse(topic)
        intake = self._lake.intake
        message_topic(intake, name)
        at = intake.offsets(name).first if start is None else start
        while not self._is_shut.is_set():
            for entry in intake.read(name, at):
                if entry.kind == Kind.ROWS and entry.batch is not None:
                    yield from messages_of(entry.batch, name, entry.first_offset)
                at = entry.end_offset
            self._is_shut.wait(_POLL_SECONDS)

    def shutdown(self) -> None:
        """Let go of the lake, if it is not the caller's; everything stored is durable already."""
        if not self._is_shut.is_set():
            self._is_shut.set()
            if self._is_own:
                self._lake.close()

    def _require_open(self) -> None:
        if self._is_shut.is_set():
            raise Unavailable("the storage was shut down", hint="open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
