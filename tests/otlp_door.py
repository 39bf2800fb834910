"""The doors of OTLP on free ports, and what came in there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from calve.ingest import Intake
from calve.ingest.http.otlp import OtlpHttpServer
from calve.ingest.otlp.grpc_server import OtlpGrpcServer
from calve.model import TableName
from calve.wal import Kind
from tests.conftest import MakeSettings

SERVICES = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}
EXPORT = f"/{SERVICES['traces']}/Export"
PROTOBUF = "application/x-protobuf"
JSON = "application/json"


class Door:
    """Where telemetry goes in, and what came in there."""

    def __init__(self, intake: Intake, grpc_url: str, http_url: str = "") -> None:
        self.intake = intake
        self.grpc_url = grpc_url
        self.http_url = http_url

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for batch in self._batches(table, Kind.ROWS) for row in batch.to_pylist()]

    def rejected(self, table: str) -> list[dict[str, Any]]:
        return [row for batch in self._batches(table, Kind.REJECTED) for row in batch.to_pylist()]

    def _batches(self, table: str, kind: Kind) -> Iterator[Any]:
        for entry in self.intake.read(TableName.parse(table), 0):
            if entry.kind == kind:
                yield entry.batch

    def post(
        self, body: bytes, kind: str = PROTOBUF, path: str = "/v1/traces", **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            f"{self.http_url}{path}", content=body, headers={"Content-Type": kind, **named}
        )

    def call(
        self,
        body: bytes,
        metadata: tuple[tuple[str, str], ...] = (),
        *,
        signal: str = "traces",
        compression: grpc.Compression = grpc.Compression.NoCompression,
    ) -> bytes:
        """An export in bytes that no exporter would send."""
        with grpc.insecure_channel(self.grpc_url.removeprefix("http://")) as channel:
            export = channel.unary_unary(f"/{SERVICES[signal]}/Export")
            answer: bytes = export(body, timeout=20, metadata=metadata, compression=compression)
            return answer


@contextmanager
def opened_door(make_settings: MakeSettings, **settings: Any) -> Iterator[Door]:
    given = {"ingest__otlp_grpc_port": 0, "ingest__otlp_http_port": 0, "wal__free_bytes_min": 0}
    with (
        Intake(make_settings(**given | settings)) as intake,
        OtlpGrpcServer(intake) as over_grpc,
        OtlpHttpServer(intake) as over_http,
    ):
        yield Door(intake, over_grpc.url, over_http.url)


def spans(count: int = 1) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    found = request.resource_spans.add().scope_spans.add().spans
    for number in range(count):
        found.add(trace_id=b"t" * 16, span_id=(number + 1).to_bytes(8, "big"), name=f"n{number}")
    return request
