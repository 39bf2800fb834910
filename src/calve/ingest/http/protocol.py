"""A connection with bounds that uvicorn does not set: the time and size of a head, their number."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from calve.ingest.addresses import spelt
from calve.ingest.http.peer import Peer
from calve.ingest.http.places import Places
from calve.ingest.http.problems import plain_problem, raw_response

HEAD_BYTES_MAX: Final = 64 * 1024
_LINGER_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    header_timeout_seconds: float
    connections_max: int
    silent_seconds_max: float


class _HeadTooLarge(Exception):
    """Ends the parser's work on a request."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A head that is too slow or too large ends it with an answer."""

    def __init__(self, *args: Any, limits: ConnectionLimits, places: Places, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits = limits
        self._places = places
        self._timer: asyncio.TimerHandle | None = None
        self._is_in_body = False
        self._is_refused = False
        self._received_bytes = 0  # of a head that has not ended
        self._head_bytes = 0  # of the names and values in it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:
            self._places.known.add(spelt(*self.client))
        is_full = len(self.connections) > self._limits.connections_max
        if is_full and not self._places.free_one():
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._limits.connections_max} are open already (ingest.http_connections_max)",
                "close some, or use one for many requests",
            )
        else:
            self._places.idle(transport)
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.busy(self.transport)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over():
            return
        if not self._is_in_body:
            self._received_bytes += len(data)
            self._start_timer()
        super().data_received(data)
        if self._received_bytes > HEAD_BYTES_MAX and not self._is_over():
            self._refuse_head()

    def _is_over(self) -> bool:
        return self._is_refused or self.transport.is_closing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._received_bytes = 0
        self._is_in_body = True
        self._places.busy(self.transport)
        Peer(self.transport, self.loop, self._limits.silent_seconds_max).enter(self.scope)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._places.idle(self.transport)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    def _should_upgrade(self) -> bool:
        """Only where it may be a WebSocket; everybody else gets a plain answer."""
        return super()._should_upgrade() and self.scope["method"] == "GET"

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.transport.abort()  # an answer that nobody reads
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser gave up."""
        if self.transport.is_closing():
            return
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse_head()
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is not HTTP", "see RFC 9112")

    def _count(self, more_bytes: int) -> None:
        self._head_bytes += more_bytes
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _HeadTooLarge

    def _refuse_head(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the head of the request has more than {HEAD_BYTES_MAX} bytes",
            "send less in the address and the headers",
        )

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.header_timeout_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                "the head of the request did not arrive in "
                f"{self._limits.header_timeout_seconds:g} s (ingest.http_header_timeout_ms)",
                "send a request, or close the connection",
            )

    def _refuse(self, status: HTTPStatus, detail: str, hint: str) -> None:
        self._stop_timer()
        self._is_refused = True
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self.pipeline or not self._is_in_body:
                # The answer to an earlier request is on its way, and this would be taken for it.
                cycle.keep_alive = False
                return
            if cycle.response_started:
                self.transport.close()
                return
        self.transport.write(raw_response(plain_problem(status, detail, hint)))
        self._close_gently()

    def _close_gently(self) -> None:
        """Take what is still being sent for a moment: a reset would undo the answer."""
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)
