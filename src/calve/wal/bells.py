"""Wakes those who wait, in the process that writes the log, for rows of a topic to be durable.

Readers of other processes look at the published end now and then; these need not. A bell that rings
says that there may be more, and nothing about what: whoever was woken looks for himself.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calve.model import TableName


class Bells:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listening: dict[TableName, tuple[threading.Event, ...]] = {}

    def listen(self, topic: TableName, woken: threading.Event) -> None:
        """Have an event set whenever rows of a topic have become durable."""
        with self._lock:
            self._listening[topic] = (*self._listening.get(topic, ()), woken)

    def leave(self, topic: TableName, woken: threading.Event) -> None:
        with self._lock:
            left = tuple(each for each in self._listening.get(topic, ()) if each is not woken)
            if left:
                self._listening[topic] = left
            else:
                self._listening.pop(topic, None)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listening)

    def ring(self, topics: Iterable[TableName]) -> None:
        for topic in topics:
            for woken in self._listening.get(topic, ()):
                woken.set()
