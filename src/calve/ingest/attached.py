"""Topics and their streams in this process's log: which belongs to which, and whether it does.

A topic is bound to a stream when its rows are first taken in here. The registry is changed after
the log: what a crash leaves between the two is a stream without rows, which the next one takes.
Where there may be a table that another stream has fed, it is given to the new one in between.
A deletion is the other way round: the registry remembers the streams that ended until their log is
rid of them. A topic and a log that do not belong together stop that topic, and no other.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

import msgspec

from calve.errors import CalveError, Conflict, Corruption, NotFound
from calve.topics.fit import Fitter
from calve.topics.topic import Binding
from calve.wal import Claim
from calve.wal.identity import require_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.ingest.kept_log import KeptLog
    from calve.ingest.readers import ReaderPool
    from calve.model import TableName
    from calve.state import State
    from calve.topics.registry import TopicRegistry
    from calve.topics.topic import Topic
    from calve.wal import Log, Stream

    HandOver: TypeAlias = Callable[[Topic, int, Callable[[int], UUID]], None]

_log: Final = logging.getLogger(__name__)
# Together three times as long as a process that runs takes to see what another has deleted.
_ENDED_LOOKS: Final = 60
_ENDED_PAUSE_SECONDS: Final = 0.05


class Attached:
    """A topic with its stream here; made anew for each version of the topic."""

    __slots__ = ("fitter", "meter", "stream", "topic")

    def __init__(self, topic: Topic, stream: Stream, meter: Meter) -> None:
        self.topic = topic
        self.stream = stream
        self.meter = meter
        self.fitter = Fitter(topic)

    def at(self, topic: Topic) -> Attached:
        return Attached(topic, self.stream, self.meter)


class Meter:
    """Bytes that were sent to a topic and are not in the state yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def pending_bytes(self) -> int:
        return self._bytes

    def add(self, more_bytes: int) -> None:
        with self._lock:
            self._bytes += more_bytes

    def take(self) -> int:
        with self._lock:
            taken, self._bytes = self._bytes, 0
            return taken


