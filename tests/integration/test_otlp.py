"""OpenTelemetry in, over real sockets: the SDK's own exporters, and senders that mean harm."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace import Status as SpanStatus

from calve.errors import InvalidRequest, MissingPart
from calve.ingest import Intake
from calve.ingest.otlp import telemetry
from calve.ingest.otlp.grpc_server import MESSAGE_BYTES_MAX, THREADS, OtlpGrpcServer
from calve.lake import Lake
from calve.model import TableName
from calve.parts import has_part
from calve.topics import TopicChange, TopicSpec
from tests.conftest import MakeSettings
from tests.otlp_door import EXPORT, JSON, PROTOBUF, Door, opened_door, spans
from tests.servers.tls import Authority
from tests.services import PORTS

RESOURCE = Resource.create({"service.name": "shop", "service.instance.id": "7"})


@pytest.fixture
def door(make_settings: MakeSettings) -> Iterator[Door]:
    with opened_door(make_settings) as door:
        yield door


def send_everything(traces: Any, logs: Any, metrics: Any) -> None:
    """What an instrumented program sends, each signal through its exporter."""
    tracing = TracerProvider(resource=RESOURCE)
    tracing.add_span_processor(SimpleSpanProcessor(traces))
    tracer = tracing.get_tracer("shop.cart", "1.2", attributes={"scope": "s"})
    logging = LoggerProvider(resource=RESOURCE)
    logging.add_log_record_processor(SimpleLogRecordProcessor(logs))
    with tracer.start_as_current_span("checkout", kind=SpanKind.SERVER) as span:
        span.set_attributes({"http.status": 500, "tags": ["a", "b"], "ratio": 0.5, "ok": False})
        span.add_event("declined", {"reason": "funds"})
        span.set_status(SpanStatus(StatusCode.ERROR, "card declined"))
        logging.get_logger("shop.pay").emit(
            body={"amount": 3, "of": ["x", 1.5]},
            severity_number=SeverityNumber.WARN,
            severity_text="WARN",
            attributes={"card": "visa"},
        )
    tracing.shutdown()
    logging.shutdown()
    reader = PeriodicExportingMetricReader(metrics, export_interval_millis=3_600_000)
    metering = MeterProvider([reader], resource=RESOURCE)
    meter = metering.get_meter("shop.cart")
    meter.create_counter("orders", unit="1").add(5, {"country": "de"})
    meter.create_gauge("queue").set(2.5)
    meter.create_histogram("latency", unit="ms").record(12)
    metering.shutdown()


def check_everything(door: Door) -> None:
    (span,) = door.rows("traces")
    assert (span["service_name"], span["name"], span["kind"]) == ("shop", "checkout", "SERVER")
    assert (span["status_code"], span["status_message"]) == ("ERROR", "card declined")
    assert dict(span["attributes"]) == {
        "http.status": "500",
        "tags": '["a","b"]',
        "ratio": "0.5",
        "ok": "false",
    }
    assert dict(span["attribute_types"]) == {
        "http.status": "int",
        "tags": "list",
        "ratio": "double",
        "ok": "bool",
    }
    assert (span["scope_name"], span["scope_version"]) == ("shop.cart", "1.2")
    assert dict(span["scope_attributes"]) == {"scope": "s"}
    assert dict(span["resource_attributes"])["service.instance.id"] == "7"
    (event,) = span["events"]
    assert (event["name"], dict(event["attributes"])) == ("declined", {"reason": "funds"})
    assert span["duration_nano"] == span["end_time_unix_nano"] - span["start_time_unix_nano"] > 0
    (log,) = door.rows("logs")
    assert (log["body"], log["body_type"]) == ('{"amount":3,"of":["x",1.5]}', "map")
    assert (log["severity_number"], log["severity_text"]) == (13, "WARN")
    assert (log["trace_id"], log["span_id"]) == (span["trace_id"], span["span_id"])
    (counter,) = door.rows("metrics_sum")
    assert (counter["name"], counter["value"], counter["value_int"]) == ("orders", 5.0, 5)
    assert (counter["is_monotonic"], counter["aggregation_temporality"]) == (True, "CUMULATIVE")
    assert dict(counter["attributes"]) == {"country": "de"}
    (gauge,) = door.rows("metrics_gauge")
    assert (gauge["name"], gauge["value"], gauge["value_int"]) == ("queue", 2.5, None)
    (histogram,) = door.rows("metrics_histogram")
    assert (histogram["count"], histogram["sum"], histogram["min"]) == (1, 12.0, 12.0)
    assert sum(histogram["bucket_counts"]) == 1
    assert len(histogram["explicit_bounds"]) + 1 == len(histogram["bucket_counts"])


def test_the_sdk_sends_every_signal_over_grpc(door: Door) -> None:
    options: dict[str, Any] = {"endpoint": door.grpc_url, "compression": grpc.Compression.Gzip}
    send_everything(GrpcSpans(**options), GrpcLogs(**options), GrpcMetrics(**options))
    check_everything(door)


def test_the_sdk_sends_every_signal_over_http(door: Door) -> None:
    def options(signal: str) -> dict[str, Any]:
        return {"endpoint": f"{door.http_url}/v1/{signal}", "compression": Compression.Gzip}

    send_everything(
        HttpSpans(**options("traces")),
        HttpLogs(**options("logs")),
        HttpMetrics(**options("metrics")),
    )
    check_everything(door)


def test_what_is_acknowledged_is_durable_and_its_topic_is_laid_out(door: Door) -> None:
    assert door.call(spans(3).SerializeToString()) == b""
    name = TableName.parse("traces")
    assert door.intake.offsets(name).durable == 3
    topic = door.intake.topics.topic(name)
    assert (topic.partition_by, topic.sort_by) == (("day(time)",), ("service_name", "name", "time"))


def test_a_header_names_the_dataset(door: Door) -> None:
    door.call(spans().SerializeToString(), (("x-calve-dataset", "staging"),))
    assert len(door.rows("default.staging.traces")) == 1
    with pytest.raises(grpc.RpcError, match="no dataset") as refused:
        door.call(spans().SerializeToString(), (("x-calve-dataset", "../up"),))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_topic_has_the_attributes_that_it_asks_for_as_columns(door: Door) -> None:
    request = spans(2)
    request.resource_spans[0].resource.attributes.add(
        key="k8s.pod.name", value={"string_value": "web-1"}
    )
    request.resource_spans[0].scope_spans[0].spans[1].attributes.add(
        key="http.route", value={"string_value": "/cart"}
    )
    door.call(request.SerializeToString())
    wanted = {"otlp.promoted_attributes": "http.route, resource:k8s.pod.name"}
    door.intake.alter_topic(TableName.parse("traces"), TopicChange(properties=wanted))
    door.call(request.SerializeToString())
    promoted = ("attribute_http_route", "resource_attribute_k8s_pod_name")
    assert [[row.get(name) for name in promoted] for row in door.rows("traces")] == [
        [None, None],
        [None, None],
        [None, "web-1"],
        ["/cart", "web-1"],
    ]
    assert door.rows("traces")[3]["attributes"] == [("http.route", "/cart")]
    columns = door.intake.topics.topic(TableName.parse("traces")).arrow_schema.names
    assert [name for name in columns if name in promoted] == list(promoted)


@pytest.mark.parametrize(
    ("name", "wanted", "words"),
    [
        ("promoted_attributes", "resource:", "is no key"),
        ("promoted_attributes", "Ünïcode", "is no key"),
        ("promoted_attributes", "types", "has already"),
        ("promoted_attributes", "k.a,k_a", "'k.a' and 'k_a' would both become"),
        ("promoted_attribute", "http.route", "there is no property"),
    ],
)
def test_columns_that_cannot_be_as_they_were_meant_are_refused(
    door: Door, name: str, wanted: str, words: str
) -> None:
    door.call(spans().SerializeToString())
    change = TopicChange(properties={f"otlp.{name}": wanted})
    with pytest.raises(InvalidRequest, match=words):
        door.intake.alter_topic(TableName.parse("traces"), change)


def test_a_request_that_one_of_its_topics_cannot_take_is_in_none(door: Door) -> None:
    door.intake.create_topic(
        TableName.parse("metrics_sum"), TopicSpec(schema=pa.schema([("time", pa.string())]))
    )
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="load").gauge.data_points.add(time_unix_nano=1, as_int=1)
    metrics.add(name="sold").sum.data_points.add(time_unix_nano=1, as_int=1)
    with pytest.raises(grpc.RpcError) as refused:
        door.call(request.SerializeToString(), signal="metrics")
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    del metrics[1]
    door.call(request.SerializeToString(), signal="metrics")
    assert len(door.rows("metrics_gauge")) == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (TopicSpec(kind="messages"), "it holds messages"),
        (TopicSpec(kind="messages", on_unknown_column="add"), "it holds messages"),
        (TopicSpec(schema=pa.schema([("time", pa.string())])), "'time' is string"),
        (
            TopicSpec(schema=pa.schema([("id", pa.int64())]), on_unknown_column="refuse"),
            "has no column 'time'",
        ),
    ],
)
def test_a_topic_that_was_not_made_for_telemetry_is_told_with_what_to_do(
    door: Door, spec: TopicSpec, reason: str
) -> None:
    topic = door.intake.create_topic(TableName.parse("traces"), spec)
    body = spans().SerializeToString()
    with pytest.raises(grpc.RpcError) as refused:
        door.call(body)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    answer = door.post(body)
    assert answer.status_code == 400
    for words in (str(refused.value.details()), Status.FromString(answer.content).message):
        assert "topic traces was not made for telemetry" in words
        assert reason in words
        assert "x-calve-dataset" in words
    assert (door.rows("traces"), door.rejected("traces")) == ([], [])
    assert door.intake.topic(topic.name) == topic
    assert door.call(body, (("x-calve-dataset", "apps"),)) == b""


def test_telemetry_that_is_rejected_is_not_kept_in_a_topic_of_messages(door: Door) -> None:
    door.intake.create_topic(TableName.parse("traces"), TopicSpec(kind="messages"))
    request = spans()
    request.resource_spans[0].scope_spans[0].spans[0].span_id = b"short"
    assert door.post(request.SerializeToString()).status_code == 400
    assert door.rejected("traces") == []


def test_a_wrong_path_is_told_the_right_ones(door: Door) -> None:
    answer = door.post(b"{}", JSON, "/v1/trace")
    assert answer.status_code == 404
    assert "/v1/traces, /v1/logs, /v1/metrics" in answer.text


def test_rejected_records_are_counted_and_kept(door: Door) -> None:
    request = spans(3)
    request.resource_spans[0].scope_spans[0].spans[1].span_id = b"short"
    answer = ExportTraceServiceResponse.FromString(door.call(request.SerializeToString()))
    assert answer.partial_success.rejected_spans == 1
    assert answer.partial_success.error_message == "span_id is not 8 bytes that are not all zero"
    assert [row["name"] for row in door.rows("traces")] == ["n0", "n2"]
    (letter,) = door.rejected("traces")
    kept = ExportTraceServiceRequest.FromString(letter["original"])
    assert kept.resource_spans[0].scope_spans[0].spans[0].name == "n1"


def test_a_request_of_rejected_records_alone_makes_its_topic(door: Door) -> None:
    request = spans()
    request.resource_spans[0].scope_spans[0].spans[0].ClearField("trace_id")
    answer = ExportTraceServiceResponse.FromString(door.call(request.SerializeToString()))
    assert answer.partial_success.rejected_spans == 1
    assert len(door.rejected("traces")) == 1


@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"{}", b"\x0a\x05abc"])
def test_what_is_no_request_is_refused_for_good(door: Door, body: bytes) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        door.call(body)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert door.call(b"") == b""


def test_a_request_that_is_too_large_is_refused(door: Door) -> None:
    request = spans()
    request.resource_spans[0].resource.attributes.add(
        key="large", value={"string_value": "x" * MESSAGE_BYTES_MAX}
    )
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        with grpc.insecure_channel(
            door.grpc_url.removeprefix("http://"), compression=compression
        ) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(EXPORT)(request.SerializeToString(), timeout=20)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert door.call(b"") == b""


def test_a_full_service_says_when_to_come_back(door: Door) -> None:
    admission = door.intake.admission
    with (
        admission.hold(admission.bytes_max - 10, "others"),
        pytest.raises(grpc.RpcError) as refused,
    ):
        door.call(spans().SerializeToString())
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    metadata = dict(refused.value.trailing_metadata())
    delay = RetryInfo()
    assert Status.FromString(metadata["grpc-status-details-bin"]).details[0].Unpack(delay)
    assert delay.retry_delay.ToMilliseconds() == 100
    assert RetryInfo.FromString(metadata["google.rpc.retryinfo-bin"]) == delay
    assert door.call(spans().SerializeToString()) == b""


def test_calls_without_a_message_hold_nobody_up_for_long(make_settings: MakeSettings) -> None:
    settings = make_settings(
        ingest__otlp_grpc_port=0, ingest__http_body_timeout_ms=400, wal__free_bytes_min=0
    )
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(30)
        yield from ()

    with (
        Intake(settings) as intake,
        OtlpGrpcServer(intake) as server,
        grpc.insecure_channel(server.url.removeprefix("http://")) as channel,
    ):
        silent = [channel.stream_unary(EXPORT).future(nothing()) for _ in range(THREADS + 8)]
        assert Door(intake, server.url).call(spans().SerializeToString()) == b""
        assert all(isinstance(call.exception(20), grpc.RpcError) for call in silent)
        never.set()


def test_many_empty_records_are_refused_before_they_are_parsed(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(
        ingest__otlp_grpc_port=0, ingest__memory_bytes_max=64 << 20, wal__free_bytes_min=0
    )
    request = ExportTraceServiceRequest()
    found = request.resource_spans.add().scope_spans.add().spans
    for _ in range(400_000):
        found.add()
    monkeypatch.setattr(telemetry, "read_message", None)
    with Intake(settings) as intake, OtlpGrpcServer(intake) as server:
        with pytest.raises(grpc.RpcError, match="split") as refused:
            Door(intake, server.url).call(request.SerializeToString())
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert intake.admission.held_bytes == 0


JSON_SPANS = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "5B8EFFF798038103D269B633813FC60C",
                            "spanId": "eee19b7ec3c1b174",
                            "name": "pay",
                            "kind": 2,
                            "startTimeUnixNano": "1544712660000000000",
                            "inventedLater": {"x": 1},
                            "attributes": [{"key": "n", "value": {"intValue": "9007199254740993"}}],
                        }
                    ]
                }
            ],
        }
    ]
}


def test_json_has_ids_in_digits_and_large_numbers_in_text(door: Door) -> None:
    answer = door.post(json.dumps(JSON_SPANS).encode(), JSON, x_calve_dataset="web")
    assert (answer.status_code, answer.headers["content-type"], answer.json()) == (200, JSON, {})
    (row,) = door.rows("default.web.traces")
    assert row["trace_id"] == "5b8efff798038103d269b633813fc60c"
    assert row["span_id"] == "eee19b7ec3c1b174"
    assert (row["kind"], row["service_name"]) == ("SERVER", "shop")
    assert row["attributes"] == [("n", "9007199254740993")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"resourceSpans": 3}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}',
        b"[" * 100_000,
        b'{"resourceSpans": ' + b'[{"resource": ' * 5_000,
    ],
)
def test_json_that_is_no_request_is_refused_as_json(door: Door, body: bytes) -> None:
    answer = door.post(body, JSON)
    assert answer.status_code == 400
    assert answer.json()["code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "JSON" in answer.json()["message"]


def test_rejected_records_are_counted_over_http(door: Door) -> None:
    request = spans(2)
    request.resource_spans[0].scope_spans[0].spans[1].ClearField("span_id")
    answer = door.post(gzip.compress(request.SerializeToString()), Content_Encoding="gzip")
    assert (answer.status_code, answer.headers["content-type"]) == (200, PROTOBUF)
    told = ExportTraceServiceResponse.FromString(answer.content)
    assert told.partial_success.rejected_spans == 1


def test_http_refuses_with_the_status_that_the_protocol_says(door: Door) -> None:
    body = spans().SerializeToString()
    assert door.post(b"\xff\xff").status_code == 400
    assert door.post(body, "text/plain").status_code == 415
    assert door.post(body, path="/v1/profiles").status_code == 404
    assert door.post(body, x_calve_dataset="No!").status_code == 400
    assert door.post(body, Content_Encoding="gzip").status_code == 400
    refused = door.post(b"\xff\xff")
    status = Status.FromString(refused.content)
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    admission = door.intake.admission
    with admission.hold(admission.bytes_max - 10, "others"):
        full = door.post(body)
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")
    assert door.post(body).status_code == 200
    assert admission.held_bytes == 0


def test_every_door_speaks_tls(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # they would win over the exporter's own
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.server_files()
    settings = make_settings(
        ingest__tls_cert=str(certificate),
        ingest__tls_key=str(key),
        **{f"ingest__{port}": 0 for port in PORTS},
    )
    provider = TracerProvider(resource=RESOURCE)
    with Lake(settings) as lake, lake.serve(otlp=True) as serving:
        at = serving.addresses
        credentials = grpc.ssl_channel_credentials(authority.pem.read_bytes())
        over_grpc = GrpcSpans(at.otlp_grpc, credentials=credentials)
        over_http = HttpSpans(f"{at.otlp_http}/v1/traces", certificate_file=str(authority.pem))
        for exporter in (over_grpc, over_http):
            provider.add_span_processor(SimpleSpanProcessor(exporter))
        provider.get_tracer("t").start_span("safe").end()
        provider.shutdown()
        assert [row["name"] for row in lake.sql("select name from traces")] == ["safe"] * 2


def test_telemetry_without_its_part_is_one_clear_error(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_part("otlp")
    monkeypatch.delitem(sys.modules, "calve.ingest.otlp.grpc_server")
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert not has_part("otlp")
    settings = make_settings(**{f"ingest__{port}": 0 for port in PORTS})
    with Lake(settings) as lake:
        with pytest.raises(MissingPart, match="otlp"):
            lake.serve(otlp=True)
        with lake.serve() as serving:
            assert serving.addresses.otlp_grpc is None
