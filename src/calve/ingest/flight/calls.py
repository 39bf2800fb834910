"""The calls that are open: how many there may be, whose they are, and what they wait for."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from calve.errors import Overloaded, Unavailable
from calve.ingest.addresses import host_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from calve.access import Caller
    from calve.clock import Clock
    from calve.settings.tree import IngestSettings

_RETRY_AFTER_MS: Final = 1_000
_MESSAGE_BYTES: Final = 4_096  # about what a message has beside its values
_COLUMN_BYTES: Final = 512


class Peer:
    """One connection of a client, and what came through it."""

    __slots__ = ("address", "calls", "credit_bytes", "deliveries")

    def __init__(self, address: str) -> None:
        self.address = address
        self.calls = 0
        self.deliveries = 0  # messages that reached us whole
        self.credit_bytes = 0  # about how large they were


class Call:
    """One call. A context manager; `outstanding` answers are still owed on it."""

    __slots__ = ("_calls", "caller", "is_busy", "outstanding", "peer", "touched_at")

    def __init__(self, calls: Calls, peer: Peer, caller: Caller, now: float) -> None:
        self._calls = calls
        self.peer = peer
        self.caller = caller
        self.touched_at = now
        self.outstanding = 0
        self.is_busy = False  # then it is not idle, however long nothing happens

    def delivered(self, content_bytes: int = 0, columns: int = 0) -> None:
        """A message of this call reached us."""
        self.peer.deliveries += 1
        self.peer.credit_bytes += content_bytes + _MESSAGE_BYTES + columns * _COLUMN_BYTES
        self.touch()

    def touch(self) -> None:
        self.touched_at = self._calls.now()

    @property
    def is_ending(self) -> bool:
        return self._calls.is_closing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.close(self)


class Calls:
    """Safe to share between threads."""

    def __init__(self, settings: IngestSettings, clock: Clock) -> None:
        self._all_max = settings.streams_max
        self._per_client_max = settings.streams_per_client_max
        self._lock = threading.Lock()
        self._entered = 0
        self._open: set[Call] = set()
        self._peers: dict[str, Peer] = {}
        self._by_host: Counter[str] = Counter()
        self.is_closing = False
        self.now = clock.monotonic

    def enter(self) -> None:
        """Count a call before anything of it is read; Overloaded if there are too many."""
        with self._lock:
            if self.is_closing:
                raise stopping()
            if self._entered >= self._all_max:
                raise _too_many(f"{self._all_max} calls are open (ingest.streams_max)")
            self._entered += 1

    def leave(self) -> None:
        with self._lock:
            self._entered -= 1

    def open(self, address: str, caller: Caller) -> Call:
        """A call of a client, at `address` as it is spelt here."""
        host = host_of(address)
        with self._lock:
            if self._by_host[host] >= self._per_client_max:
                raise _too_many(
                    f"{self._per_client_max} calls are open from {host} "
                    "(ingest.streams_per_client_max)"
                )
            self._by_host[host] += 1
            peer = self._peers.setdefault(address, Peer(address))
            peer.calls += 1
            call = Call(self, peer, caller, self.now())
            self._open.add(call)
        call.delivered()
        return call

    def revoked(self, is_valid: Callable[[Caller], bool]) -> set[str]:
        """The addresses of those whose callers have lost the right to go on, and all of them."""
        callers: dict[str, list[Caller]] = {}
        for call in self.opened():
            callers.setdefault(call.peer.address, []).append(call.caller)
        return {address for address, each in callers.items() if not any(map(is_valid, each))}

    def close(self, call: Call) -> None:
        host = host_of(call.peer.address)
        with self._lock:
            self._open.discard(call)
            call.peer.calls -= 1
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]

    def opened(self) -> list[Call]:
        with self._lock:
            return list(self._open)

    def peers(self) -> dict[str, Peer]:
        with self._lock:
            return dict(self._peers)

    def forget_peers(self, present: set[str]) -> None:
        """Let go of connections that are gone."""
        with self._lock:
            for address in [a for a, p in self._peers.items() if not p.calls and a not in present]:
                del self._peers[address]


def stopping() -> Unavailable:
    return Unavailable(
        "the service is stopping",
        hint=f"retry in {_RETRY_AFTER_MS} ms with the same producer and sequence",
        context={"retry_after_ms": str(_RETRY_AFTER_MS)},
    )


def _too_many(reason: str) -> Overloaded:
    return Overloaded(
        f"too many calls at once: {reason}",
        hint=f"retry in {_RETRY_AFTER_MS} ms, and send many batches over one stream",
        context={"retry_after_ms": str(_RETRY_AFTER_MS)},
    )
