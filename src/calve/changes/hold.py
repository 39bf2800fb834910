"""Keeps the log from letting go of rows that are about to leave a table, to come again.

The state says from before the table's commit on that they are not in the table any more. However
the commit ends, whoever follows the table reads it again and says what it has come to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError
from calve.state import open_state
from calve.topics.registry import TopicRegistry

if TYPE_CHECKING:
    from calve.model import TableName
    from calve.settings import Settings
    from calve.state import State
    from calve.topics.topic import Topic

_LOG: Final = logging.getLogger(__name__)
# Longer than a catalog takes to answer; for whoever is killed before the end.
_SECONDS: Final = 600.0


class Hold:
    """The committed offsets of one topic in the state, as far as they are held back."""

    def __init__(self, state: State, topic: Topic | None) -> None:
        self._state = state
        self._topic = topic
        self._held: dict[int, int] = {}

    def take(self, offsets: Mapping[int, int]) -> None:
        """Have partitions count as committed up to an offset only; again for each attempt."""
        if self._topic is None:
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
        if self._topic is None:
            return
        for partition, resets in self._held.items():
            try:
                self._state.release_committed(self._topic.id, partition, resets=resets)
            except CalveError as error:
                _LOG.warning("%s stays held for a while: %s", self._topic.name, error.message)


@contextmanager
def holding(settings: Settings, name: TableName) -> Iterator[Hold]:
    """Nothing is held where the state does not know the topic."""
    with closing(open_state(settings)) as state:
        yield Hold(state, TopicRegistry(state).find(name))
