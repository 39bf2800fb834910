"""Topics of messages as a store: what programs that handle payloads, not rows, work with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from calve.connections import LakeSource
    from calve.topics.messages import StreamMessage


class StorageStats(NamedTuple):
    """What a topic holds. Bytes are those of the messages that were stored, in memory."""

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
        """How much the topic holds."""
        ...

    def subscribe(self, topic: str, start: int | None = None) -> Iterator[StreamMessage]:
        """The messages from an offset on, and then those that arrive."""
        ...

    def shutdown(self) -> None:
        """Finish what is under way and let go of everything; again does nothing."""
        ...


class IcebergStorage:
    """Messages in topics of a lake, in this process. A context manager; safe for threads."""

    def __init__(self, lake: LakeSource = None) -> None:
        """Open the lake in a directory, or the one that the settings describe."""
        raise NotImplementedError

    def initialize_topic(self, topic: str) -> None:
        """Make a topic of messages; nothing is done if it is there. Conflict if it holds rows."""
        raise NotImplementedError

    def store(self, topic: str, messages: Sequence[StreamMessage]) -> list[int]:
        """Append the messages, all or none, and return their offsets when they are durable."""
        raise NotImplementedError

    def get_topic_stats(self, topic: str) -> StorageStats:
        raise NotImplementedError

    def subscribe(self, topic: str, start: int | None = None) -> Iterator[StreamMessage]:
        raise NotImplementedError

    def shutdown(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
