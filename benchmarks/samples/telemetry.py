"""Requests of telemetry, recorded from the exporters of the OpenTelemetry SDK: what they send."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

RECORDS = 512  # what the SDK's processors send at once
METHODS = {
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_RESOURCE = Resource.create(
    {"service.name": "checkout", "service.version": "1.2.3", "host.name": "node-17"}
)


def recorded_requests() -> dict[str, bytes]:
    """A request of each signal, of as many records."""
    found: dict[str, bytes] = {}
    with _recorder(found) as url:
        _send_spans(url)
        _send_logs(url)
        _send_points(url)
    return found


@contextmanager
def _recorder(found: dict[str, bytes]) -> Iterator[str]:
    def keep(signal: str, body: bytes, _: Any) -> bytes:
        found.setdefault(signal, body)
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    for signal, method in METHODS.items():
        _, service, name = method.split("/")
        handler = grpc.unary_unary_rpc_method_handler(partial(keep, signal))
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {name: handler})]
        )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(1).wait()


def _send_spans(url: str) -> None:
    provider = TracerProvider(resource=_RESOURCE)
    exporter = OTLPSpanExporter(url, insecure=True)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
    tracer = provider.get_tracer("opentelemetry.instrumentation.flask", "0.66")
    for number in range(RECORDS):
        attributes: dict[str, Any] = {
            "http.request.method": "GET",
            "http.route": "/cart/{id}",
            "url.path": f"/cart/{number}",
            "http.response.status_code": 200,
            "server.address": "shop.example.com",
            "server.port": 443,
            "client.address": f"10.0.{number % 7}.{number % 199}",
            "network.protocol.version": "1.1",
        }
        with tracer.start_as_current_span("GET /cart/{id}", attributes=attributes) as span:
            span.add_event("cache.miss", {"cache.key": f"cart:{number}"})
    provider.shutdown()


def _send_logs(url: str) -> None:
    provider = LoggerProvider(resource=_RESOURCE)
    exporter = OTLPLogExporter(url, insecure=True)
    provider.add_log_record_processor(
        BatchLogRecordProcessor(exporter, schedule_delay_millis=60_000)
    )
    logger = provider.get_logger("checkout.payments")
    for number in range(RECORDS):
        logger.emit(
            timestamp=time.time_ns(),
            body=f"payment {number} of customer {number * 7 % 1000} accepted",
            severity_text="INFO",
            attributes={
                "code.function.name": "pay",
                "code.line.number": number % 400,
                "payment.amount": number * 0.01,
                "thread.name": "worker-3",
            },
        )
    provider.shutdown()


def _send_points(url: str) -> None:
    exporter = OTLPMetricExporter(url, insecure=True)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    provider = MeterProvider([reader], resource=_RESOURCE)
    meter = provider.get_meter("system")
    for number in range(RECORDS // 32):
        gauge = meter.create_gauge(f"system.cpu.utilization.{number}", unit="1")
        for cpu in range(32):
            gauge.set(cpu / 32, {"cpu.logical_number": cpu, "cpu.mode": "idle"})
    provider.shutdown()
