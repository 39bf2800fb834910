"""Failed attempts by address: a few at once, then one a second; the memory of them is bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from calve.errors import Overloaded

if TYPE_CHECKING:
    from calve.clock import Clock

_AT_ONCE: Final = 10
_SECONDS_EACH: Final = 1.0
_ADDRESSES_MAX: Final = 10_000


class Attempts:
    """Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By address, when all of its failed attempts will have been forgotten.
        self._forgotten_at: OrderedDict[str, float] = OrderedDict()

    def require(self, address: str) -> None:
        """Overloaded, with a delay, for an address that has failed too often."""
        with self._lock:
            owed = self._owed_seconds(address)
        wait = owed - (_AT_ONCE - 1) * _SECONDS_EACH
        if wait > 0:
            raise Overloaded(
                "too many attempts from this address failed",
                hint="look at the token that is sent from there, and try again later",
                context={"retry_after_ms": str(max(1, int(wait * 1_000)))},
            )

    def failed(self, address: str) -> None:
        with self._lock:
            owed = min(self._owed_seconds(address), _AT_ONCE * _SECONDS_EACH)
            self._forgotten_at[address] = self._clock.monotonic() + owed + _SECONDS_EACH
            self._forgotten_at.move_to_end(address)
            while len(self._forgotten_at) > _ADDRESSES_MAX:
                self._forgotten_at.popitem(last=False)

    def _owed_seconds(self, address: str) -> float:
        return max(0.0, self._forgotten_at.get(address, 0.0) - self._clock.monotonic())
