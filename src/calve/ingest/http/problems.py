"""Problems as HTTP sends them: HTTP's own, their headers, and whole responses."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Final

from calve.protocol import Problem

MEDIA_TYPE: Final = "application/problem+json"


def plain_problem(status: HTTPStatus, detail: str, hint: str | None = None) -> Problem:
    """One that is HTTP's own, and no error of Calve."""
    return Problem(type="about:blank", title=status.phrase, status=status, detail=detail, hint=hint)


def headers_of(problem: Problem) -> dict[str, str]:
    if problem.retry_after_ms is None:
        return {}
    return {"Retry-After": str(math.ceil(problem.retry_after_ms / 1000))}


def raw_response(problem: Problem) -> bytes:
    """For a connection whose request could not be read."""
    body = problem.encoded()
    head = (
        f"HTTP/1.1 {problem.status} {problem.title}\r\ncontent-type: {MEDIA_TYPE}\r\n"
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
        self.problem = plain_problem(status, detail, hint)
        self.headers = headers or {}
