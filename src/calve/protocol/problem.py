"""Errors that travel: as problem+json from a server, and as the same error again at the client.

What crosses is the class's name, the message, the hint and the facts. A class that the other side
does not know becomes the nearest that it does, by the status.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

import msgspec

from calve import errors
from calve.errors import CalveError, InvalidRequest, Overloaded, Unavailable

_RETRY_AFTER_MS: Final = 1_000
_DELAY_KEY: Final = "retry_after_ms"


def _words(kind: type[CalveError]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()


def _type(kind: type[CalveError]) -> str:
    return f"urn:calve:problem:{_words(kind).replace(' ', '-')}"


_KINDS: Final = {
    _type(kind): kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CalveError)
}


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was refused: the members of RFC 9457, and Calve's own. `context` holds facts
    by name, such as row, column and value."""

    type: str
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
    """The problem that an error is, for whoever sent the request."""
    context = dict(error.context)
    delay = context.pop(_DELAY_KEY, "")
    if isinstance(error, Overloaded):
        delay = delay or str(_RETRY_AFTER_MS)
    return Problem(
        type=_type(type(error)),
        title=_words(type(error)).capitalize(),
        status=_status(error),
        detail=error.message,
        hint=error.hint,
        context=context,
        retry_after_ms=int(delay) if delay.isdecimal() else None,
    )


def _status(error: CalveError) -> int:
    """Rows that can be read and do not fit are 422; what cannot be read is 400."""
    if type(error) is InvalidRequest and not {"column", "columns"}.isdisjoint(error.context):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    return error.http_status


def decoded(content: bytes) -> Problem | None:
    """The problem, or None if this is none: somebody else answered."""
    try:
        return _DECODER.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def error_of(problem: Problem) -> CalveError:
    kind = _KINDS.get(problem.type) or _nearest(problem.status)
    context = dict(problem.context)
    if problem.retry_after_ms is not None:
        context[_DELAY_KEY] = str(problem.retry_after_ms)
    return kind(problem.detail, hint=problem.hint, context=context)


def _nearest(status: int) -> type[CalveError]:
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        return Unavailable
    return InvalidRequest if 400 <= status < 500 else CalveError
