"""The OpenTelemetry SDK sends while ingest is killed: what it was told is stored is in the log."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from calve.model import TableName
from calve.service.announcement import Addresses
from calve.wal import Log, LogOptions, LogReader
from tests.faults.test_ingest_kills import running

BATCH = 20
TRACES = TableName.parse("traces")


class Sender(threading.Thread):
    """Sends batches of spans one after the other, and notes those that were acknowledged."""

    def __init__(self, number: int, exporter: SpanExporter) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._exporter = exporter
        self._ending = threading.Event()
        self._made = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._made))
        self._tracer = provider.get_tracer("torment")
        self.sent = 0
        self.acknowledged: list[str] = []

    def run(self) -> None:
        while not self._ending.is_set():
            spans = self._spans()
            self.sent += 1
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                self.acknowledged += [span.name for span in spans]

    def _spans(self) -> tuple[ReadableSpan, ...]:
        self._made.clear()
        for place in range(BATCH):
            self._tracer.start_span(f"{self._number} {self.sent} {place}").end()
        return self._made.get_finished_spans()

    def end(self) -> None:
        self._ending.set()
        self.join(60)
        self._exporter.shutdown()


def exporters(at: Addresses) -> list[SpanExporter]:
    return [
        GrpcSpans(at.otlp_grpc, insecure=True),
        GrpcSpans(at.otlp_grpc, insecure=True),
        HttpSpans(f"{at.otlp_http}/v1/traces"),
    ]


def in_log(wal: Path) -> Counter[str]:
    Log(wal, LogOptions(free_bytes_min=0)).close()  # which finds what nobody had synced
    found: Counter[str] = Counter()
    with LogReader(wal) as reader:
        for entry in reader.read(reader.stream(TRACES, 0), 0):
            assert entry.batch is not None
            found.update(entry.batch.column("name").to_pylist())
    return found


def torment(tmp_path: Path, *, rounds: int) -> int:
    """Kill ingest so many times; how many spans were acknowledged."""
    moments = random.Random(12)
    with running(tmp_path / "lake") as service:
        made = exporters(service.supervisor.addresses)
        senders = [Sender(number, exporter) for number, exporter in enumerate(made)]
        for sender in senders:
            sender.start()
        for _ in range(rounds):
            time.sleep(moments.uniform(0.1, 0.5))  # the moment of death is the test
            service.kill()
        time.sleep(0.3)
        for sender in senders:
            sender.end()
    stored = in_log(tmp_path / "wal-0")
    told = [name for sender in senders for name in sender.acknowledged]
    assert not [name for name in told if name not in stored], "lost"
    repeats = sum(count - 1 for count in stored.values())
    assert repeats <= BATCH * len(senders) * rounds, "doubled without a retry"
    return len(told)


def test_what_the_sdk_was_told_is_stored_survives_kills(tmp_path: Path) -> None:
    assert torment(tmp_path, rounds=1) > 0


@pytest.mark.torture
def test_what_the_sdk_was_told_is_stored_survives_many_kills(tmp_path: Path) -> None:
    assert torment(tmp_path, rounds=50) > 0
