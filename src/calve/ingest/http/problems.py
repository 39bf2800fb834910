"""Errors as application/problem+json: what went wrong, what to do, and the facts."""

from __future__ import annotations

import math
import re
from http import HTTPStatus
from typing import Final

import msgspec

from calve.errors import CalveError, InvalidRequest, Overloaded

MEDIA_TYPE: Final = "application/problem+json"
_RETRY_AFTER_MS: Final = 1_000


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was refused. `context` holds facts by name, such as row, column and value."""

    type: str
    title: str
    status: int
    detail: str
    hint: str | None = None
    context: dict[str, str] = msgspec.field(default_factory=dict)
    retry_after_ms: int | None = None

    @classmethod
    def of(cls, error: CalveError) -> Problem:
        """The problem that an error is, for whoever sent the request."""
        context = dict(error.context)
        retry_after = context.pop("retry_after_ms", None)
        if isinstance(error, Overloaded):
            retry_after = retry_after or str(_RETRY_AFTER_MS)
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
        return cls(
            type=f"urn:calve:problem:{words.replace(' ', '-')}",
            title=words.capitalize(),
            status=_status(error),
            detail=error.message,
            hint=error.hint,
            context=context,
            retry_after_ms=int(retry_after) if retry_after else None,
        )

    @classmethod
    def plain(cls, status: HTTPStatus, detail: str, hint: str | None = None) -> Problem:
        """One that is HTTP's own, and no error of Calve."""
        return cls(type="about:blank", title=status.phrase, status=status, detail=detail, hint=hint)

    @property
    def headers(self) -> dict[str, str]:
        if self.retry_after_ms is None:
            return {}
        return {"Retry-After": str(math.ceil(self.retry_after_ms / 1000))}

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    def raw(self) -> bytes:
        """A whole response, for a connection whose request could not be read."""
        body = self.encoded()
        status = HTTPStatus(self.status)
        head = (
            f"HTTP/1.1 {self.status} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode("ascii") + body


class Refusal(Exception):
    """Ends a request with a problem of HTTP's own."""

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        hint: str | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = Problem.plain(status, detail, hint)
        self.headers = headers or {}


def _status(error: CalveError) -> int:
    """Rows that can be read and do not fit are 422; what cannot be read is 400."""
    if type(error) is InvalidRequest and not {"column", "columns"}.isdisjoint(error.context):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    return error.http_status
