"""Errors that travel: as JSON from a server, and as the same error again at the client.

What crosses is the class's name, the message, the hint and the facts. A class that the other side
does not know becomes the nearest that it does, by the status.
"""

from __future__ import annotations

from typing import Final

import msgspec

from calve import errors
from calve.errors import CalveError, InvalidRequest, Unavailable

_KINDS: Final = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, CalveError)
}


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as a client gets it; the members of RFC 9457, and Calve's own."""

    title: str
    status: int
    detail: str
    hint: str | None = None
    context: dict[str, str] = {}
    retry_after_ms: int | None = None

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)


_DECODER: Final = msgspec.json.Decoder(Problem)


def problem_of(error: CalveError) -> Problem:
    delay = error.context.get("retry_after_ms", "")
    return Problem(
        title=type(error).__name__,
        status=error.http_status,
        detail=error.message,
        hint=error.hint,
        context=dict(error.context),
        retry_after_ms=int(delay) if delay.isdecimal() else None,
    )


def decoded(content: bytes) -> Problem | None:
    """The problem, or None if this is none: somebody else answered."""
    try:
        return _DECODER.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def error_of(problem: Problem) -> CalveError:
    kind = _KINDS.get(problem.title) or _nearest(problem.status)
    return kind(problem.detail, hint=problem.hint, context=problem.context)


def _nearest(status: int) -> type[CalveError]:
    if status in {429, 503}:
        return Unavailable
    return InvalidRequest if 400 <= status < 500 else CalveError
