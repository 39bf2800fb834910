"""The places of an HTTP server: who has one, and who keeps it without a request under way.

Where all are taken, the one that was kept longest for nothing is given to whoever comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.ingest.crowd import Known

if TYPE_CHECKING:
    import asyncio


class Places:
    """Used from the event loop alone, but for `known`."""

    def __init__(self) -> None:
        self.known = Known()
        self._idle: dict[asyncio.Transport, None] = {}

    def idle(self, transport: asyncio.Transport) -> None:
        self._idle[transport] = None

    def busy(self, transport: asyncio.Transport) -> None:
        self._idle.pop(transport, None)

    def free_one(self) -> bool:
        """End the connection that is idle for the longest; whether there was one."""
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        self.busy(oldest)
        oldest.abort()
        return True
