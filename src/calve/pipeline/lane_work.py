"""What one cycle does for one topic, as it takes shape: planned, prepared, written, committed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from calve.pipeline.feed import PartitionFeed, TopicFeed
    from calve.pipeline.work import Piece, PieceDone
    from calve.topics.topic import Topic


@dataclass(slots=True)
class PartitionWork:
    """A partition's share: up to `end`, or to what `bytes_max` of the log allow.

    Rows below `skip_to` are set aside.
    """

    feed: PartitionFeed
    end: int
    bytes_max: int
    by_age: bool = False
    skip_to: int = 0
    operation_id: str = ""
    replaces: UUID | None = None  # the log from which the partition's own takes the table over
    is_sample: bool = False  # written only to learn how large its files become, if that is learned
    pieces: list[Piece] = field(default_factory=list)
    done: list[PieceDone] = field(default_factory=list)


@dataclass(slots=True)
class TopicWork:
    """`topic` was read after the ends of its partitions: it is never older than their rows."""

    feed: TopicFeed
    topic: Topic
    parts: list[PartitionWork]
    table: Table | None = None
    schema: Schema | None = None
    is_ready: bool = False  # to be written, or committed
    rows: int = 0
    dead_letters: int = 0
    commits: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_worked_on: bool = False
    _is_left: bool = False

    def begin(self) -> bool:
        """Whether there is still somebody who waits for it."""
        with self._lock:
            self._is_worked_on = not self._is_left
            return self._is_worked_on

    def hand_over(self) -> bool:
        """It is ready for whoever waits for it; False if nobody does any more, and it is kept."""
        with self._lock:
            if self._is_left:
                return False
            self.is_ready = True
            self._is_worked_on = False
            return True

    def end(self) -> None:
        with self._lock:
            self._is_worked_on = False
            if self._is_left:
                self.feed.give_back()

    def leave_behind(self) -> bool:
        """The cycle goes on without it if it is still worked on; whether it is."""
        with self._lock:
            if self._is_worked_on:
                self._is_left = True
                self.is_ready = False
            return self._is_worked_on

    def leave(self) -> None:
        """The cycle is over; the topic is free again when nobody works on it."""
        with self._lock:
            if not self._is_left and not self._is_worked_on:
                self.feed.give_back()
            self._is_left = True
            self.is_ready = False

    @property
    def is_left(self) -> bool:
        return self._is_left
