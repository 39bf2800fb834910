"""Rows as server-sent events.

A comment goes out where no rows come, so that everybody on the way knows that the stream lives, and
with it the place, so that whoever connects again goes on there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import StreamingResponse

from calve.ingest.refusals import as_refusal
from calve.protocol import problem_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from calve.errors import CalveError
    from calve.ingest.http.pump import Pump
    from calve.subscriptions.place import Place

EVENTS: Final = "text/event-stream"
LAST_EVENT: Final = "Last-Event-ID"
_HELLO: Final = b"retry: 1000\n: calve\n\n"
_LIVES: Final = b": calve\n\n"
_encoder: Final = msgspec.json.Encoder(enc_hook=str)


class EventForm:
    """One event for each row; its id is the place behind it."""

    def rows(self, rows: list[tuple[Place, dict[str, Any]]]) -> bytes:
        return b"".join(
            f"id: {place}\ndata: ".encode() + _encoder.encode(row) + b"\n\n" for place, row in rows
        )

    def place(self, place: Place | None) -> bytes:
        """An event without data, which is none, and yet its id counts."""
        return _LIVES if place is None else f": calve\nid: {place}\n\n".encode()


class EventStream(StreamingResponse):
    """An answer that goes on."""

    def __init__(self, pump: Pump[bytes]) -> None:
        super().__init__(
            self._sent(),
            media_type=EVENTS,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._pump = pump

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pump.end()

    async def _sent(self) -> AsyncIterator[bytes]:
        yield _HELLO
        async for piece in self._pump.pieces():
            yield piece
        if self._pump.problem is not None:
            yield _problem(self._pump.problem)


def _problem(error: CalveError) -> bytes:
    return b"event: problem\ndata: " + problem_of(as_refusal(error)).encoded() + b"\n\n"
