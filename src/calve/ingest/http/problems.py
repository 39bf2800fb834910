"""Problems as HTTP sends them: HTTP's own, their headers, and whole responses."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Final

from calve.ingest.http.protection import HEADERS
from calve.protocol import Problem

MEDIA_TYPE: Final = "application/problem+json"
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="calve"'}


def plain_problem(status: HTTPStatus, detail: str, hint: str | None = None) -> Problem:
    """One that is HTTP's own, and no error of Calve."""
    return Problem(type="about:blank", title=status.phrase, status=status, detail=detail, hint=hint)


def headers_of(problem: Problem) -> dict[str, str]:
    headers = {}
    if problem.retry_after_ms is not None:
        headers["Retry-After"] = str(math.ceil(problem.retry_after_ms / 1000))
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers.update(CHALLENGE)
    return headers


def raw_response(problem: Problem) -> bytes:
    """For a connection whose request could not be read."""
    body = problem.encoded()
    headers = {
        "content-type": MEDIA_TYPE,
        "content-length": str(len(body)),
        "connection": "close",
        **HEADERS,
    }
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"HTTP/1.1 {problem.status} {problem.title}\r\n{''.join(lines)}\r\n"
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
        self.problem = plain_problem(status, detail, hint)
        self.headers = headers or {}
