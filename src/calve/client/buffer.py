"""The bound on what a client holds in memory: whoever hands in more waits, or is refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from calve.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable


class Buffer:
    def __init__(self, bytes_max: int, timeout_seconds: float, hurry: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._timeout_seconds = timeout_seconds
        self._hurry = hurry
        self._room = threading.Condition()
        self._held_bytes = 0

    def take(self, more_bytes: int) -> None:
        """Count bytes as held, once there is room. One that is alone may be as large as it is."""
        with self._room:
            if self._fits(more_bytes):
                self._held_bytes += more_bytes
                return
        self._hurry()
        with self._room:
            if not self._room.wait_for(lambda: self._fits(more_bytes), self._timeout_seconds):
                raise Overloaded(
                    f"the client's buffer was full for {self._timeout_seconds:g} s: "
                    f"{self._held_bytes} of {self._bytes_max} bytes wait to be acknowledged",
                    hint="produce more slowly, or see whether the service keeps up",
                    context={"retry_after_ms": "1000"},
                )
            self._held_bytes += more_bytes

    def give_back(self, held_bytes: int) -> None:
        with self._room:
            self._held_bytes -= held_bytes
            self._room.notify_all()

    def _fits(self, more_bytes: int) -> bool:
        return not self._held_bytes or self._held_bytes + more_bytes <= self._bytes_max
