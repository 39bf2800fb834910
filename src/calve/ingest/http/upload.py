"""A request's body: admitted before it is read, bounded in size and in time."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect

from calve.errors import InvalidRequest
from calve.ingest.formats.compression import too_large
from calve.ingest.http.problems import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive

    from calve.ingest.admission import Admission, Admitted

_DISCARD_SECONDS: Final = 5.0
_DISCARD_BYTES_MAX: Final = 256 << 20
_GROW_BYTES: Final = 1 << 20  # of a body that does not tell its size


class Upload:
    """The body of one request; at most one reads it."""

    def __init__(self, request: Request, receive: Receive) -> None:
        self.receive = self._receive = receive
        headers = request.headers
        self._length = _content_length(headers.get("content-length"))
        self._is_given_up = headers.get("expect", "").lower() == "100-continue"
        self._is_ended = not self._length and "transfer-encoding" not in headers

    async def read(
        self, admission: Admission, client: str, *, bytes_max: int, timeout_seconds: float
    ) -> tuple[bytes, Admitted]:
        """The bytes, and what was admitted for them, which the caller releases.

        Whoever announces the size is admitted with the first byte, or refused before it.
        """
        if self._length is not None and self._length > bytes_max:
            raise too_large(bytes_max)
        admitted = admission.hold(self._length or 0, client)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._bytes(admitted, bytes_max), admitted
        except TimeoutError:
            admitted.release()
            self._is_given_up = True
            raise Refusal(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the body did not arrive in {timeout_seconds:g} s (ingest.http_body_timeout_ms)",
                "send smaller requests",
            ) from None
        except BaseException:
            admitted.release()
            raise

    async def _bytes(self, admitted: Admitted, bytes_max: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while not self._is_ended:
            piece = await self._next()
            size += len(piece)
            if size > bytes_max:
                raise too_large(bytes_max)
            if size > admitted.held_bytes:
                admitted.grow(max(_GROW_BYTES, size - admitted.held_bytes))
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._is_ended = True
            raise ClientDisconnect
        self._is_ended = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    async def discard(self) -> bool:
        """Take what is still coming, so that the sender can read the answer; whether it ended.

        Not of a sender that waits to be asked for its body, or took too long for it.
        """
        if self._is_ended or self._is_given_up:
            return self._is_ended
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                return await self._discarded()
        except (TimeoutError, ClientDisconnect):
            return False

    async def _discarded(self) -> bool:
        left = _DISCARD_BYTES_MAX
        while left > 0 and not self._is_ended:
            left -= len(await self._next())
        return self._is_ended


def _content_length(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii():
        raise InvalidRequest(f"Content-Length is {text!r}", hint="give a number of bytes")
    return int(text)
