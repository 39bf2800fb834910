"""The sentences of OTLP's specification that are about servers, over real sockets."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.json_format import Parse
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from calve.errors import InvalidRequest, Overloaded
from calve.ingest.otlp import grpc_server
from calve.ingest.otlp.messages import REQUESTS
from calve.ingest.otlp.telemetry import Taken, Telemetry
from tests.conftest import MakeSettings
from tests.otlp_door import JSON, PROTOBUF, Door, opened_door, spans
from tests.telemetry import a_request

SIGNALS = tuple(REQUESTS)
ANSWERS: dict[str, tuple[Any, str]] = {
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
}


@pytest.fixture
def door(make_settings: MakeSettings) -> Iterator[Door]:
    with opened_door(make_settings) as door:
        yield door


def status_in(answer: httpx.Response) -> Any:
    """The status that a refusal holds, in the form that it says."""
    if answer.headers["content-type"] == JSON:
        return Parse(answer.content, Status())
    assert answer.headers["content-type"] == PROTOBUF
    return Status.FromString(answer.content)


def delay_ms(status: Any) -> int:
    delay = RetryInfo()
    (detail,) = status.details
    assert detail.Unpack(delay)
    milliseconds: int = delay.retry_delay.ToMilliseconds()
    return milliseconds


@pytest.mark.parametrize("signal", SIGNALS)
def test_an_empty_request_is_a_success(door: Door, signal: str) -> None:
    assert door.call(b"", signal=signal) == b""
    path = f"/v1/{signal}"
    for body, kind, told in ((b"", PROTOBUF, b""), (b"{}", JSON, b"{}")):
        answer = door.post(body, kind, path)
        assert (answer.status_code, answer.content) == (200, told)


@pytest.mark.parametrize("signal", SIGNALS)
def test_rejected_records_are_counted_by_signal(door: Door, signal: str) -> None:
    request, records = a_request(signal, records=3)
    for record in records[:2]:
        owner = record.gauge.data_points[0] if signal == "metrics" else record
        owner.attributes.add(key="bad key")
    body = request.SerializeToString().replace(b"bad key", b"bad\xffkey")
    kind, count = ANSWERS[signal]
    over_grpc = kind.FromString(door.call(body, signal=signal)).partial_success
    over_http = kind.FromString(door.post(body, path=f"/v1/{signal}").content).partial_success
    for told in (over_grpc, over_http):
        assert (getattr(told, count), told.error_message) == (2, "key is not UTF-8")


def test_a_remark_comes_with_a_count_of_zero(door: Door) -> None:
    request = spans()
    request.resource_spans[0].resource.attributes.add(key_strindex=3)
    told = ExportTraceServiceResponse.FromString(door.call(request.SerializeToString()))
    assert told.partial_success.rejected_spans == 0
    assert "only profiles have" in told.partial_success.error_message
    assert len(door.rows("traces")) == 1


def test_many_attributes_and_a_long_body_go_through_the_doors(door: Door) -> None:
    request, logs = a_request("logs")
    for number in range(10_000):
        logs[0].attributes.add(key=f"key{number}", value={"int_value": number})
    logs[0].body.string_value = "ü" * (1 << 19)
    body = request.SerializeToString()
    assert door.call(body, signal="logs", compression=grpc.Compression.Gzip) == b""
    assert door.post(gzip.compress(body), path="/v1/logs", Content_Encoding="gzip").content == b""
    for row in door.rows("logs"):
        assert len(row["attributes"]) == 10_000
        assert row["body"] == "ü" * (1 << 19)


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/v1/profiles", "POST", {}, 404),
        ("/v1/traces", "PUT", {}, 405),
        ("/v1/traces", "POST", {"Content-Encoding": "br"}, 415),
        ("/v1/traces", "POST", {"Content-Type": "application/json; charset=latin-1"}, 415),
        ("/v1/traces", "POST", {"Content-Encoding": "gzip"}, 400),
        ("/v1/traces", "POST", {"x-calve-dataset": "No!"}, 400),
        ("/v1/traces", "POST", {"Origin": "https://pages.example.com"}, 403),
    ],
)
@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_every_refusal_is_a_status_in_the_form_of_the_request(
    door: Door, path: str, method: str, headers: dict[str, str], status: int, kind: str
) -> None:
    given = {"Content-Type": kind, **headers}
    answer = httpx.request(method, f"{door.http_url}{path}", content=b"{}", headers=given)
    assert answer.status_code == status
    assert answer.headers["content-type"] == (JSON if "json" in given["Content-Type"] else PROTOBUF)
    assert status_in(answer).message
    assert status_in(answer).code


def test_what_the_service_failed_at_may_be_tried_again(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a defect")

    body = spans().SerializeToString()
    with monkeypatch.context() as patch:
        patch.setattr(Telemetry, "take", fail)
        answer = door.post(body)
        with pytest.raises(grpc.RpcError) as refused:
            door.call(body)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert status_in(answer).code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert door.post(body).status_code == 200


def test_throttling_says_when_to_come_back(door: Door) -> None:
    admission = door.intake.admission
    for kind, body in ((PROTOBUF, spans().SerializeToString()), (JSON, b'{"resourceSpans": []}')):
        with admission.hold(admission.bytes_max - 10, "others"):
            answer = door.post(body, kind)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert delay_ms(status_in(answer)) == 100
        assert door.post(body, kind).status_code == 200


def test_bombs_and_large_bodies_are_refused_as_too_large(make_settings: MakeSettings) -> None:
    with opened_door(make_settings, ingest__request_bytes_max=1 << 20) as door:
        bomb = gzip.compress(bytes(64 << 20))
        assert len(bomb) < 1 << 17
        for answer in (
            door.post(bomb, Content_Encoding="gzip"),
            door.post(bytes((1 << 20) + 1)),
            door.post(gzip.compress(b"[" * (2 << 20)), JSON, Content_Encoding="gzip"),
        ):
            assert answer.status_code == 413
            assert "request_bytes_max" in status_in(answer).message
        for compression in (grpc.Compression.Gzip, grpc.Compression.NoCompression):
            with pytest.raises(grpc.RpcError) as refused:
                door.call(bytes(2 << 20), compression=compression)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "grpc-status-details-bin" not in dict(refused.value.trailing_metadata())
        assert door.post(b"").status_code == 200


def test_json_is_admitted_for_what_its_objects_take(make_settings: MakeSettings) -> None:
    settings = {"ingest__memory_bytes_max": 32 << 20}
    with opened_door(make_settings, **settings) as door:
        body = b'{"a": [' + b"{}," * (1 << 19) + b"{}]}"
        answer = door.post(body, JSON)
        assert answer.status_code == 400
        assert "split" in status_in(answer).message
        assert door.intake.admission.held_bytes == 0


def test_connections_live_on_also_after_a_refusal(door: Door) -> None:
    body, headers = spans().SerializeToString(), {"Content-Type": PROTOBUF}
    with httpx.Client(base_url=door.http_url, limits=httpx.Limits(max_connections=1)) as client:
        streams = set()
        for content in (body, b"\xff\xff", body):
            answer = client.post("/v1/traces", content=content, headers=headers)
            streams.add(id(answer.extensions["network_stream"]))
            assert "close" not in answer.headers.get("connection", "")
    assert len(streams) == 1
    assert len(door.rows("traces")) == 2


def test_clients_may_ask_whether_a_connection_lives(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the Collector does; gRPC ends connections that ask oftener than every five minutes."""
    monkeypatch.setattr(grpc_server, "PING_INTERVAL_MS", 1)
    settings, ping, go_away = b"\0\0\0\x04\0\0\0\0\0", b"\0\0\x08\x06\0\0\0\0\0", 7
    with opened_door(make_settings) as door:
        host, _, port = door.grpc_url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
            frames = connection.makefile("rb")
            answered = 0
            connection.sendall(ping + answered.to_bytes(8, "big"))
            while answered < 6:
                head = frames.read(9)
                content = frames.read(int.from_bytes(head[:3], "big"))
                assert head[3] != go_away, content
                if head[3:5] == b"\x06\x01" and content == answered.to_bytes(8, "big"):
                    answered += 1
                    time.sleep(0.01)  # longer than pings must be apart
                    connection.sendall(ping + answered.to_bytes(8, "big"))


