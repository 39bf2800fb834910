"""Topics of messages as a store: for programs that handle payloads, not rows."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from calve.connections import settings_of
from calve.errors import CalveError, InvalidRequest, NotFound, Unavailable
from calve.ingest.messages import ensure_message_topic, message_topic
from calve.ingest.refusals import refusing
from calve.lake import Lake
from calve.model import TableName
from calve.state import SubscriptionName
from calve.subscriptions import Subscription, TopicReader
from calve.topics.messages import message_batch, messages_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from calve.connections import LakeSource
    from calve.subscriptions import Batch, Start
    from calve.topics.messages import StreamMessage

_Source: TypeAlias = TopicReader | Subscription


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

    def subscribe(
        self, topic: str, start: int | None = None, *, subscription: str | None = None
    ) -> Iterator[StreamMessage]:
        """The messages from an offset on, or all; then those that arrive, until the shutdown.

        With the name of a subscription the place is kept: it goes on behind the last message
        after which another one was asked for, and `start` counts when it is new.
        """
        ...

    def shutdown(self) -> None:
        """Finish what is under way and let go of everything; again does nothing."""
        ...


class MemoryStorage:
    """Messages in the memory of this process, for tests of programs that store messages."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_shut = False
        self._topics: dict[TableName, list[StreamMessage]] = {}
        self._places: dict[SubscriptionName, int] = {}

    def initialize_topic(self, topic: str) -> None:
        with self._changed:
            self._require_open()
            self._topics.setdefault(TableName.parse_new(topic), [])

    def store(self, topic: str, messages: Sequence[StreamMessage]) -> list[int]:
        with self._changed:
            kept = self._topic(topic)
            # What could not be stored elsewhere is refused here too.
            batch = message_batch(messages, now=datetime.now(UTC))
            first = len(kept)
            kept += messages_of(batch, TableName.parse(topic), first)
            self._changed.notify_all()
            return list(range(first, len(kept)))

    def get_topic_stats(self, topic: str) -> StorageStats:
        with self._changed:
            kept = self._topic(topic)
            return StorageStats(len(kept), sum(len(each.payload) for each in kept))

    def subscribe(
        self, topic: str, start: int | None = None, *, subscription: str | None = None
    ) -> Iterator[StreamMessage]:
        name = TableName.parse(topic)
        with self._changed:
            kept = self._topic(topic)
            begin = 0 if start is None else start
            if not 0 <= begin <= len(kept):
                raise InvalidRequest(
                    f"there is no offset {begin} yet: topic {topic} ends at {len(kept)}",
                    hint="begin with one that there is",
                )
            place = None
            if subscription is not None:
                place = SubscriptionName.parse(name, subscription)
                begin = self._places.setdefault(place, begin)
        return self._messages(kept, begin, place)

    def _messages(
        self, kept: list[StreamMessage], at: int, place: SubscriptionName | None
    ) -> Iterator[StreamMessage]:
        while True:
            with self._changed:
                while at >= len(kept) and not self._is_shut:
                    self._changed.wait()
                if self._is_shut:
                    return
            yield kept[at]
            at += 1
            if place is not None:
                self._places[place] = max(at, self._places[place])

    def shutdown(self) -> None:
        with self._changed:
            self._is_shut = True
            self._changed.notify_all()

    def _topic(self, topic: str) -> list[StreamMessage]:
        self._require_open()
        found = self._topics.get(TableName.parse(topic))
        if found is None:
            raise NotFound(
                f"there is no topic of messages {topic}", hint="initialize_topic makes one"
            )
        return found

    def _require_open(self) -> None:
        if self._is_shut:
            raise _shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class IcebergStorage:
    """Messages in topics of a lake, in this process. A context manager; safe for threads."""

    def __init__(self, lake: Lake | LakeSource = None) -> None:
        """Open the lake in a directory, or the one that the settings describe.

        A lake that is open already stays the caller's to close.
        """
        self._is_own = not isinstance(lake, Lake)
        self._lake = lake if isinstance(lake, Lake) else Lake(settings_of(lake))
        self._lock = threading.Lock()
        self._is_shut = False
        self._sources: list[_Source] = []

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

    def subscribe(
        self, topic: str, start: int | None = None, *, subscription: str | None = None
    ) -> Iterator[StreamMessage]:
        """The messages from an offset on, or all, whether log or table has them; then those that
        arrive. Ends with the storage.

        With the name of a subscription the place is kept, at least once: a message is done with
        when the next one is asked for. `start` counts when it is new.
        """
        self._require_open()
        name = TableName.parse(topic)
        message_topic(self._lake.intake, name)
        begin: Start = "earliest" if start is None else start
        if subscription is None:
            source: _Source = self._lake.read(topic, begin)
        else:
            source = self._lake.subscribe(topic, subscription, begin)
        with self._lock:
            self._sources.append(source)
        return self._messages(source)

    def _messages(self, source: _Source) -> Iterator[StreamMessage]:
        try:
            while (batch := source.poll()) is not None:
                yield from _handed_out(source, batch)
        finally:
            with self._lock:
                self._sources.remove(source)
            source.close()

    def shutdown(self) -> None:
        """Let go of the lake, if it is not the caller's; everything stored is durable already."""
        with self._lock:
            sources, was_shut = list(self._sources), self._is_shut
            self._is_shut = True
        for source in sources:
            source.close()
        if self._is_own and not was_shut:
            self._lake.close()

    def _require_open(self) -> None:
        if self._is_shut:
            raise _shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _handed_out(source: _Source, batch: Batch) -> Iterator[StreamMessage]:
    """The messages of a batch, of which those are acknowledged that are done with."""
    done = batch.first_offset
    try:
        for message in batch.messages():
            yield message
            assert message.offset is not None
            done = message.offset + 1
    except GeneratorExit:
        if isinstance(source, Subscription):
            with suppress(CalveError):  # it is closed, or another's by now: they come again
                source.ack(batch, done)
        raise
    if isinstance(source, Subscription):
        source.ack(batch)


def _shut() -> Unavailable:
    return Unavailable("the storage was shut down", hint="open it again")
