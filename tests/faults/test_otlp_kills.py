"""The OpenTelemetry SDK sends while ingest is killed: what it was told is stored is in the log.

Each request is in the log as a whole or not at all, in every table that it touches if it was
acknowledged, and at most as often as its exporter sent it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
import requests
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from calve.model import TableName
from calve.service.announcement import Addresses
from calve.wal import Log, LogOptions, LogReader
from tests.faults.test_ingest_kills import running

BATCH = 20
SPANS = ("traces",)
METRICS = ("metrics_sum", "metrics_gauge", "metrics_histogram")


class Exporter(Protocol):
    """One of the SDK's, which counts how often it sends."""

    @property
    def tries(self) -> int: ...
    def export(self, data: Any, /) -> Any: ...
    def shutdown(self) -> None: ...


class CountingSpans(GrpcSpans):
    tries = 0

    def _translate_data(self, data: Any) -> Any:  # called before each try
        self.tries += 1
        return super()._translate_data(data)


class CountingMetrics(OTLPMetricExporter):
    tries = 0

    def _translate_data(self, data: Any) -> Any:
        self.tries += 1
        return super()._translate_data(data)


class CountingHttpSpans(HttpSpans):
    def __init__(self, endpoint: str) -> None:
        self._counting = CountingSession()
        super().__init__(endpoint, session=self._counting)

    @property
    def tries(self) -> int:
        return self._counting.tries


class CountingSession(requests.Session):
    tries = 0

    def request(self, *given: Any, **named: Any) -> requests.Response:
        self.tries += 1
        return super().request(*given, **named)


class Sent(NamedTuple):
    """A request: the names in it, whether it was acknowledged, and how often it was sent."""

    tables: tuple[str, ...]
    names: list[str]
    is_acknowledged: bool
    tries: int


class Sender(threading.Thread):
    """Sends one request after the other, and notes what became of each."""

    def __init__(self, number: int, exporter: Exporter) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._exporter = exporter
        self._ending = threading.Event()
        self._made = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._made))
        self._tracer = provider.get_tracer("torment")
        self.sent: list[Sent] = []

    def run(self) -> None:
        is_metrics = isinstance(self._exporter, OTLPMetricExporter)
        while not self._ending.is_set():
            names = [f"{self._number} {len(self.sent)} {place}" for place in range(BATCH)]
            data = _points(names) if is_metrics else self._spans(names)
            before = self._exporter.tries
            is_stored = self._exporter.export(data).name == "SUCCESS"
            tables = METRICS if is_metrics else SPANS
            self.sent.append(Sent(tables, names, is_stored, self._exporter.tries - before))

    def _spans(self, names: list[str]) -> Any:
        self._made.clear()
        for name in names:
            self._tracer.start_span(name).end()
        return self._made.get_finished_spans()

    def end(self) -> None:
        self._ending.set()
        self.join(60)
        assert not self.is_alive()
        self._exporter.shutdown()


def _points(names: list[str]) -> Any:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    meter = provider.get_meter("torment")
    counter, gauge = meter.create_counter("counter"), meter.create_gauge("gauge")
    histogram = meter.create_histogram("histogram")
    for name in names:
        counter.add(1, {"name": name})
        gauge.set(1, {"name": name})
        histogram.record(1, {"name": name})
    return reader.get_metrics_data()


def exporters(at: Addresses) -> list[Exporter]:
    return [
        CountingSpans(at.otlp_grpc, insecure=True),
        CountingSpans(at.otlp_grpc, insecure=True),
        CountingHttpSpans(f"{at.otlp_http}/v1/traces"),
        CountingMetrics(at.otlp_grpc, insecure=True),
    ]


def in_log(wal: Path) -> dict[str, Counter[str]]:
    """How often each name is in each table's log."""
    Log(wal, LogOptions(free_bytes_min=0)).close()  # which finds what nobody had synced
    found: dict[str, Counter[str]] = {}
    with LogReader(wal) as reader:
        for table in (*SPANS, *METRICS):
            found[table] = Counter()
            for entry in reader.read(reader.stream(TableName.parse(table), 0), 0):
                assert entry.batch is not None
                if table in SPANS:
                    found[table].update(entry.batch.column("name").to_pylist())
                else:
                    maps = entry.batch.column("attributes").to_pylist()
                    found[table].update(dict(each)["name"] for each in maps)
    return found


class Figures(NamedTuple):
    requests: int
    acknowledged: int
    sent_again: int
    doubled: int
    records: int  # that were acknowledged


def held_against(sent: list[Sent], stored: dict[str, Counter[str]]) -> Figures:
    """What was told against what is there; fails where the two do not agree."""
    doubled = 0
    for request in sent:
        for table in request.tables:
            copies = {stored[table].pop(name, 0) for name in request.names}
            assert len(copies) == 1, "a request is there in part"
            (count,) = copies
            assert count or not request.is_acknowledged, "lost"
            assert count <= request.tries, "doubled although nobody sent it again"
            doubled += count > 1
    assert not any(stored.values()), "what nobody sent"
    told = [each for each in sent if each.is_acknowledged]
    return Figures(
        requests=len(sent),
        acknowledged=len(told),
        sent_again=sum(each.tries > 1 for each in sent),
        doubled=doubled,
        records=sum(len(each.names) * len(each.tables) for each in told),
    )


def torment(tmp_path: Path, *, rounds: int) -> Figures:
    """Kill ingest so many times."""
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
    figures = held_against(
        [each for sender in senders for each in sender.sent], in_log(tmp_path / "wal-0")
    )
    print(f"\n{rounds} kills: {figures}")
    assert all(any(each.is_acknowledged for each in sender.sent) for sender in senders)
    return figures


def test_what_the_sdk_was_told_is_stored_survives_kills(tmp_path: Path) -> None:
    assert torment(tmp_path, rounds=1).acknowledged > 0


@pytest.mark.torture
def test_what_the_sdk_was_told_is_stored_survives_many_kills(tmp_path: Path) -> None:
    figures = torment(tmp_path, rounds=50)
    assert figures.sent_again > 0, "no kill met a request"
