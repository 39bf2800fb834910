"""The thread that ends what the Flight server itself would not.

Idle streams, oversized messages, and those who may no longer go on and say nothing.

gRPC has a message in memory before anybody sees it. So the watch compares what a connection has
received with what arrived of it as whole messages, and shuts one that is more than a request may
be ahead. It looks only when the process has grown; where the kernel does not count (elsewhere than
on Linux), messages are refused only after they arrived.
"""

from __future__ import annotations

import logging
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.access import Caller
    from calve.ingest.connections import Connections
    from calve.ingest.flight.calls import Calls, Peer
    from calve.ingest.tcp_info import Traffic
    from calve.settings.tree import IngestSettings

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 0.05
_IDLE_LOOKS: Final = 10  # in the time after which a stream is idle
_REVOKED_LOOK_SECONDS: Final = 1.0
_GROWN_BYTES: Final = 8 << 20
_AHEAD_BYTES: Final = 16 << 20  # what gRPC reads ahead, and its own framing
_STATM: Final = Path("/proc/self/statm")


class _Seen:
    """What a connection had received when its last whole message was known."""

    __slots__ = ("base_bytes", "credit_bytes", "deliveries")

    def __init__(self, traffic: Traffic, peer: Peer | None) -> None:
        self.base_bytes = traffic.received_bytes
        self.deliveries = peer.deliveries if peer else 0
        self.credit_bytes = peer.credit_bytes if peer else 0

    def ahead_bytes(self, traffic: Traffic, peer: Peer | None) -> int:
        """About how much of messages that are not whole yet has been received."""
        if peer is not None and peer.deliveries != self.deliveries:
            self.deliveries = peer.deliveries
            # Calls that share a connection are told apart by size alone, and that is a guess.
            if peer.calls <= 1:
                self.base_bytes = traffic.received_bytes
            else:
                self.base_bytes += peer.credit_bytes - self.credit_bytes
            self.credit_bytes = peer.credit_bytes
        self.base_bytes = min(self.base_bytes, traffic.received_bytes)
        return traffic.received_bytes - self.base_bytes


class Watch:
    def __init__(
        self,
        settings: IngestSettings,
        calls: Calls,
        connections: Connections,
        is_valid: Callable[[Caller], bool],
    ) -> None:
        """`is_valid` says whether a caller may go on."""
        self._is_valid = is_valid
        self._revoked: set[str] = set()
        self._request_bytes_max = settings.request_bytes_max
        self._idle_seconds = settings.idle_seconds_max
        self._calls = calls
        self._connections = connections
        self._seen: dict[str, _Seen] = {}
        self._memory_bytes = 0
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="calve-flight-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        idle_look_at = self._calls.now()
        revoked_look_at = idle_look_at
        while not self._is_ending.wait(_LOOK_SECONDS):
            if self._calls.now() >= revoked_look_at:
                revoked_look_at = self._calls.now() + _REVOKED_LOOK_SECONDS
                self._end_revoked()
            if self._has_grown():
                self._end_oversized()
            if self._calls.now() >= idle_look_at:
                idle_look_at = self._calls.now() + self._idle_seconds / _IDLE_LOOKS
                self._end_idle()

    def _has_grown(self) -> bool:
        memory_bytes = _memory_bytes()
        self._memory_bytes = min(self._memory_bytes, memory_bytes)
        if memory_bytes - self._memory_bytes < _GROWN_BYTES:
            return False
        self._memory_bytes = memory_bytes
        return True

    def _end_oversized(self) -> None:
        traffic = self._connections.traffic()
        peers = self._calls.peers()
        self._seen = {
            address: self._seen.get(address) or _Seen(found, peers.get(address))
            for address, found in traffic.items()
        }
        oversized = set()
        for address, found in traffic.items():
            peer = peers.get(address)
            streams = max(peer.calls if peer else 1, 1)
            ahead = self._seen[address].ahead_bytes(found, peer)
            if ahead > self._request_bytes_max * streams + _AHEAD_BYTES:
                oversized.add(address)
        self._end(oversized, "it sends a message larger than ingest.request_bytes_max")

    def _end_idle(self) -> None:
        traffic = self._connections.traffic()
        self._calls.forget_peers(set(traffic))
        since = self._calls.now() - self._idle_seconds
        calls = self._calls.opened()
        kept = {c.peer.address for c in calls if c.is_busy or c.touched_at > since}
        idle = {c.peer.address for c in calls}
        # A call of which nothing came is not among them: its connection is silent.
        silent = {a for a, t in traffic.items() if t.silent_ms > self._idle_seconds * 1_000}
        self._end((idle | silent) - kept, "nothing happened on it for ingest.idle_seconds_max")

    def _end_revoked(self) -> None:
        """A stream that goes on finds out by itself, and says so: the next look is early enough."""
        before, self._revoked = self._revoked, self._calls.revoked(self._is_valid)
        self._end(before & self._revoked, "its token is revoked, or over")

    def _end(self, addresses: set[str], reason: str) -> None:
        if addresses and self._connections.shut(addresses):
            _log.warning("ended the connection of %s: %s", ", ".join(sorted(addresses)), reason)


def _memory_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
