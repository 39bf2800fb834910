"""Rows over a WebSocket: the same events as server-sent ones, and acknowledgements on the way back.

Each message is JSON. A problem is the last one, and the code with which the socket is closed tells
what to do: 1012 says to come back, 4000 and more is the problem's status behind the 4.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from starlette.websockets import WebSocketDisconnect

from calve.errors import CalveError, InvalidRequest
from calve.ingest.http.problems import Refusal
from calve.ingest.refusals import as_refusal
from calve.protocol import problem_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.websockets import WebSocket

    from calve.ingest.http.pump import Pump
    from calve.protocol import Problem
    from calve.subscriptions.place import Place

    Acknowledge = Callable[[Place], Awaitable[bool]]

_DONE: Final = 1000
_COME_BACK: Final = 1012
_OF_STATUS: Final = 4000
_REASON_BYTES_MAX: Final = 123  # as RFC 6455 has it
_CLOSE_SECONDS: Final = 1.0
_encoder: Final = msgspec.json.Encoder(enc_hook=str)


class Heard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client sends: the id of an event, up to which everything is done with."""

    ack: str


class _End(NamedTuple):
    code: int
    reason: str = ""


class SocketForm:
    """One message for each row."""

    def rows(self, rows: list[tuple[Place, dict[str, Any]]]) -> list[str]:
        return [_event("row", str(place), row) for place, row in rows]

    def place(self, place: Place | None) -> list[str]:
        """The first says that the subscription is the client's; pings tell that it lives."""
        return [] if place is None else [_event("place", str(place))]


class SocketStream:
    """One socket, until either side has enough."""

    def __init__(
        self, socket: WebSocket, pump: Pump[list[str]], acknowledge: Acknowledge | None
    ) -> None:
        """Without `acknowledge`, there is no subscription."""
        self._socket = socket
        self._pump = pump
        self._acknowledge = acknowledge
        self._wanted: Place | None = None  # up to where is to be acknowledged next
        self._is_wanted = asyncio.Event()
        self._has_room = asyncio.Event()

    async def run(self) -> None:
        try:
            await self._socket.accept()
            await self._close(await self._work())
        except WebSocketDisconnect:
            pass
        finally:
            self._pump.end()

    async def _work(self) -> _End | None:
        """Why it ended; None if the client is gone."""
        tasks: list[asyncio.Task[_End | None]] = [
            asyncio.create_task(self._send_rows()),
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._acknowledge_all()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        except CalveError as error:
            return await self._tell(problem_of(as_refusal(error)))
        except Refusal as refusal:
            return await self._tell(refusal.problem)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_rows(self) -> _End:
        async for piece in self._pump.pieces():
            for text in piece:
                await self._socket.send_text(text)
        if self._pump.problem is not None:
            raise self._pump.problem
        if self._pump.is_stopped:
            return _End(_COME_BACK, "the service stops: connect again")
        return _End(_DONE, "there are no more rows")

    async def _listen(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            place = _heard(message.get("text"))
            if self._acknowledge is None:
                raise InvalidRequest(
                    "rows that are read without a subscription cannot be acknowledged",
                    hint="use the address of a subscription",
                )
            await self._want(place)

    async def _want(self, place: Place) -> None:
        """Have it acknowledged, together with those that wait: the furthest says it all."""
        both = place if self._wanted is None else self._wanted.furthest(place)
        if both is None:
            await self._has_room.wait()
        self._wanted = both or place
        self._has_room.clear()
        self._is_wanted.set()

    async def _acknowledge_all(self) -> None:
        while True:
            await self._is_wanted.wait()
            place, self._wanted = self._wanted, None
            self._is_wanted.clear()
            self._has_room.set()
            assert place is not None
            assert self._acknowledge is not None
            counts = await self._acknowledge(place)
            await self._socket.send_text(_event("ack", str(place), {"counts": counts}))

    async def _tell(self, problem: Problem) -> _End:
        """The last message, unless the client does not take it."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._socket.send_text(_event("problem", None, problem))
        except TimeoutError:
            pass
        return _End(_OF_STATUS + problem.status, problem.detail)

    async def _close(self, end: _End | None) -> None:
        if end is None:
            return
        reason = end.reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._socket.close(end.code, reason)
        except TimeoutError:
            pass


def _event(name: str, place: str | None, data: Any = None) -> str:
    fields = {"event": name, "id": place, "data": data}
    found = {key: value for key, value in fields.items() if value is not None}
    return _encoder.encode(found).decode()


def _heard(text: str | None) -> Place:
    # Whoever only takes rows in need not load what reads tables.
    from calve.subscriptions.place import Place

    if text is None:
        raise Refusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the message is binary", 'send {"ack": "…"} as text'
        )
    try:
        return Place.parse(msgspec.json.decode(text, type=Heard).ack)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequest(
            f"the message is not what is expected: {error}",
            hint='send {"ack": "…"} with the id of an event',
        ) from error
