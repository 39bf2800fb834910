"""The application: each request through the gate, past the guard, to its handler, and answered.

Whatever happens, the answer is the handler's or a problem; no traceback leaves this module.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route

from calve.errors import CalveError, Unavailable
from calve.ingest.http.guard import Guard
from calve.ingest.http.openapi import docs_page, openapi
from calve.ingest.http.problems import MEDIA_TYPE, Refusal, headers_of, plain_problem
from calve.ingest.http.upload import Upload
from calve.ingest.refusals import RETRY_AFTER_MS, as_refusal
from calve.protocol import problem_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from calve.ingest.http.operation import Handler, Operation
    from calve.ingest.http.service import Service
    from calve.protocol import Problem

_log: Final = logging.getLogger(__name__)
_CLOSE: Final = {"Connection": "close"}


class App:
    """An ASGI application over the route table."""

    def __init__(self, service: Service, operations: Sequence[Operation], host: str) -> None:
        self._service = service
        self._operations = operations
        self._guard = Guard(host)
        self._routes: list[tuple[Route, Mapping[str, Handler]]] = []
        for path in dict.fromkeys(operation.path for operation in operations):
            methods = {each.method: each.handler for each in operations if each.path == path}
            self._routes.append((Route(path, _unused), methods))

    @cached_property
    def openapi(self) -> bytes:
        return msgspec.json.encode(openapi(self._operations))

    @cached_property
    def docs(self) -> str:
        return docs_page(self._operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        assert scope["type"] == "http"
        scope["app"] = self
        gate = self._service.gate
        with gate.inside():
            request = Request(scope)
            try:
                upload = scope["calve.upload"] = Upload(request, receive)
                response = _stopping() if gate.is_closing else await self._answer(request)
                if not await upload.discard():
                    response.headers.update(_CLOSE)
            except ClientDisconnect:
                return
            except asyncio.CancelledError:
                if not gate.is_cut:
                    raise
                response = _stopping()
            except CalveError as error:
                response = _problem(problem_of(as_refusal(error)), _CLOSE)
            if gate.is_closing:
                response.headers.update(_CLOSE)
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            self._guard.check(request.method, request.headers)
            return await self._routed(request)
        except CalveError as error:
            return _problem(problem_of(as_refusal(error)))
        except Refusal as refusal:
            return _problem(refusal.problem, refusal.headers)
        except ClientDisconnect:
            raise
        except Exception:  # noqa: BLE001
            _log.exception("a request failed: %s %s", request.method, request.url.path)
            return _problem(
                plain_problem(
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "the service failed at this request",
                    "its log says why",
                )
            )

    async def _routed(self, request: Request) -> Response:
        for route, methods in self._routes:
            match, found = route.matches(request.scope)
            if match is Match.NONE:
                continue
            request.scope.update(found)
            allowed = ", ".join(_allowed(methods))
            if request.method == "OPTIONS":
                return Response(status_code=HTTPStatus.NO_CONTENT, headers={"Allow": allowed})
            method = "GET" if request.method == "HEAD" else request.method
            handler = methods.get(method)
            if handler is None:
                raise Refusal(
                    HTTPStatus.METHOD_NOT_ALLOWED,
                    f"{request.method} is not for this path",
                    f"use {allowed}",
                    headers={"Allow": allowed},
                )
            return await handler(self._service, request)
        raise Refusal(
            HTTPStatus.NOT_FOUND, f"there is nothing at {request.url.path!r}", "see /docs"
        )


def _unused() -> None:
    """Routes are used to match paths alone."""


def _allowed(methods: Mapping[str, Handler]) -> list[str]:
    more = ["HEAD"] if "GET" in methods else []
    return sorted([*methods, *more, "OPTIONS"])


def _problem(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        problem.encoded(),
        problem.status,
        headers={**headers_of(problem), **(headers or {})},
        media_type=MEDIA_TYPE,
    )


def _stopping() -> Response:
    error = Unavailable(
        "the service stops",
        hint=f"retry in {RETRY_AFTER_MS} ms, with the same producer and sequence",
        context={"retry_after_ms": str(RETRY_AFTER_MS)},
    )
    return _problem(problem_of(error), _CLOSE)
