"""What senders are told: OTLP's responses, and its errors, which say whether to try again."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from calve.errors import (
    CalveError,
    Denied,
    InvalidRequest,
    MissingPart,
    NotFound,
    Overloaded,
    Unauthenticated,
)
from calve.ingest.refusals import RETRY_AFTER_MS, as_refusal
from calve.protocol import problem_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from calve.ingest.otlp.telemetry import Taken
    from calve.protocol import Problem

_RESPONSES: Final[dict[str, tuple[Any, str]]] = {
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
}
# What a sender did wrong; it would be wrong again. All else may be over when it tries again.
_FINAL: Final[tuple[tuple[type[CalveError], grpc.StatusCode], ...]] = (
    (MissingPart, grpc.StatusCode.UNIMPLEMENTED),
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (Denied, grpc.StatusCode.PERMISSION_DENIED),
)
# Of what HTTP refuses by itself; all else is wrong in the request.
_CODES: Final[dict[int, grpc.StatusCode]] = {
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.UNIMPLEMENTED,
    HTTPStatus.METHOD_NOT_ALLOWED: grpc.StatusCode.UNIMPLEMENTED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.INTERNAL_SERVER_ERROR: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: grpc.StatusCode.UNAVAILABLE,
}


def response(signal: str, taken: Taken) -> Message:
    """Empty if everything was stored; with a message alone if there is something to say of it."""
    kind, count = _RESPONSES[signal]
    answer = kind()
    if taken.reason:
        setattr(answer.partial_success, count, taken.rejected)
        answer.partial_success.error_message = taken.reason
    message: Message = answer
    return message


def code_of(error: CalveError) -> grpc.StatusCode:
    for kind, code in _FINAL:
        if isinstance(error, kind):
            return code
    is_full = isinstance(error, Overloaded)
    return grpc.StatusCode.RESOURCE_EXHAUSTED if is_full else grpc.StatusCode.UNAVAILABLE


def status_of(error: CalveError) -> Status:
    """With the delay after which to try again, if that may help."""
    refusal = as_refusal(error)
    code = code_of(refusal)
    may_help = code in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    delay = retry_after_ms(refusal) if may_help else None
    return _status(code, refusal.message, refusal.hint, delay)


def refusal_status(problem: Problem) -> Status:
    """The same for what HTTP itself refuses; its own status says whether to try again."""
    code = _CODES.get(problem.status, grpc.StatusCode.INVALID_ARGUMENT)
    return _status(code, problem.detail, problem.hint, problem.retry_after_ms)


def _status(code: grpc.StatusCode, message: str, hint: str | None, delay_ms: int | None) -> Status:
    number: int = code.value[0]
    status = Status(code=number, message=f"{message} ({hint})" if hint else message)
    if delay_ms is not None:
        delay = RetryInfo()
        delay.retry_delay.FromMilliseconds(delay_ms)
        status.details.add().CopyFrom(_packed(delay))
    return status


def retry_after_ms(error: CalveError) -> int:
    return problem_of(error).retry_after_ms or RETRY_AFTER_MS


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
