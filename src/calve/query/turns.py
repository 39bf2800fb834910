"""Whose turn it is: a few work at a time, and those who ask for much wait behind those who do not.

Each client has a line of its own, and the lines are served in turn.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from calve.errors import Overloaded

if TYPE_CHECKING:
    from calve.query.stream import Stop

_LOOK_SECONDS: Final = 0.05
RETRY_AFTER_MS: Final = 1_000


class Turns:
    """Safe to share between threads."""

    def __init__(self, most: int, *, waiting_max: int) -> None:
        self._free = most
        self._waiting_max = waiting_max
        self._lock = threading.Lock()
        self._lines: OrderedDict[str, deque[threading.Event]] = OrderedDict()

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._lines.values()))

    def take(self, client: str, stop: Stop, timeout_seconds: float) -> None:
        """Return when it is the client's turn; Overloaded if that takes too long."""
        called = threading.Event()
        with self._lock:
            if self._free and not self._lines:
                self._free -= 1
                return
            if self.waiting_count >= self._waiting_max:
                raise _overloaded(f"{self._waiting_max} queries are waiting already")
            self._lines.setdefault(client, deque()).append(called)
        deadline = time.monotonic() + timeout_seconds
        try:
            while not called.wait(_LOOK_SECONDS) and time.monotonic() < deadline:
                stop.require_going()
        except BaseException:
            self._leave(client, called)
            raise
        if not called.is_set():
            self._leave(client, called)
            raise _overloaded(f"no turn within {timeout_seconds:g} s")

    def give(self) -> None:
        """Somebody's turn is over."""
        with self._lock:
            if not self._lines:
                self._free += 1
                return
            client, line = self._lines.popitem(last=False)
            line.popleft().set()
            if line:
                self._lines[client] = line

    def _leave(self, client: str, called: threading.Event) -> None:
        with self._lock:
            line = self._lines.get(client, deque())
            if called in line:
                line.remove(called)
                if not line:
                    del self._lines[client]
                return
        self.give()  # it was called just now


def _overloaded(reason: str) -> Overloaded:
    return Overloaded(
        f"too many queries at once: {reason}",
        hint=f"retry in {RETRY_AFTER_MS} ms, or raise query.concurrent_max",
        context={"retry_after_ms": str(RETRY_AFTER_MS)},
    )
