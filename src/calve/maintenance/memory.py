"""What the lake's state knows of a topic that is audited: how far its table had come."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from calve.state import found_state
from calve.topics.registry import TopicRegistry
from calve.topics.rewound import find_rewound, had_rows, known_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.table import Table

    from calve.model import TableName
    from calve.settings import Settings
    from calve.state import State
    from calve.topics.rewound import Rewound
    from calve.topics.topic import Topic


class Memory:
    """Of one topic; empty if the state knows none of that name, or is not asked."""

    def __init__(self, state: State | None, topic: Topic | None) -> None:
        self._state = state
        self._topic = topic

    def partitions(self) -> set[int]:
        """Those of which the table has rows, or had some."""
        return {each for each, offset in self.committed().items() if offset}

    def committed(self) -> dict[int, int]:
        """By partition; without those of which nothing was ever committed, as far as is known."""
        if self._state is None or self._topic is None:
            return {}
        found: dict[int, int] = {}
        for partition in self._topic.partitions:
            known = known_offset(self._state, self._topic, partition)
            if known is not None and had_rows(self._topic, partition, known):
                found[partition] = known.offset
        return found

    def rewound(
        self, partition: int, reached: int, look_again: Callable[[], Table]
    ) -> Rewound | None:
        """Whether the table has less of a partition than is known, also at a second look."""
        if self._state is None or self._topic is None:
            return None
        return find_rewound(
            self._state, self._topic, partition, reached=reached, look_again=look_again
        )


@contextmanager
def opened_memory(settings: Settings | None, topic: TableName) -> Iterator[Memory]:
    if settings is None:
        yield Memory(None, None)
        return
    with found_state(settings) as state:
        yield Memory(state, TopicRegistry(state).find(topic) if state else None)
