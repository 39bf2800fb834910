"""Watches doors for connections that never come to the point: slow handshakes, and floods.

A connection is a stranger until its door knows it: TLS agreed on, and for gRPC a call that was let
in. Strangers have a time, and so many of them may be there at once; beyond that the oldest go.
Whoever means something by a connection says so within moments, and is not in their way.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from calve.ingest.connections import Connections, Ports

if TYPE_CHECKING:
    from calve.settings.tree import IngestSettings

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 0.5
_SAY_SECONDS: Final = 60.0


class KnownAddresses(Protocol):
    """The connections that a door knows, by the address of the other side."""

    def addresses(self) -> set[str]: ...

    def forget(self, gone: set[str]) -> None:
        """Let go of those that are gone."""


class Known:
    """Such that a door has told of. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: set[str] = set()

    def add(self, address: str) -> None:
        with self._lock:
            self._addresses.add(address)

    def addresses(self) -> set[str]:
        with self._lock:
            return set(self._addresses)

    def forget(self, gone: set[str]) -> None:
        with self._lock:
            self._addresses -= gone


class Door:
    """A port that is watched, and the strangers at it."""

    def __init__(self, port: int, known: KnownAddresses, settings: IngestSettings) -> None:
        self.port = port
        self.known = known
        self._seconds_max = settings.http_header_timeout_ms / 1000
        self._strangers_max = settings.streams_max
        self._since: dict[str, float] = {}
        self._said_at = -_SAY_SECONDS

    def end_strangers(self, strangers: set[str], now: float) -> None:
        """Those whose time is over, and where they are too many the oldest of those who were there
        at the last look."""
        seen = strangers & self._since.keys()
        self._since = {each: self._since.get(each, now) for each in strangers}
        by_age = sorted(seen, key=lambda each: self._since[each])
        late = {each for each in seen if now - self._since[each] >= self._seconds_max}
        surplus = by_age[: max(0, len(strangers) - self._strangers_max)]
        if leaving := late.union(surplus):
            self._say(Connections(self.port).shut(leaving), now)

    def _say(self, count: int, now: float) -> None:
        if count and now - self._said_at >= _SAY_SECONDS:
            self._said_at = now
            _log.warning(
                "ended %d connections to port %d that had not come to the point within %g s, or "
                "were more than %d at once (ingest.http_header_timeout_ms, ingest.streams_max); "
                "more are ended without a word for a minute",
                count,
                self.port,
                self._seconds_max,
                self._strangers_max,
            )


class Crowd:
    """A thread that looks at all doors of a process, while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._doors: list[Door] = []
        self._ports = Ports()
        self._thread: threading.Thread | None = None

    def watch(self, door: Door) -> None:
        with self._changed:
            self._doors.append(door)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="calve-crowd", daemon=True)
                self._thread.start()

    def leave(self, door: Door) -> None:
        """End nobody at this door any more."""
        with self._changed:
            self._doors.remove(door)
            if self._doors:
                return
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        with self._changed:
            while self._thread is threading.current_thread():
                with suppress(OSError):  # no descriptor is left to look with
                    self._look()
                self._changed.wait(_LOOK_SECONDS)

    def _look(self) -> None:
        now = time.monotonic()
        known_before = [door.known.addresses() for door in self._doors]
        present = self._ports.addresses()
        for door, known in zip(self._doors, known_before, strict=True):
            here = present.get(door.port, set())
            door.known.forget(known - here)
            door.end_strangers(here - door.known.addresses(), now)
