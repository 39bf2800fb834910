"""Headers that every answer carries, so that a browser does nothing with it but show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from calve.ingest.exposure import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_Headers = list[tuple[bytes, bytes]]

# Nothing in an answer is run, framed, guessed at, kept, told to the next site, or given to another.
HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_STARTS: Final = frozenset({"http.response.start", "websocket.http.response.start"})
_ENCODED: Final = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
# A year. It holds for every port of the name, so never for one that other programs share.
_ONLY_TLS: Final = (b"strict-transport-security", b"max-age=31536000")


class Protected:
    """An application whose answers carry the headers; those that it sets itself stay."""

    def __init__(self, app: ASGIApp, host: str, *, has_tls: bool) -> None:
        is_shared = is_loopback(host)
        self._app = app
        self._headers = [*_ENCODED, _ONLY_TLS] if has_tls and not is_shared else _ENCODED

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def protected(message: Message) -> None:
            if message["type"] in _STARTS:
                message = {**message, "headers": self._with_ours(message.get("headers", ()))}
            await send(message)

        await self._app(scope, receive, protected)

    def _with_ours(self, theirs: object) -> _Headers:
        headers = [(bytes(name), bytes(value)) for name, value in theirs]  # type: ignore[attr-defined]
        known = {name.lower() for name, _ in headers}
        return headers + [each for each in self._headers if each[0] not in known]
