"""The other side of a connection, as the kernel knows it: whether it is still there.

A client that vanished, with its machine or its network, closes nothing. What is sent to it is not
acknowledged; TCP itself gives up after a quarter of an hour. One that is there and does not read
says so, and is waited for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from calve.ingest.tcp_info import copy_of, traffic_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping
    from typing import Any

_KEY: Final = "calve.peer"  # in an ASGI scope


class Peer:
    """Safe to use from other threads than the event loop's."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        silent_seconds_max: float,
    ) -> None:
        self.silent_seconds_max: Final = silent_seconds_max
        self._transport = transport
        self._loop = loop

    @property
    def is_gone(self) -> bool:
        """Whether nothing that was sent was acknowledged for as long as that may be."""
        if self._transport.is_closing():
            return False  # which its owner notices by himself
        with suppress(OSError), copy_of(self._transport.get_extra_info("socket").fileno()) as copy:
            traffic = traffic_of(copy)
            return traffic is not None and traffic.unanswered_ms > self.silent_seconds_max * 1000
        return False

    def leave(self) -> None:
        """End the connection, without waiting for what is still to be sent."""
        with suppress(RuntimeError):  # the loop has ended, and everything with it
            self._loop.call_soon_threadsafe(self._transport.abort)

    def enter(self, scope: Any) -> None:
        """Be found by whoever answers a request."""
        scope[_KEY] = self


def peer_of(scope: Mapping[str, Any]) -> Peer:
    found: Peer = scope[_KEY]
    return found
