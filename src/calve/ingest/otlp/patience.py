"""An end to calls whose message does not come: each holds one of few threads while it waits."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.clock import Clock

_LOOKS: Final = 4  # in the time that a message may take


class Patience:
    """Ends the calls that wait for longer than `seconds`. Safe to share between threads."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Any, float]] = {}  # by their order: the oldest come first
        self._count = 0
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="calve-otlp-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def waiting(self, context: Any) -> Iterator[None]:
        """Around what waits for the message of a call."""
        with self._lock:
            self._count += 1
            number = self._count
            self._waiting[number] = (context, self._now() + self._seconds)
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[number]

    def _watch(self) -> None:
        while not self._is_ending.wait(self._seconds / _LOOKS):
            with self._lock:
                late = [call for call, until in self._waiting.values() if until <= self._now()]
            for call in late:
                call.cancel()

    def close(self) -> None:
        self._is_ending.set()
        self._thread.join()
