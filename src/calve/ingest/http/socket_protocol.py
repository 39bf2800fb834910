"""A WebSocket with bounds that uvicorn does not set, refused in the same words as a request."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.server import ServerProtocol

from calve.ingest.http.peer import Peer
from calve.ingest.http.problems import MEDIA_TYPE, plain_problem, raw_response

if TYPE_CHECKING:
    from websockets.http11 import Request

SOCKET_MESSAGE_BYTES_MAX: Final = 64 * 1024  # of one that a client sends
_LINGER_SECONDS: Final = 1.0


class _Handshake(ServerProtocol):
    """Refuses with a problem instead of plain text."""

    def accept(self, request: Request) -> Response:
        answer = super().accept(request)
        if answer.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            return answer
        status = HTTPStatus(answer.status_code)
        body = plain_problem(
            status, f"this is no handshake of a WebSocket: {self.handshake_exc}", "see RFC 6455"
        ).encoded()
        headers = Headers(answer.headers)
        for name, value in (("Content-Type", MEDIA_TYPE), ("Content-Length", str(len(body)))):
            del headers[name]
            headers[name] = value
        return Response(status, status.phrase, headers, body)


class BoundedSocket(WebSocketsSansIOProtocol):
    """One WebSocket. A client that is gone, or does not read, keeps nothing here for long."""

    def __init__(self, *args: Any, silent_seconds_max: float, **named: Any) -> None:
        super().__init__(*args, **named)
        self._silent_seconds_max = silent_seconds_max
        self.conn = _Handshake(
            max_size=SOCKET_MESSAGE_BYTES_MAX, logger=logging.getLogger("uvicorn.error")
        )

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self.handshake_initiated:  # the head came whole, and was not taken
            problem = plain_problem(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the head of the request has a line of more than 8192 bytes, or too many of them",
                "send less in the address and the headers",
            )
            self.transport.write(raw_response(problem))
            self.transport.close()

    def handle_ping(self) -> None:
        """Answer it, unless the client does not read its answers either."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self.close_sent:  # by a client that was too slow, or spoke no sense
            raise ClientDisconnected
        await super().send(message)
        # To uvicorn a refusal leaves the handshake open, which it would report as our error.
        self.handshake_complete |= self.close_sent

    async def run_asgi(self) -> None:
        Peer(self.transport, self.loop, self._silent_seconds_max).enter(self.scope)
        await super().run_asgi()
        # A client that does not read would keep the connection open by what waits for it.
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
