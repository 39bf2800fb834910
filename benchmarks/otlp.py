"""OpenTelemetry over gRPC, durable: records per second, the CPU that they take, decoding alone.

    python -m benchmarks.otlp            5 rounds of 3 seconds for each signal
    python -m benchmarks.otlp --quick    1 round of 1 second

The service runs in a process of its own. The requests are what the OpenTelemetry SDK's exporters
send, 512 records in each, from four senders that wait for each answer; a record counts when its
request was answered. The figures are printed, not judged.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from calve.ingest import Intake
from calve.ingest.otlp.decoding import decode, read_message
from calve.ingest.otlp.grpc_server import OtlpGrpcServer
from calve.settings import load_settings

RECORDS = 512
SENDERS = 4
RESOURCE = Resource.create(
    {"service.name": "checkout", "service.version": "1.2.3", "host.name": "node-17"}
)
METHODS = {
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}


def some_spans() -> bytes:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
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
    content: bytes = encode_spans(exporter.get_finished_spans()).SerializeToString()
    return content


def some_logs() -> bytes:
    exporter: Any = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(resource=RESOURCE)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
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
    content: bytes = encode_logs(exporter.get_finished_logs()).SerializeToString()
    return content


def some_points() -> bytes:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], resource=RESOURCE).get_meter("system")
    for number in range(RECORDS // 32):
        gauge = meter.create_gauge(f"system.cpu.utilization.{number}", unit="1")
        for cpu in range(32):
            gauge.set(cpu / 32, {"cpu.logical_number": cpu, "cpu.mode": "idle"})
    points = reader.get_metrics_data()
    assert points is not None
    content: bytes = encode_metrics(points).SerializeToString()
    return content


def serve(directory: Path) -> None:
    """The child: serves until its standard input ends."""
    flags = {"data": str(directory), "ingest.otlp_grpc_port": 0, "wal.free_bytes_min": 0}
    settings = load_settings(flags=flags, environ={}).settings
    with Intake(settings) as intake, OtlpGrpcServer(intake) as server:
        print(server.url, flush=True)
        sys.stdin.read()


@contextmanager
def service(directory: Path) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "benchmarks.otlp", "--serve", str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip(), psutil.Process(child.pid)
        finally:
            child.stdin.close()
            child.wait(30)


def sent(url: str, method: str, body: bytes, seconds: float) -> int:
    """How many requests were answered."""
    until = time.perf_counter() + seconds
    done = [0] * SENDERS

    def send(place: int) -> None:
        with grpc.insecure_channel(url.removeprefix("http://")) as channel:
            export: Any = channel.unary_unary(method)
            while time.perf_counter() < until:
                export(body, timeout=60)
                done[place] += 1

    threads = [threading.Thread(target=send, args=(place,)) for place in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done)


def decoding_alone(signal: str, body: bytes, seconds: float) -> float:
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() - begin < seconds:
        decode(signal, read_message(signal, body))
        count += RECORDS
    return count / (time.perf_counter() - begin)


def measure(signal: str, body: bytes, rounds: int, seconds: float) -> None:
    rates, cpu = [], []
    with tempfile.TemporaryDirectory() as directory, service(Path(directory)) as (url, process):
        sent(url, METHODS[signal], body, 0.5)
        for _ in range(rounds):
            before = sum(process.cpu_times()[:2])
            begin = time.perf_counter()
            records = RECORDS * sent(url, METHODS[signal], body, seconds)
            rates.append(records / (time.perf_counter() - begin))
            cpu.append((sum(process.cpu_times()[:2]) - before) / records * 1e6)
    alone = decoding_alone(signal, body, seconds)
    packed = len(gzip.compress(body)) / RECORDS
    print(
        f"{signal:8} {statistics.median(rates):9,.0f} records/s   decoding alone {alone:9,.0f}/s   "
        f"{statistics.median(cpu):6.1f} s of CPU per million   "
        f"{len(body) / RECORDS:4.0f} bytes each, {packed:.0f} with gzip"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", type=Path)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    rounds, seconds = (1, 1.0) if arguments.quick else (5, 3.0)
    makers: dict[str, Callable[[], bytes]] = {
        "logs": some_logs,
        "traces": some_spans,
        "metrics": some_points,
    }
    for signal, make in makers.items():
        measure(signal, make(), rounds, seconds)


if __name__ == "__main__":
    main()
