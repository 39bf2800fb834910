"""Telemetry back from its tables: the messages of OTLP that rows were made of.

It goes over the descriptors of the protocol and asks the row for each field by its name, so that a
field without a column fails, and one whose value is not the sender's any more makes another message.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import Parse
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from calve.ingest.otlp.messages import LEVELS
from tests.telemetry import ONLY_IN_PROFILES

AnyValue: Any = common_pb2.AnyValue
KeyValue: Any = common_pb2.KeyValue
# Columns that are not called as their fields are.
_RENAMED: Final = {"quantile_values": "quantiles", "as_double": "value", "as_int": "value_int"}
_METRIC: Final = "metrics_"
_NANOS_ALONE: Final = {"end_time", "observed_time"}


class Record(NamedTuple):
    """A span, a log record or a point, with all that it has in common with others."""

    resource: Any
    resource_schema_url: str
    scope: Any
    scope_schema_url: str
    metric: Any  # without its points; none for spans and log records
    record: Any


def records_by_table(signal: str, request: Any) -> dict[str, list[Record]]:
    """The records of a request, by the table that each belongs in."""
    found: dict[str, list[Record]] = {}
    outer, middle, inner = LEVELS[signal]
    for of_resource in getattr(request, outer):
        for of_scope in getattr(of_resource, middle):
            for each in getattr(of_scope, inner):
                for table, metric, record in _records(signal, each):
                    whole = Record(
                        settled(of_resource.resource),
                        of_resource.schema_url,
                        settled(of_scope.scope),
                        of_scope.schema_url,
                        metric and settled(metric),
                        settled(record),
                    )
                    found.setdefault(table, []).append(whole)
    return found


def _records(signal: str, message: Any) -> Iterator[tuple[str, Any, Any]]:
    if signal != "metrics":
        yield signal, None, message
        return
    kind = message.WhichOneof("data")
    alone = type(message)()
    alone.CopyFrom(message)
    getattr(alone, kind).ClearField("data_points")
    for point in getattr(message, kind).data_points:
        yield f"{_METRIC}{kind}", alone, point


def settled(message: Any) -> Any:
    """A copy in which what is there and empty is as what is missing: no table tells them apart."""
    copy = type(message)()
    copy.CopyFrom(message)
    _settle(copy)
    return copy


def _settle(message: Any) -> None:
    if message.DESCRIPTOR is KeyValue.DESCRIPTOR:
        message.value.SetInParent()
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for each in value if field.is_repeated else [value]:
            _settle(each)
        is_told = field.containing_oneof is not None or message.DESCRIPTOR is KeyValue.DESCRIPTOR
        if not (field.is_repeated or is_told or value.ListFields()):
            message.ClearField(field.name)


def record_of(table: str, record_type: Any, row: dict[str, Any]) -> Record:
    """What a row was made of."""
    metric = _metric_of(table, row) if table.startswith(_METRIC) else None
    return Record(
        message_of(Resource, row, "resource_"),
        row["resource_schema_url"] or "",
        message_of(common_pb2.InstrumentationScope, row, "scope_"),
        row["scope_schema_url"] or "",
        metric,
        message_of(record_type, row),
    )


def _metric_of(table: str, row: dict[str, Any]) -> Any:
    kind = table.removeprefix(_METRIC)
    metric = metrics_pb2.Metric()
    for field in metric.DESCRIPTOR.fields:
        if field.containing_oneof is None:
            _set(metric, field, row, "")
    data = getattr(metric, kind)
    data.SetInParent()
    for field in data.DESCRIPTOR.fields:
        if field.name != "data_points":
            _set(data, field, row, "")
    return metric


def message_of(kind: Any, row: dict[str, Any], prefix: str = "") -> Any:
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if field.name not in ONLY_IN_PROFILES:
            _set(message, field, row, prefix)
    return message


def _set(message: Any, field: FieldDescriptor, row: dict[str, Any], prefix: str) -> None:
    column = prefix + _RENAMED.get(field.name, field.name)
    if field.message_type is None:
        _set_scalar(message, field, row, column)
    elif field.message_type is KeyValue.DESCRIPTOR:
        getattr(message, field.name).extend(_pairs_of(row, column))
    elif field.message_type is AnyValue.DESCRIPTOR:
        for value in _values_of(row[column], row[f"{column}_type"]):
            getattr(message, field.name).CopyFrom(value)
    elif field.is_repeated:
        kind = GetMessageClass(field.message_type)
        getattr(message, field.name).extend([message_of(kind, each) for each in row[column]])
    else:
        inner = message_of(GetMessageClass(field.message_type), row, f"{column}_")
        if inner.ListFields():
            getattr(message, field.name).CopyFrom(inner)


def _set_scalar(message: Any, field: FieldDescriptor, row: dict[str, Any], column: str) -> None:
    value = row[column]
    if field.is_repeated:
        getattr(message, field.name).extend(value)
        return
    if value is None or (field.name == "as_double" and row["value_int"] is not None):
        return
    if field.type == FieldDescriptor.TYPE_BYTES:
        value = bytes.fromhex(value)
    elif field.enum_type is not None and isinstance(value, str):
        (value,) = [
            each.number for each in field.enum_type.values if each.name.endswith(f"_{value}")
        ]
    if field.name.endswith("_unix_nano"):
        _check_moment(value, row, column)
    setattr(message, field.name, value)


def _check_moment(nanos: int, row: dict[str, Any], column: str) -> None:
    """The timestamp beside it says the same, to the microsecond; a few have none."""
    name = column.removesuffix("_unix_nano")
    if name in _NANOS_ALONE:
        return
    moment = row["time" if name == "start_time" and "start_time" not in row else name]
    assert int(moment.timestamp()) * 1_000_000 + moment.microsecond == nanos // 1_000, column


def _pairs_of(row: dict[str, Any], column: str) -> Iterator[Any]:
    kinds = dict(row[f"{column.removesuffix('s')}_types"])
    for key, text in row[column]:
        for value in _values_of(text, kinds.get(key, "string")):
            yield KeyValue(key=key, value=value)


def _values_of(text: str | None, kind: str | None) -> list[Any]:
    """The values that a text stands for: one, but of no kind none, and of a repeated key several."""
    if text is None:
        return [AnyValue()] if kind == "empty" else []
    if kind == "repeated":
        return [Parse(json.dumps(each), AnyValue()) for each in json.loads(text)]
    return [_READ[str(kind)](text)]


def _from_otlp_json(text: str) -> Any:
    is_map = any("key" in each for each in json.loads(text).get("values", []))
    return Parse(f'{{"{"kvlistValue" if is_map else "arrayValue"}": {text}}}', AnyValue())


def _from_json(value: Any) -> Any:
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case list():
            return AnyValue(array_value={"values": [_from_json(each) for each in value]})
        case _:
            pairs = [KeyValue(key=key, value=_from_json(each)) for key, each in value.items()]
            return AnyValue(kvlist_value={"values": pairs})


_READ: Final[dict[str, Callable[[str], Any]]] = {
    "string": lambda text: AnyValue(string_value=text),
    "bool": lambda text: AnyValue(bool_value={"true": True, "false": False}[text]),
    "int": lambda text: AnyValue(int_value=int(text)),
    "double": lambda text: AnyValue(double_value=float(text)),
    "bytes": lambda text: AnyValue(bytes_value=base64.b64decode(text, validate=True)),
    "list": lambda text: _from_json(json.loads(text)),
    "map": lambda text: _from_json(json.loads(text)),
    "otlp_json": _from_otlp_json,
}
