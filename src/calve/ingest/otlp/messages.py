"""The messages of OTLP as Calve reads them: the official ones, a little wider.

Made from the official descriptors when they are first needed, so that a field which a new version
brings is read, too. Three things differ, none of them in the bytes: text is read as bytes, because
one record that is not UTF-8 must not lose its neighbours; enumerations are numbers; and lists and
maps inside of values stay bytes, because they may lie inside each other without end.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ptars
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from calve.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto

REQUESTS: Final[dict[str, type[Message]]] = {
    "traces": trace_service_pb2.ExportTraceServiceRequest,
    "logs": logs_service_pb2.ExportLogsServiceRequest,
    "metrics": metrics_service_pb2.ExportMetricsServiceRequest,
}
# The lists that a request of each signal is made of, from the outermost to the records.
LEVELS: Final = {
    "traces": ("resource_spans", "scope_spans", "spans"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "metrics": ("resource_metrics", "scope_metrics", "metrics"),
}
_KEPT_AS_BYTES: Final = frozenset(
    {".opentelemetry.proto.common.v1.ArrayValue", ".opentelemetry.proto.common.v1.KeyValueList"}
)
_ORIGIN: Final = frozenset({"resource", "scope", "schema_url"})
_HINT: Final = "send an export request of OTLP 1.x"


class Reader(NamedTuple):
    """Reads the requests of one signal."""

    signal: str
    wide: Any  # the class of the messages
    columns: Any  # bytes to Arrow
    records: Any  # the same, but for resources and scopes, which are passed over

    def message(self, body: bytes) -> Any:
        """The request; InvalidRequest if the bytes are none."""
        try:
            return self.wide.FromString(body)
        except DecodeError as error:
            raise InvalidRequest(
                f"the body is no request for {self.signal} in protobuf: {error}", hint=_HINT
            ) from error

    def batch(self, messages: Sequence[Any], *, has_origins: bool) -> pa.RecordBatch:
        """Requests as a row of lists of structs each, with their resources and scopes or without.

        A message is written again before it is read as Arrow: so whatever a sender made up,
        fields that come twice or several of a choice, has been settled by then. Fields that are
        unknown, or of another type than theirs, are still in it and passed over.
        """
        handler = self.columns if has_origins else self.records
        return handler.list_to_record_batch([each.SerializeToString() for each in messages])


@cache
def reader(signal: str) -> Reader:
    """For `traces`, `logs` or `metrics`."""
    whole = _widened(signal, without=frozenset())
    records = _widened(signal, without=_ORIGIN)
    return Reader(signal, GetMessageClass(whole), _handler(whole), _handler(records))


def _handler(descriptor: Descriptor) -> Any:
    return ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)


def _widened(signal: str, without: frozenset[str]) -> Descriptor:
    """The request of a signal, without fields that have one of these names."""
    pool = DescriptorPool()
    official = REQUESTS[signal].DESCRIPTOR
    _add(pool, official.file, set(), without)
    return pool.FindMessageTypeByName(official.full_name)


def _add(
    pool: DescriptorPool, file: FileDescriptor, known: set[str], without: frozenset[str]
) -> None:
    if file.name in known:
        return
    known.add(file.name)
    for needed in file.dependencies:
        _add(pool, needed, known, without)
    wide = FileDescriptorProto()
    file.CopyToProto(wide)
    wide.ClearField("service")
    for message in wide.message_type:
        _widen(message)
        for field in [each for each in message.field if each.name in without]:
            message.field.remove(field)
    pool.AddSerializedFile(wide.SerializeToString())


def _widen(message: DescriptorProto) -> None:
    for field in message.field:
        if field.type == FieldDescriptorProto.TYPE_STRING or field.type_name in _KEPT_AS_BYTES:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
        elif field.type == FieldDescriptorProto.TYPE_ENUM:
            field.type = FieldDescriptorProto.TYPE_INT32
            field.ClearField("type_name")
    for inner in message.nested_type:
        _widen(inner)
