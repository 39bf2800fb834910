"""The registry: topics by name, kept in the state, changed by compare-and-set.

Several processes may change a topic at once: each change is made on what is there when it
happens, so that none is lost. A topic is bound to streams of logs by whoever takes its rows in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from calve.clock import Clock, SystemClock
from calve.errors import Conflict, NotFound, Unavailable
from calve.tables.nearest import meant
from calve.topics.alter import altered
from calve.topics.define import define_topic, request_of
from calve.topics.topic import Topic, TopicChange, TopicSpec, decode, encode

if TYPE_CHECKING:
    from calve.model import TableName
    from calve.state import State, TopicRecord

_ATTEMPTS: Final = 100


class TopicRegistry:
    """Safe to share between threads."""

    def __init__(self, state: State, *, clock: Clock | None = None) -> None:
        self._state = state
        self._clock = clock or SystemClock()

    def create(self, name: TableName, spec: TopicSpec) -> Topic:
        """The topic; an existing one if the same was asked for, else Conflict."""
        return self.add(define_topic(name, spec, now=self._clock.now()))

    def add(self, topic: Topic) -> Topic:
        """Keep a topic that was defined already; `create` is this and defining it."""
        for _ in range(_ATTEMPTS):
            record = self._state.create_topic(topic.name, encode(topic))
            if record is not None:
                return decode(record)
            present = self.find_same(topic)
            if present is not None:
                return present
        raise _too_busy(topic.name)

    def find_same(self, topic: Topic) -> Topic | None:
        """The one of that name, if there is one; Conflict if it is not what is asked for."""
        present = self.find(topic.name)
        return None if present is None else _require_same(present, topic)

    def find(self, name: TableName) -> Topic | None:
        record = self._state.topic(name)
        return None if record is None else decode(record)

    def topic(self, name: TableName) -> Topic:
        """The topic; NotFound, with the name that was probably meant."""
        return decode(self._record(name))

    def list(self, tenant: str | None = None) -> list[Topic]:
        return [decode(record) for record in self._state.topics(tenant)]

    def alter(self, name: TableName, change: TopicChange) -> Topic:
        return self.evolve(name, lambda topic: altered(topic, change))

    def evolve(
        self, name: TableName, change: Callable[[Topic], Topic], *, topic_id: UUID | None = None
    ) -> Topic:
        """Change the topic as it is now; again on what others made of it meanwhile.

        With `topic_id`, NotFound if the name stands for another topic by now.
        """
        for _ in range(_ATTEMPTS):
            record = self._record(name)
            before = decode(record)
            if topic_id is not None and before.id != topic_id:
                raise NotFound(f"topic {name} was deleted and made again meanwhile")
            after = change(before)
            if after == before:
                return before
            replaced = self._state.replace_topic(record, encode(after))
            if replaced is not None:
                return decode(replaced)
        raise _too_busy(name)

    def delete(self, name: TableName) -> Topic:
        """Forget the topic. Its log's rows go with it; its table, if there is one, stays."""
        for _ in range(_ATTEMPTS):
            record = self._record(name)
            topic = decode(record)
            ended = [binding.stream_id for binding in topic.partitions.values()]
            if self._state.delete_topic(record, topic.id, ended):
                return topic
        raise _too_busy(name)

    def withdraw(self, topic: Topic) -> None:
        """Forget a topic that was just made, unless somebody has used or changed it since."""
        record = self._state.topic(topic.name)
        if record is not None and decode(record) == topic:
            self._state.delete_topic(record, topic.id, [])

    def _record(self, name: TableName) -> TopicRecord:
        record = self._state.topic(name)
        if record is None:
            raise no_topic(name, [str(each.name) for each in self._state.topics(name.tenant)])
        return record


def no_topic(name: TableName, known: Sequence[str] = ()) -> NotFound:
    """For one that is not there, or that whoever asks is not to know of."""
    return NotFound(
        f"there is no topic {name}{meant(str(name), known)}",
        hint="`calve topic list` shows them all",
        context={"topic": str(name)},
    )


def _require_same(present: Topic, wanted: Topic) -> Topic:
    if wanted.asked in {present.asked, request_of(present)}:
        return present
    raise Conflict(
        f"topic {present.name} is there already, and is not what was asked for",
        hint="`calve topic describe` shows it, `calve topic alter` changes it",
        context={"topic": str(present.name)},
    )


def _too_busy(name: TableName) -> Unavailable:
    return Unavailable(
        f"topic {name} is being changed by too many at once", hint="try again in a moment"
    )