def json_span(**fields: Any) -> bytes:
    span = {"traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174", **fields}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


@pytest.mark.parametrize(
    ("fields", "column", "value"),
    [
        ({"kind": 3}, "kind", "CLIENT"),
        ({"kind": "SPAN_KIND_CLIENT"}, "kind", "CLIENT"),  # not allowed, and sent all the same
        ({"kind": 77}, "kind", "77"),
        ({"kind": "3"}, "kind", "CLIENT"),
        ({"startTimeUnixNano": "1544712660000000001"}, "start_time_unix_nano", 1544712660000000001),
        ({"startTimeUnixNano": 1544712660000000001}, "start_time_unix_nano", 1544712660000000001),
        ({"start_time_unix_nano": "7"}, "start_time_unix_nano", 7),
        ({"parentSpanId": ""}, "parent_span_id", None),
        ({"parentSpanId": "00000000000000AB"}, "parent_span_id", "00000000000000ab"),
        ({"name": None}, "name", None),
        ({"name": "grüße \U0001f6d2"}, "name", "grüße \U0001f6d2"),
        ({"later": {"deep": [{"x": None}]}, "name": "n"}, "name", "n"),
        ({"flags": 257}, "flags", 257),
    ],
)
def test_json_is_read_as_the_protocol_says(
    door: Door, fields: dict[str, Any], column: str, value: Any
) -> None:
    answer = door.post(json_span(**fields), f"{JSON}; charset=utf-8")
    assert (answer.status_code, answer.headers["content-type"], answer.json()) == (200, JSON, {})
    (row,) = door.rows("traces")
    assert row[column] == value
    assert (row["trace_id"], row["span_id"]) == (
        "5b8efff798038103d269b633813fc60c",
        "eee19b7ec3c1b174",
    )


