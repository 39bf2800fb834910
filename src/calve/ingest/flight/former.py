"""Services that showed an earlier certificate: they accept nobody, and go on for whom they have.

Each ends when the last of its connections is gone. There are few of them: beyond that, the
connections of the oldest are shut.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calve.ingest.connections import Connections
    from calve.ingest.flight.service import Service

_log: Final = logging.getLogger(__name__)
FORMER_MAX: Final = 4
_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Former:
    service: Service
    peers: set[str]


class FormerServices:
    """Safe to share between threads."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._lock = threading.Lock()
        self._kept: list[_Former] = []
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, service: Service, peers: set[str]) -> None:
        """Look after a service that has connections with these addresses."""
        with self._lock:
            self._kept.append(_Former(service, peers))
            surplus, self._kept = self._kept[:-FORMER_MAX], self._kept[-FORMER_MAX:]
        for each in surplus:
            count = self._connections.shut(each.peers)
            _log.warning(
                "%d connections that began %d certificates ago are shut", count, FORMER_MAX
            )
            each.service.shutdown()
        if self._thread is None:
            name = "calve-flight-former"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._is_closed.wait(_LOOK_SECONDS):
            with self._lock:
                kept = list(self._kept)
            if not kept:
                continue
            present = self._connections.addresses()
            for each in kept:
                if not each.peers & present:
                    self._end(each)

    def _end(self, former: _Former) -> None:
        with self._lock:
            if former not in self._kept:
                return  # somebody else ends it
            self._kept.remove(former)
        former.service.shutdown()

    def close(self) -> list[Service]:
        """Look no more; those that are left are the caller's to end."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            left, self._kept = self._kept, []
        return [each.service for each in left]
