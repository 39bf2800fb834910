"""Keeps the log from letting go of rows that are about to leave a table, to come again.

The state says from before the table's commit on that they are not in the table any more. However
the commit ends, whoever follows the table reads it again and says what it has come to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from calve.errors import CalveError
from calve.state import found_state
from calve.topics.registry import TopicRegistry
from calve.topics.rewound import known_offset

if TYPE_CHECKING:
    from calve.model import TableName
    from calve.settings import Settings
    from calve.state import State
    from calve.topics.topic import Topic

_LOG: Final = logging.getLogger(__name__)
# Longer than a catalog takes to answer; for whoever is killed before the end.
_SECONDS: Final = 600.0


class Known(NamedTuple):
    """How far the state knows a partition's table to have come in a stream."""

    stream_id: UUID
    offset: int


class Hold:
    """The committed offsets of one topic in the state, as far as they are held back."""

    def __init__(self, state: State | None, topic: Topic | None) -> None:
        self._state = state
        self._topic = topic
        self._held: dict[int, int] = {}

    def known(self) -> dict[int, Known]:
        """How far the table has come, as whoever committed to it has said."""
        if self._state is None or self._topic is None:
            return {}
        found: dict[int, Known] = {}
        for partition, bound in self._topic.partitions.items():
            told = known_offset(self._state, self._topic, partition)
            if told is not None:
                found[partition] = Known(bound.stream_id, told.offset)
        return found

    def take(self, offsets: Mapping[int, int]) -> None:
        """Have partitions count as committed up to an offset only; again for each attempt."""
        if self._state is None or self._topic is None:
            return
        for partition, offset in offsets.items():
            bound = self._topic.partitions.get(partition)
            if bound is not None:
                held = self._state.hold_committed(
                    self._topic.id, partition, log_id=bound.log_id, offset=offset, seconds=_SECONDS
                )
                self._held[partition] = held.resets

    def release(self) -> None:
        """It is known what became of the table. A hold that stays ends with its time."""
        if self._state is None or self._topic is None:
            return
        for partition, resets in self._held.items():
            try:
                self._state.release_committed(self._topic.id, partition, resets=resets)
            except CalveError as error:
                _LOG.warning("%s stays held for a while: %s", self._topic.name, error.message)


@contextmanager
def holding(settings: Settings, name: TableName) -> Iterator[Hold]:
    """Nothing is held where the state does not know the topic."""
    with found_state(settings) as state:
        yield Hold(state, TopicRegistry(state).find(name) if state else None)