def test_values_in_json_have_their_kinds(door: Door) -> None:
    values: dict[str, dict[str, Any]] = {
        "text": {"stringValue": "1"},
        "int": {"intValue": "-9223372036854775808"},
        "number": {"intValue": 9007199254740993},
        "double": {"doubleValue": 0.5},
        "not a number": {"doubleValue": "NaN"},
        "bytes": {"bytesValue": "AP8="},
        "list": {"arrayValue": {"values": [{"boolValue": True}, {}]}},
        "map": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": 1}}]}},
        "nothing": {},
    }
    attributes = [{"key": key, "value": value} for key, value in values.items()]
    assert door.post(json_span(attributes=attributes), JSON).status_code == 200
    (row,) = door.rows("traces")
    assert dict(row["attributes"]) == {
        "text": "1",
        "int": "-9223372036854775808",
        "number": "9007199254740993",
        "double": "0.5",
        "not a number": "nan",
        "bytes": "AP8=",
        "list": "[true,null]",
        "map": '{"k":1}',
        "nothing": None,
    }


@pytest.mark.parametrize(
    "body",
    [
        json_span(traceId="5b8efff798038103d269b633813fc60"),
        json_span(traceId="5b 8e ff f7 98 03 81 03 d2 69 b6 33 81 3f c6 0c"),
        json_span(spanId="nothexadecimals!"),
        json_span(name="x").replace(b'"x"', b'"\\ud800"'),
        json_span(name="x").replace(b'"x"', b'"\xff"'),
        json_span(startTimeUnixNano="9" * 30),
        json_span(startTimeUnixNano=-1),
        json_span(kind="SPAN_KIND_CLIANT"),
        json_span(attributes=[{"key": "k", "value": {"bytesValue": "!!!"}}]),
        json_span(attributes=[{"key": "k", "value": {"bytesValue": "aGVs*bG8="}}]),
    ],
)
def test_json_that_cannot_be_read_is_refused_with_the_reason(door: Door, body: bytes) -> None:
    answer = door.post(body, JSON)
    assert answer.status_code == 400
    assert "JSON" in status_in(answer).message


@pytest.mark.parametrize(
    "fields",
    [
        {"later": {"traceId": "not hexadecimal", "span_id": "abc"}},
        {"later": {"deep": [{"spanId": "?"}]}},
        {"later": {"bytesValue": "!!!"}},
        {"later": {"kind": "SPAN_KIND_CLIANT", "aggregationTemporality": "soon"}},
        {"later": [[{"traceId": "?"}], "spanId", None]},
        {"status": {"parentSpanId": "?"}},  # an id elsewhere
    ],
)
def test_json_fields_that_nobody_knows_are_passed_over_whatever_they_hold(
    door: Door, fields: dict[str, Any]
) -> None:
    answer = door.post(json_span(name="n", **fields), JSON)
    assert (answer.status_code, answer.json()) == (200, {})
    (row,) = door.rows("traces")
    assert (row["name"], row["span_id"]) == ("n", "eee19b7ec3c1b174")


def test_ids_of_a_wrong_length_in_json_reject_their_span_alone(door: Door) -> None:
    answer = door.post(json_span(spanId="abcd"), JSON)
    assert answer.status_code == 200
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert len(door.rejected("traces")) == 1


def finished_span() -> Any:
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    provider.get_tracer("t").start_span("throttled").end()
    return made.get_finished_spans()


def exporters(door: Door) -> list[SpanExporter]:
    return [GrpcSpans(door.grpc_url, insecure=True), HttpSpans(f"{door.http_url}/v1/traces")]


def test_the_sdk_comes_back_after_throttling(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each exporter is refused once, and sends the same again after the delay that it was told."""
    take, refusals = Telemetry.take, ["full"]

    def refuse_once(self: Telemetry, *given: Any, **named: Any) -> Taken:
        if refusals:
            raise Overloaded(refusals.pop(), context={"retry_after_ms": "100"})
        return take(self, *given, **named)

    monkeypatch.setattr(Telemetry, "take", refuse_once)
    for exporter in exporters(door):
        refusals[:] = ["full"]
        assert exporter.export(finished_span()) is SpanExportResult.SUCCESS
        assert not refusals
        exporter.shutdown()
    assert [row["name"] for row in door.rows("traces")] == ["throttled"] * 2


def test_the_sdk_does_not_send_again_what_can_never_be_stored(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuse(*given: Any, **_: Any) -> None:
        tried.append(given)
        raise InvalidRequest("no request")

    monkeypatch.setattr(Telemetry, "take", refuse)
    for exporter in exporters(door):
        assert exporter.export(finished_span()) is SpanExportResult.FAILURE
        exporter.shutdown()
    assert len(tried) == 2
