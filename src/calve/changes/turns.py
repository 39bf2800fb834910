"""Changes of one table's rows take turns within a process, in the order they came.

Each is worked out against a head and holds only on it: side by side all but one do their work
again, and some never end. A turn is a courtesy and guards nothing. Appends, readers and other
processes take none, and whoever has waited too long goes on without it: so nobody can wait for
ever, whatever the one before does meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

WAIT_SECONDS_MAX: Final = 60.0


class _Place:
    """Of a thread in the line for a table; the first one has the turn."""

    __slots__ = ("called", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.called = threading.Event()


class Turns:
    """Lines by the tables' ids. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[UUID, deque[_Place]] = {}

    @contextmanager
    def turn(self, table: UUID, *, wait_seconds: float = WAIT_SECONDS_MAX) -> Iterator[bool]:
        """Wait for the turn; whether others were before, so that the table may have changed.

        A thread that is in line already is let through: one change may be made inside of another.
        """
        place = _Place()
        try:
            is_free = self._line_up(table, place)
            if not is_free:
                place.called.wait(wait_seconds)
            yield not is_free
        finally:
            self._leave(table, place)

    def waiting_count(self, table: UUID) -> int:
        """How many wait behind the one who has the turn."""
        with self._lock:
            return max(0, len(self._lines.get(table, ())) - 1)

    def _line_up(self, table: UUID, place: _Place) -> bool:
        with self._lock:
            line = self._lines.setdefault(table, deque())
            is_inside = any(each.thread == place.thread for each in line)
            if not is_inside:
                line.append(place)
            return is_inside or len(line) == 1

    def _leave(self, table: UUID, place: _Place) -> None:
        with self._lock:
            line = self._lines.get(table)
            if line is None or place not in line:
                return
            line.remove(place)
            if line:
                line[0].called.set()
            else:
                del self._lines[table]

    def forget(self) -> None:
        """In a forked process, where those who are in line do not live."""
        self._lock = threading.Lock()
        self._lines = {}


TURNS: Final = Turns()
os.register_at_fork(after_in_child=TURNS.forget)
