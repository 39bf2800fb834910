"""The questions that the guide shows, asked of telemetry that has just come in."""

from __future__ import annotations

import re
import time
from typing import Any

from calve.ingest.otlp.messages import REQUESTS
from calve.ingest.otlp.telemetry import Telemetry
from calve.lake import Lake
from tests.pages import DOCS

TRACE = bytes.fromhex("5b8efff798038103d269b633813fc60c")
SHOP: dict[str, Any] = {"attributes": [{"key": "service.name", "value": {"string_value": "shop"}}]}
SECOND = 1_000_000_000


def send(lake: Lake, signal: str, **content: Any) -> None:
    body = REQUESTS[signal](**content).SerializeToString()
    with lake.intake.admission.hold(len(body)) as admitted:
        Telemetry(lake.intake).take(signal, body, dataset=None, admitted=admitted)


def fill(lake: Lake, now: int) -> None:
    spans = [
        {
            "trace_id": TRACE,
            "span_id": bytes([7, number] * 4),
            "name": f"step {number % 2}",
            "start_time_unix_nano": now - 60 * SECOND + number,
            "end_time_unix_nano": now - 60 * SECOND + number + (number % 2 + 1) * 1_000_000,
            "status": {"code": 2 if number == 1 else 0},
        }
        for number in range(4)
    ]
    resource_spans = {"resource": SHOP, "scope_spans": [{"spans": spans}]}
    send(lake, "traces", resource_spans=[resource_spans])
    record = {
        "trace_id": TRACE,
        "time_unix_nano": now,
        "severity_number": 13,
        "body": {"string_value": "card DECLINED"},
    }
    resource_logs = {"resource": SHOP, "scope_logs": [{"log_records": [record]}]}
    send(lake, "logs", resource_logs=[resource_logs])
    counted = [(0, 10), (10, 30), (20, 5)]  # it began again before the last
    points = [{"time_unix_nano": now + at * SECOND, "as_int": value} for at, value in counted]
    buckets = {"count": 20, "bucket_counts": [10, 9, 1, 0], "explicit_bounds": [5, 10, 25]}
    metrics = [
        {"name": "orders", "sum": {"data_points": points, "aggregation_temporality": 2}},
        {"name": "latency", "histogram": {"data_points": [buckets]}},
    ]
    resource_metrics = {"resource": SHOP, "scope_metrics": [{"metrics": metrics}]}
    send(lake, "metrics", resource_metrics=[resource_metrics])


def test_the_questions_of_the_guide_are_answered(lake: Lake) -> None:
    page = (DOCS / "guides" / "telemetry.md").read_text()
    slowest, trace, search, rate, quantile = re.findall(r"```sql\n(.*?);\n```", page, re.DOTALL)
    fill(lake, time.time_ns())
    first, second = lake.sql(slowest)
    assert (first["name"], first["p99_ms"], first["spans"], first["errors"]) == (
        "step 1",
        2,
        2,
        0.5,
    )
    assert (second["name"], second["errors"]) == ("step 0", 0)
    assert [row["what"] for row in lake.sql(trace)] == ["span"] * 4 + ["log"]
    assert [row["body"] for row in lake.sql(search)] == ["card DECLINED"]
    assert [row["per_second"] for row in lake.sql(rate)] == [2.0, 0.5]
    assert [row["p95_at_most"] for row in lake.sql(quantile)] == [10.0]
