"""Telemetry in its tables: all seven, with a value in every field, asked by every engine."""

from __future__ import annotations

from typing import Any

from calve.ingest.otlp.messages import REQUESTS
from calve.ingest.otlp.tables import TABLES
from calve.ingest.otlp.telemetry import Telemetry
from calve.model import TableName
from calve.wal import Kind
from tests.fakes.pipelines import Site
from tests.integration.spark_site import SparkSite
from tests.telemetry import CHOICES, Filler, a_request


def send(site: Site, signal: str, request: Any) -> None:
    body = request.SerializeToString()
    with site.intake.admission.hold(len(body)) as admitted:
        Telemetry(site.intake).take(signal, body, dataset=None, admitted=admitted)


def sent_rows(site: Site, table: str) -> list[dict[str, Any]]:
    entries = site.intake.read(TableName.parse(table), 0)
    batches = [each.batch for each in entries if each.kind == Kind.ROWS and each.batch is not None]
    return [row for batch in batches for row in batch.to_pylist()]


def write_all(site: Site) -> None:
    """Have the pipeline bring everything to the tables."""
    topics = [TableName.parse(name) for name in TABLES]
    for name in topics:
        site.intake.request_flush(name)
    pipeline = site.pipeline()
    wanted = sum(site.intake.offsets(name).durable for name in topics)
    assert sum(pipeline.run_cycle().rows for _ in range(3)) == wanted


def test_every_table_has_what_was_sent_for_pyiceberg_duckdb_and_spark(both: SparkSite) -> None:
    for signal, kind in REQUESTS.items():
        for choice in range(CHOICES if signal == "metrics" else 1):
            request = kind()
            Filler(choice).fill(request)
            send(both.site, signal, request)
        send(both.site, signal, a_request(signal)[0])  # and almost nothing in a record
    write_all(both.site)
    for name in TABLES:
        expected = sent_rows(both.site, name)
        assert expected
        assert both.site.rows(name) == expected
        assert len(both.lake.sql(f"select * from {name}", fresh=False)) == len(expected)
        assert len(both.sql(f"select * from {name}")) == len(expected)
    first = next(row for row in sent_rows(both.site, "traces") if row["attributes"])
    (key, text), *_ = first["attributes"]
    asked = f"select span_id, attributes['{key}'], events[%d].name from traces where trace_id = '{first['trace_id']}'"
    wanted = (first["span_id"], text, first["events"][0]["name"])
    in_duckdb = both.lake.sql(asked % 1, fresh=False)
    assert [tuple(row.values()) for row in in_duckdb] == [wanted]
    assert [tuple(row) for row in both.sql(asked % 0)] == [wanted]
