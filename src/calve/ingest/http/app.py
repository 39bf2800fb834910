"""The application: each request through the gate, past guard and doorkeeper, and answered.

Whatever happens, the answer is the handler's or a problem; no traceback leaves this module. A
WebSocket takes the same way, and is refused like any request until it is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.websockets import WebSocket, WebSocketDisconnect

from calve.errors import CalveError, Unavailable
from calve.ingest.http.callers import admit, known_caller
from calve.ingest.http.openapi import docs_page, openapi
from calve.ingest.http.problems import MEDIA_TYPE, Refusal, headers_of, plain_problem
from calve.ingest.http.upload import Upload
from calve.ingest.recording import HTTP_ACTIONS, acting, recording_door
from calve.ingest.refusals import RETRY_AFTER_MS, as_refusal
from calve.protocol import problem_of

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import Receive, Scope, Send

    from calve.ingest.http.guard import Guard
    from calve.ingest.http.operation import Operation
    from calve.ingest.http.service import Service
    from calve.ingest.http.sockets import SocketStream
    from calve.protocol import Problem

_log: Final = logging.getLogger(__name__)
_CLOSE: Final = {"Connection": "close"}
_BROKEN: Final = 1011
_OTLP_PATHS: Final = frozenset({"/v1/traces", "/v1/logs", "/v1/metrics"})
Made = TypeVar("Made")


class App:
    """An ASGI application over the route table."""

    _door = "http"  # as the audit log calls it

    def __init__(self, service: Service, operations: Sequence[Operation], guard: Guard) -> None:
        self._service = service
        self._operations = operations
        self._guard = guard
        self._routes: list[tuple[Route, Mapping[str, Operation]]] = []
        for path in dict.fromkeys(operation.path for operation in operations):
            methods = {each.method: each for each in operations if each.path == path}
            self._routes.append((Route(path, _unused), methods))

    @cached_property
    def openapi(self) -> bytes:
        return msgspec.json.encode(openapi(self._operations))

    @cached_property
    def docs(self) -> str:
        return docs_page(self._operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one WebSocket."""
        scope["app"] = self
        with self._service.gate.inside():
            if scope["type"] == "websocket":
                await self._serve_socket(WebSocket(scope, receive, send))
            else:
                assert scope["type"] == "http"
                await self._serve_request(scope, receive, send)

    async def _serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        gate = self._service.gate
        try:
            response = await self._response(Request(scope), receive)
            if gate.is_closing:
                response.headers.update(_CLOSE)
            await response(scope, receive, send)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            if not gate.is_cut:
                raise

    async def _response(self, request: Request, receive: Receive) -> Response:
        try:
            upload = request.scope["calve.upload"] = Upload(request, receive)
            response = await self._answer(request, self._routed(request))
            if not await upload.discard():
                response.headers.update(_CLOSE)
        except asyncio.CancelledError:
            if not self._service.gate.is_cut:
                raise
            return _stopping()
        except CalveError as error:
            return _problem(problem_of(as_refusal(error)), _CLOSE)
        return response

    async def _serve_socket(self, socket: WebSocket) -> None:
        try:
            opened = await self._answer(socket, self._opened(socket))
            if isinstance(opened, Response):
                await socket.send_denial_response(opened)
                return
            await opened.run()
        except (WebSocketDisconnect, OSError):  # the client is gone
            return
        except asyncio.CancelledError:
            if not self._service.gate.is_cut:
                raise
        except Exception:  # noqa: BLE001
            _log.exception("a socket failed: %s", socket.url.path)
            await socket.close(_BROKEN, "the service failed; its log says why")

    async def _answer(self, connection: HTTPConnection, work: Awaitable[Made]) -> Made | Response:
        """What `work` makes, or why not."""
        try:
            return await work
        except CalveError as error:
            return _problem(problem_of(as_refusal(error)))
        except Refusal as refusal:
            return _problem(refusal.problem, refusal.headers)
        except ClientDisconnect:
            raise
        except Exception:  # noqa: BLE001
            method = connection.scope.get("method", "WebSocket")
            _log.exception("a request failed: %s %s", method, connection.url.path)
            return _problem(
                plain_problem(
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "the service failed at this request",
                    "its log says why",
                )
            )

    async def _routed(self, request: Request) -> Response:
        if self._service.gate.is_closing:
            return _stopping()
        self._guard.check(request.method, request.headers)
        methods = self._methods(request)
        allowed = ", ".join(_allowed(methods))
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers={"Allow": allowed})
        operation = methods.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            raise Refusal(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{request.method} is not for this path",
                f"use {allowed}",
                headers={"Allow": allowed},
            )
        with self._recording(request, operation):
            return await self._handled(request, operation)

    def _recording(self, request: Request, operation: Operation) -> AbstractContextManager[object]:
        action = HTTP_ACTIONS.get((operation.method, operation.path))
        who = partial(known_caller, request)
        if action is None:
            return acting(who, self._door)
        subject = ".".join(request.path_params.values())
        return recording_door(self._service.intake, who, self._door, action, subject)

    async def _handled(self, request: Request, operation: Operation) -> Response:
        try:
            await admit(self._service, request, operation.scope)
        except CalveError as error:
            if operation.refused is None:
                raise
            return operation.refused(as_refusal(error), request)
        return await operation.handler(self._service, request)

    async def _opened(self, socket: WebSocket) -> Response | SocketStream:
        if self._service.gate.is_closing:
            return _stopping()
        self._guard.check("GET", socket.headers)
        operation = self._methods(socket).get("GET")
        if operation is None or operation.socket is None:
            raise Refusal(
                HTTPStatus.NOT_FOUND, f"there is no WebSocket at {socket.url.path!r}", "see /docs"
            )
        await admit(self._service, socket, operation.scope)
        return await operation.socket(self._service, socket)

    def _methods(self, connection: HTTPConnection) -> Mapping[str, Operation]:
        """What there is at the path of a request."""
        wanted = {"method": "GET", **connection.scope, "type": "http"}
        for route, methods in self._routes:
            match, found = route.matches(wanted)
            if match is not Match.NONE:
                connection.scope.update(found)
                return methods
        path = connection.url.path
        raise Refusal(
            HTTPStatus.NOT_FOUND, f"there is nothing at {path!r}", self._where_instead(path)
        )

    def _where_instead(self, path: str) -> str:
        """The hint for a path at which there is nothing."""
        if path in _OTLP_PATHS:
            return "send telemetry to ingest.otlp_http_port, which is 4318 unless it was set"
        return "see /docs"


def _unused() -> None:
    """Routes are used to match paths alone."""


def _allowed(methods: Mapping[str, Operation]) -> list[str]:
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
