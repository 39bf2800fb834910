"""What senders are told: OTLP's responses, and its errors, which say whether to try again."""

from __future__ import annotations

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

from calve.errors import CalveError, Denied, InvalidRequest, MissingPart, NotFound, Overloaded
from calve.ingest.refusals import RETRY_AFTER_MS, as_refusal
from calve.protocol import problem_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from calve.ingest.otlp.telemetry import Taken

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
    (Denied, grpc.StatusCode.PERMISSION_DENIED),
)


def response(signal: str, taken: Taken) -> Message:
    """Empty if everything was stored."""
    kind, count = _RESPONSES[signal]
    answer = kind()
    if taken.rejected:
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
    hint = f" ({refusal.hint})" if refusal.hint else ""
    status = Status(code=code.value[0], message=f"{refusal.message}{hint}")
    if code in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}:
        delay = RetryInfo()
        delay.retry_delay.FromMilliseconds(retry_after_ms(refusal))
        status.details.add().CopyFrom(_packed(delay))
    return status


def retry_after_ms(error: CalveError) -> int:
    return problem_of(error).retry_after_ms or RETRY_AFTER_MS


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