class Attachments:
    def __init__(
        self,
        state: State,
        registry: TopicRegistry,
        log: KeptLog,
        readers: ReaderPool,
        partition: int,
        *,
        hand_over: HandOver,
    ) -> None:
        """`hand_over` gives the table of a topic's partition, if there is one, to a stream that the
        function it is given makes at an offset."""
        self._state = state
        self._registry = registry
        self._kept = log
        self._readers = readers
        self._partition = partition
        self._hand_over = hand_over
        self._lock = threading.RLock()
        self._attached: dict[TableName, Attached] = {}
        self._problems: dict[TableName, CalveError] = {}
        self._seen_change: int | None = None

    @property
    def _wal(self) -> Log:
        return self._kept.current

    @property
    def problems(self) -> dict[TableName, CalveError]:
        """Topics that do not go on here, and why; as they were found when the log was opened."""
        return dict(self._problems)

    def known(self, name: TableName) -> Attached | None:
        """The topic, if it was used here before. Costs one look-up."""
        return self._attached.get(name)

    def all(self) -> list[Attached]:
        return list(self._attached.values())

    def attach(self, name: TableName) -> Attached:
        """The topic with its stream, which is made if it has none here yet.

        NotFound if there is no such topic, Conflict if it belongs to another log.
        """
        found = self._attached.get(name)
        if found is not None:
            return found
        with self._lock:
            return self._attached.get(name) or self._attach(self._registry.topic(name))

    def attach_all(self) -> None:
        """Look at each topic that has rows here; one that does not belong here stops alone."""
        self.end_deleted()
        for topic in self._registry.list():
            if self._partition in topic.partitions:
                try:
                    self.attach(topic.name)
                except (Conflict, Corruption, NotFound) as error:
                    self._problems[topic.name] = error
                    _log.error("topic %s stops: %s", topic.name, error.message)

    def attach_anew(self) -> None:
        """Look at all topics again, because the log was opened again: others may have had it."""
        with self._lock:
            self._readers.close()
            self._attached.clear()
            self._problems.clear()
            self.attach_all()

    def replace(self, attached: Attached, topic: Topic) -> Attached:
        """The topic as it is now; again from the beginning if it is another one."""
        with self._lock:
            known = self._attached.get(topic.name)
            if known and known.topic.id == topic.id and known.topic.version >= topic.version:
                return known  # another thread has read a later one meanwhile
            if topic.id != attached.topic.id or self._is_elsewhere(topic, attached.topic):
                self._attached.pop(attached.topic.name, None)
                return self._attach(topic)
            renewed = self._attached[topic.name] = attached.at(topic)
            return renewed

    def _is_elsewhere(self, topic: Topic, before: Topic) -> bool:
        """Whether its rows go to another stream here; other partitions are not ours to look at."""
        return topic.partitions.get(self._partition) != before.partitions.get(self._partition)

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._attached.pop(name, None)

    def refresh(self) -> None:
        """Take over what others changed in the registry, and what they deleted."""
        count = self._state.change_count()
        if count == self._seen_change:
            return
        with self._lock:
            versions = {record.name: record.version for record in self._state.topics()}
            for attached in self.all():
                name = attached.topic.name
                if versions.get(name) != attached.topic.version:
                    self._renew(attached, self._registry.find(name))
            self.end_deleted()
        self._seen_change = count

    def _renew(self, attached: Attached, topic: Topic | None) -> None:
        if topic is None or topic.id != attached.topic.id:
            self.forget(attached.topic.name)
        else:
            self.replace(attached, topic)

    def end_deleted(self) -> None:
        """Delete the streams of deleted topics from this log."""
        ended = self._state.ended_streams()
        if not ended:
            return
        with self._lock:
            for stream in self._wal.streams:
                if stream.id in ended:
                    self._wal.delete_stream(stream)
                    self._state.forget_ended(stream.id)

    def await_ended(self, topic: Topic, is_ending: threading.Event) -> None:
        """Wait until the other processes that take rows for a deleted topic know that it is.

        Whoever knows has deleted its stream. One that does not run learns it when it starts, and is
        not waited for any longer than one that runs would take.
        """
        here = self._wal.log_id
        others = {each.stream_id for each in topic.partitions.values() if each.log_id != here}
        for _ in range(_ENDED_LOOKS):
            others &= self._state.ended_streams() if others else set()
            if not others or is_ending.wait(_ENDED_PAUSE_SECONDS):
                return

    def _attach(self, topic: Topic) -> Attached:
        binding = topic.partitions.get(self._partition)
        if binding is None:
            topic, stream = self._bound(topic)
        else:
            stream = self._own_stream(topic, binding)
        attached = self._attached[topic.name] = Attached(topic, stream, Meter())
        self._problems.pop(topic.name, None)
        return attached

    def _bound(self, topic: Topic) -> tuple[Topic, Stream]:
        self.end_deleted()
        if not topic.is_bound and self._partition not in topic.first_offsets:
            stream = self._begun(topic, 0)
            return self.bind(topic, stream), stream
        self._hand_over(topic, self._partition, lambda end: self._successor(topic, end).id)
        stream = self._wal.stream(topic.name, self._partition)
        return self.bind(topic, stream, first_offset=stream.first_offset), stream

    def _successor(self, topic: Topic, table_end: int) -> Stream:
        """The stream that goes on where the table ends, or behind it where the state knows more.

        The table was read before: whoever finds the topic not bound by now may give it the table.
        """
        now = self._registry.topic(topic.name)
        if now.id != topic.id:
            raise NotFound(f"topic {topic.name} was deleted and made again meanwhile")
        other = now.partitions.get(self._partition)
        if other is not None:
            raise self._other_log(now, other)
        known = self._state.committed(topic.id, self._partition)
        return self._begun(topic, max(table_end, known.offset if known else 0))

    def _begun(self, topic: Topic, first_offset: int) -> Stream:
        """A stream without rows; one that somebody has left behind, if it begins there."""
        stream = self._find(topic.name)
        if stream is not None and self._wal.next_offset(stream) != stream.first_offset:
            raise self._stray(topic, stream)
        if stream is not None and stream.first_offset != first_offset:
            self._wal.delete_stream(stream)
            stream = None
        return stream or self._wal.create_stream(topic.name, self._partition, first_offset)

    def bind(self, topic: Topic, stream: Stream, *, first_offset: int | None = None) -> Topic:
        """Write down that the stream is the topic's, unless another process was first."""
        mine = Binding(self._wal.log_id, stream.id)
        begins = {} if first_offset is None else {self._partition: first_offset}

        def change(now: Topic) -> Topic:
            other = now.partitions.get(self._partition, mine)
            if other != mine:
                raise self._other_log(now, other)
            partitions = {**now.partitions, self._partition: mine}
            firsts = {**now.first_offsets, **begins}
            return msgspec.structs.replace(now, partitions=partitions, first_offsets=firsts)

        return self._registry.evolve(topic.name, change, topic_id=topic.id)

    def is_here(self, topic: Topic) -> bool:
        """Whether this log has the very stream in which the topic's rows are."""
        stream = self._find(topic.name)
        here = Binding(self._wal.log_id, stream.id) if stream else None
        return here is not None and topic.partitions.get(self._partition) == here

    def begin_anew(self, topic: Topic, first_offset: int) -> None:
        """Let go of the topic's stream, wherever it was; the next one begins at an offset."""

        def change(now: Topic) -> Topic:
            others = {p: each for p, each in now.partitions.items() if p != self._partition}
            firsts = {**now.first_offsets, self._partition: first_offset}
            return msgspec.structs.replace(now, partitions=others, first_offsets=firsts)

        with self._lock:
            self._registry.evolve(topic.name, change, topic_id=topic.id)
            self._attached.pop(topic.name, None)
            stream = self._find(topic.name)
            if stream is not None:
                self._wal.delete_stream(stream)

    def stray(self, name: TableName) -> Stream:
        """A stream with rows of a topic that the registry does not know."""
        stream = self._find(name)
        if stream is None:
            raise NotFound(f"the log has no rows of a topic {name}", hint="create it as a new one")
        return stream

    def _own_stream(self, topic: Topic, binding: Binding) -> Stream:
        stream = self._find(topic.name)
        if binding.log_id != self._wal.log_id:
            raise self._other_log(topic, binding)
        if stream is None or stream.id != binding.stream_id:
            raise self._other_stream(topic, binding.stream_id, stream)
        known = self._state.committed(topic.id, self._partition)
        claim = Claim(stream.id, known.offset if known else None)
        with self._readers.reader() as reader:
            offsets = reader.offsets(stream)
        require_stream(stream, claim, first=offsets.first, durable=offsets.durable)
        return stream

    def _find(self, name: TableName) -> Stream | None:
        try:
            return self._wal.stream(name, self._partition)
        except NotFound:
            return None

    def _other_log(self, topic: Topic, binding: Binding) -> Conflict:
        return Conflict(
            f"partition {self._partition} of topic {topic.name} is in log {binding.log_id}, and "
            f"{self._wal.directory} holds log {self._wal.log_id}",
            hint="bring back that log's directory. If two processes take rows in, give each a "
            "partition of its own (ingest.partition). If the log is lost for good, "
            f"`calve topic alter {topic.name} --new-log` goes on in this one where the table ends",
            context={"expected": str(binding.log_id), "found": str(self._wal.log_id)},
        )

    def _other_stream(self, topic: Topic, expected: UUID, stream: Stream | None) -> Conflict:
        found = "has no stream of it" if stream is None else f"has stream {stream.id}"
        return Conflict(
            f"topic {topic.name} has its rows in stream {expected}, but log {self._wal.log_id} "
            f"in {self._wal.directory} {found}: the log or the state is older than the other",
            hint="bring back the newer one of the two. If it is lost for good, "
            f"`calve topic alter {topic.name} --new-log` goes on where the table ends",
            context={"expected": str(expected), "found": str(stream.id) if stream else "none"},
        )

    def _stray(self, topic: Topic, stream: Stream) -> Conflict:
        return Conflict(
            f"log {self._wal.log_id} holds rows of a topic {topic.name} in stream {stream.id}, "
            "which the registry does not know: the state was lost or set back",
            hint="bring the state back from a copy; or take the rows over with "
            f"`calve topic create {topic.name} --adopt`",
            context={"found": str(stream.id), "log_id": str(self._wal.log_id)},
        )
