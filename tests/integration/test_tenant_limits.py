"""Limits of tenants at the doors: told as each protocol wants it, nothing lost, others unaffected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import httpx
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from pyarrow import flight

from calve import Client
from calve.errors import Overloaded
from calve.ingest.flight import FlightServer
from calve.ingest.otlp.grpc_server import OtlpGrpcServer
from tests.conftest import MakeSettings
from tests.integration.flight_calls import refused, sent
from tests.integration.serving import Serving, serving
from tests.services import wait_until

ROWS_OF_ARROW = pa.record_batch({"id": list(range(100))})
ROWS = b'{"id": 1}\n' * 10
FREE = {f"ingest__{name}_port": 0 for name in ("http", "flight", "otlp_grpc", "otlp_http")}
SLOW = '{"acme.rows_per_second_max": 1}'


@contextmanager
def served(make_settings: MakeSettings, **flags: object) -> Iterator[Serving]:
    with serving(make_settings(**FREE, **flags)) as service:
        yield service


def test_http_answers_429_with_the_delay_and_other_tenants_go_on(
    make_settings: MakeSettings,
) -> None:
    with served(make_settings, tenants__limits=SLOW) as service:
        assert service.send("acme.shop.orders", ROWS).status_code == 200
        late = service.send("acme.shop.orders", ROWS)
        assert late.status_code == 429
        assert int(late.headers["Retry-After"]) in {9, 10}
        problem = late.json()
        assert 8_000 < problem["retry_after_ms"] <= 10_000
        assert "tenants.rows_per_second_max" in problem["detail"]
        for _ in range(5):
            assert service.send("other.shop.orders", ROWS).status_code == 200
        assert len(service.rows("acme.shop.orders")) == 10
        assert len(service.rows("other.shop.orders")) == 50


def test_whoever_comes_again_when_told_loses_and_doubles_nothing(
    make_settings: MakeSettings,
) -> None:
    with (
        served(make_settings, tenants__rows_per_second_max=200) as service,
        FlightServer(service.intake) as server,
        Client(server.url) as client,
    ):
        sent = [client.produce("acme.shop.orders", [{"id": n}] * 20) for n in range(40)]
        client.flush("acme.shop.orders", 60)
        for each in sent:
            each.result(60)
        rows = [row["id"] for row in service.rows("acme.shop.orders")]
        assert sorted(rows) == sorted(n for n in range(40) for _ in range(20))


def test_flight_refuses_with_the_delay(make_settings: MakeSettings) -> None:
    many, few = ROWS_OF_ARROW.slice(0, 100), ROWS_OF_ARROW.slice(0, 1)
    with (
        served(make_settings, tenants__limits=SLOW) as service,
        FlightServer(service.intake) as server,
        flight.connect(server.url) as client,
    ):
        assert sent(client, "acme.shop.orders", many)["end"] == 100
        error = refused(lambda: sent(client, "acme.shop.orders", few))
        assert isinstance(error, Overloaded)
        assert int(error.context["retry_after_ms"]) > 90_000
        assert sent(client, "other.shop.orders", many)["end"] == 100
        assert len(service.rows("acme.shop.orders")) == 100


def _logs(count: int) -> bytes:
    records = [LogRecord(body=AnyValue(string_value=str(n))) for n in range(count)]
    scope = ScopeLogs(log_records=records)
    request = ExportLogsServiceRequest(resource_logs=[ResourceLogs(scope_logs=[scope])])
    content: bytes = request.SerializeToString()
    return content


def test_otlp_is_taken_whole_or_refused_whole(make_settings: MakeSettings) -> None:
    with (
        served(make_settings, tenants__rows_per_second_max=1) as service,
        OtlpGrpcServer(service.intake) as otlp,
        grpc.insecure_channel(otlp.url.removeprefix("http://")) as channel,
    ):
        export = channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")
        export(_logs(50), timeout=30)
        with pytest.raises(grpc.RpcError) as late:
            export(_logs(50), timeout=30)
        assert late.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "rows a second" in late.value.details()
        details = dict(late.value.trailing_metadata())
        assert "grpc-status-details-bin" in details  # which holds the delay
        assert len(service.rows("logs")) == 50


def test_the_log_of_a_tenant_is_bounded_also_after_a_restart(make_settings: MakeSettings) -> None:
    limits = '{"acme.log_bytes_max": 20000}'
    body = json.dumps({"id": "x" * 5_000}).encode()
    with served(make_settings, tenants__limits=limits) as service:
        codes = [service.send("acme.shop.orders", body).status_code for _ in range(6)]
        assert codes[:3] == [200, 200, 200]
        assert codes[-1] == 429
        assert service.send("other.shop.orders", body).status_code == 200
    with served(make_settings, tenants__limits=limits) as service:
        codes = [service.send("acme.shop.orders", body).status_code for _ in range(3)]
        assert codes[-1] == 429
        assert service.send("other.shop.orders", body).status_code == 200


def test_streams_and_subscriptions_of_a_tenant_are_bounded(make_settings: MakeSettings) -> None:
    with served(make_settings, tenants__subscriptions_max=1) as service:
        for topic in ("acme.shop.orders", "other.shop.orders"):
            service.send(topic, ROWS)

        def stream(topic: str, name: str) -> int:
            path = f"/v1/topics/{topic}/subscriptions/{name}/stream?follow=false"
            with service.client.stream("GET", path) as answer:
                answer.read()
                return answer.status_code

        def reads(topic: str, name: str) -> None:
            """Sooner or later: a stream before it is let go of a moment after its end."""
            wait_until(lambda: stream(topic, name) == 200)

        reads("acme.shop.orders", "one")
        for _ in range(20):
            assert stream("acme.shop.orders", "two") == 429  # there may be one
        reads("acme.shop.orders", "one")
        reads("other.shop.orders", "one")
        with _opened(service, "/v1/topics/acme.shop.orders/stream") as first:
            lines = first.iter_lines()  # which ends the stream when it goes
            next(lines)
            for _ in range(20):
                assert stream("acme.shop.orders", "one") == 429  # one is being read
            reads("other.shop.orders", "one")
        reads("acme.shop.orders", "one")


@contextmanager
def _opened(service: Serving, path: str) -> Iterator[httpx.Response]:
    while True:
        with service.client.stream("GET", path) as answer:
            if answer.status_code == 200:
                yield answer
                return


def test_queries_of_a_tenant_are_bounded(make_settings: MakeSettings) -> None:
    with served(make_settings, tenants__limits='{"acme.queries_max": 1}') as service:
        for topic in ("acme.shop.orders", "other.shop.orders"):
            service.send(topic, ROWS)
        limits = service.intake.limits
        assert limits is not None

        def ask(tenant: str) -> httpx.Response:
            body = {"sql": f"select count(*) from {tenant}.shop.orders", "tenant": tenant}
            return service.client.post("/v1/query", json=body)

        assert ask("acme").status_code == 200
        with limits.query("acme"):
            assert ask("acme").status_code == 429
            assert ask("other").status_code == 200
        assert ask("acme").status_code == 200
