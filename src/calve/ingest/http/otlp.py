"""OTLP over HTTP: `POST /v1/traces`, `/v1/logs` and `/v1/metrics`, in protobuf or JSON.

Every refusal is OTLP's: a `Status` in the form that the request came in. What is not the sender's
fault is one that it may try again, because exporters drop what they may not.
"""

from __future__ import annotations

import math
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf.json_format import MessageToJson
from starlette.responses import Response

from calve.errors import CalveError
from calve.ingest.http.app import App
from calve.ingest.http.callers import caller_of
from calve.ingest.http.headers import encoding_of, media_type_of, unsupported
from calve.ingest.http.operation import Answer, Operation
from calve.ingest.http.problems import CHALLENGE, MEDIA_TYPE
from calve.ingest.http.server import HttpServer
from calve.ingest.otlp.answers import code_of, refusal_status, response, retry_after_ms, status_of
from calve.ingest.otlp.json_requests import protobuf_of, weight_of
from calve.ingest.otlp.messages import REQUESTS
from calve.ingest.otlp.telemetry import DATASET_HEADER, Taken, Telemetry, dataset_of
from calve.ingest.refusals import RETRY_AFTER_MS, as_refusal
from calve.protocol.problem import decoded

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from starlette.requests import Request
    from starlette.types import Receive

    from calve.ingest.http.service import Service

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_STATUSES: Final = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}


async def export(signal: str, service: Service, request: Request) -> Response:
    """Take a request in; answered in the form that it came in, also when it is refused."""
    kind = media_type_of(request.headers)
    if kind not in {PROTOBUF, JSON}:
        raise unsupported(f"Content-Type is {kind!r}", f"send {PROTOBUF} or {JSON}")
    try:
        taken = await _taken(signal, kind, service, request)
    except CalveError as error:
        return _refused(as_refusal(error), kind)
    return _answer(response(signal, taken), kind)


async def _taken(signal: str, kind: str, service: Service, request: Request) -> Taken:
    caller = caller_of(request)
    dataset = dataset_of(request.headers.get(DATASET_HEADER))
    encoding = encoding_of(request.headers)
    body, admitted = await service.body(request)

    def take() -> Taken:
        with admitted:
            content = service.unpacked(body, encoding, admitted)
            if kind == JSON:
                admitted.grow(weight_of(content))
                content = protobuf_of(signal, content)
            telemetry = Telemetry(service.intake)
            return telemetry.take(
                signal, content, caller=caller, dataset=dataset, admitted=admitted
            )

    return await service.in_thread(take)


def _not_let_in(error: CalveError, request: Request) -> Response:
    """In the form that the request came in, if that is one of OTLP's."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return _refused(error, kind if kind in {PROTOBUF, JSON} else PROTOBUF)


def _refused(error: CalveError, kind: str) -> Response:
    """As OTLP wants it: with a delay, for what may be over when it is tried again."""
    status = _STATUSES.get(code_of(error))
    answer = _answer(status_of(error), kind, status or error.http_status)
    if status is not None:
        answer.headers["Retry-After"] = str(math.ceil(retry_after_ms(error) / 1000))
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        answer.headers.update(CHALLENGE)
    return answer


def _answer(message: Message, kind: str, status: int = HTTPStatus.OK) -> Response:
    is_json = kind == JSON
    content = MessageToJson(message, indent=None) if is_json else message.SerializeToString()
    return Response(content, status, media_type=kind)


class OtlpApp(App):
    """Says what any door would say, as OTLP says it."""

    _door = "otlp_http"

    def _where_instead(self, path: str) -> str:
        return "send to " + ", ".join(operation.path for operation in OPERATIONS)

    async def _response(self, request: Request, receive: Receive) -> Response:
        response = await super()._response(request, receive)
        problem = decoded(bytes(response.body)) if response.media_type == MEDIA_TYPE else None
        if problem is None:
            return response
        is_protobuf = request.headers.get("content-type", "").lower().startswith(PROTOBUF)
        status = problem.status
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            status = HTTPStatus.SERVICE_UNAVAILABLE
        answer = _answer(refusal_status(problem), PROTOBUF if is_protobuf else JSON, status)
        own = {"content-length", "content-type"}
        answer.headers.update({k: v for k, v in response.headers.items() if k not in own})
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            answer.headers.setdefault("Retry-After", str(math.ceil(RETRY_AFTER_MS / 1000)))
        return answer


OPERATIONS: Final = tuple(
    Operation(
        method="POST",
        path=f"/v1/{signal}",
        scope="produce",
        handler=partial(export, signal),
        refused=_not_let_in,
        summary=f"Take {signal} in",
        answers=(Answer(HTTPStatus.OK, "they are durable"),),
    )
    for signal in REQUESTS
)


class OtlpHttpServer(HttpServer):
    """Listens on `ingest.otlp_http_port`, and offers OTLP alone."""

    _app = OtlpApp
    _operations = OPERATIONS
    _port_setting = "otlp_http_port"
