"""A bound on the memory that requests under way hold, shared fairly between clients.

Asked before a request's bytes are read. Over the bound a request is refused with a delay, and has
cost nothing. While n clients hold something, each may hold a part in n + 1 of the whole: so there
is room for a newcomer, however much the others send. What a client that holds nothing asks for is
refused only when the whole is full.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from calve.errors import InvalidRequest, Overloaded

if TYPE_CHECKING:
    from typing import Self

RETRY_AFTER_MS: Final = 100


class Admitted:
    """Bytes that a request may hold, until it is released. A context manager."""

    def __init__(self, admission: Admission, client: str, held_bytes: int) -> None:
        self._admission = admission
        self._client = client
        self._lock = threading.Lock()
        self._bytes = held_bytes
        self._is_released = False

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def grow(self, more_bytes: int) -> None:
        """Hold more, for a body whose size shows only while it is read; Overloaded if not."""
        with self._lock:
            if self._is_released:
                raise InvalidRequest("what was admitted has been released already")
            self._admission.take(self._client, more_bytes, already_bytes=self._bytes)
            self._bytes += more_bytes

    def release(self) -> None:
        """Give the bytes back, once; again does nothing."""
        with self._lock:
            if not self._is_released:
                self._is_released = True
                self._admission.give_back(self._client, self._bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Admission:
    """Safe to share between threads; never waits."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._by_client: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def hold(self, held_bytes: int, client: str = "") -> Admitted:
        """Room for a request of a client, such as a tenant or an address."""
        self.take(client, held_bytes)
        return Admitted(self, client, held_bytes)

    def take(self, client: str, more_bytes: int, *, already_bytes: int = 0) -> None:
        """Count the bytes as held, or raise. `already_bytes` the same request holds by now."""
        if more_bytes < 0:
            raise InvalidRequest(f"{more_bytes} bytes cannot be held")
        if already_bytes + more_bytes > self.bytes_max:
            raise InvalidRequest(
                f"a request of {already_bytes + more_bytes} bytes is more than all requests may "
                f"hold together, {self.bytes_max} (ingest.memory_bytes_max)",
                hint="split the request",
            )
        with self._lock:
            held = self._by_client.get(client, 0)
            if self._held_bytes + more_bytes > self.bytes_max:
                raise _refused(f"requests hold {self._held_bytes} of {self.bytes_max} bytes")
            # A request that is alone may be as large as it is: or it could never come in.
            others_bytes = held - already_bytes
            if others_bytes and held + more_bytes > self._share(client):
                raise _refused(f"this client holds {held} bytes, more is not its share now")
            self._held_bytes += more_bytes
            self._by_client[client] = held + more_bytes

    def _share(self, client: str) -> int:
        clients = len(self._by_client.keys() | {client})
        return self.bytes_max // (clients + 1)

    def give_back(self, client: str, held_bytes: int) -> None:
        with self._lock:
            self._held_bytes -= held_bytes
            left = self._by_client.get(client, 0) - held_bytes
            if left > 0:
                self._by_client[client] = left
            else:
                self._by_client.pop(client, None)


def _refused(reason: str) -> Overloaded:
    return Overloaded(
        f"too much is under way: {reason} (ingest.memory_bytes_max)",
        hint=f"retry in {RETRY_AFTER_MS} ms",
        context={"retry_after_ms": str(RETRY_AFTER_MS)},
    )
