"""Telemetry in its tables: all seven, with a value in every field, asked by every engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow.parquet as pq

from benchmarks.samples.shop import Shop, taken
from calve.access import Caller
from calve.ingest.otlp.messages import REQUESTS
from calve.ingest.otlp.tables import TABLES
from calve.ingest.otlp.telemetry import Telemetry
from calve.model import TableName
from calve.tables.bloom import may_hold, read_filters
from calve.wal import Kind
from tests.fakes.pipelines import Site
from tests.integration.spark_site import SparkSite
from tests.telemetry import CHOICES, Filler, a_request


def send(site: Site, signal: str, request: Any) -> None:
    send_body(site, signal, request.SerializeToString())


def send_body(site: Site, signal: str, body: bytes) -> None:
    with site.intake.admission.hold(len(body)) as admitted:
        Telemetry(site.intake).take(
            signal, body, caller=Caller.of_host(), dataset=None, admitted=admitted
        )


def sent_rows(site: Site, table: str) -> list[dict[str, Any]]:
    entries = site.intake.read(TableName.parse(table), 0)
    batches = [each.batch for each in entries if each.kind == Kind.ROWS and each.batch is not None]
    return [row for batch in batches for row in batch.to_pylist()]


def write_all(site: Site, tables: Iterable[str] = tuple(TABLES)) -> None:
    """Have the pipeline bring everything to the tables."""
    topics = [TableName.parse(name) for name in tables]
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


PRIMITIVE = {
    "traces": "count(*), sum(duration_nano), max(start_time_unix_nano), min(end_time_unix_nano), "
    "max(span_id), min(parent_span_id), count(parent_span_id), count(distinct trace_id), "
    "min(name), sum(_calve_offset)",
    "logs": "count(*), sum(time_unix_nano - observed_time_unix_nano), max(body), min(span_id), "
    "count(distinct trace_id), max(severity_number), sum(_calve_offset)",
    "metrics_gauge": "count(*), max(value), min(value), sum(value_int), max(time_unix_nano), "
    "sum(_calve_offset)",
}


def test_spark_reads_changes_and_compacts_what_every_encoding_holds(both: SparkSite) -> None:
    shop = {"traces": Shop().traces(), "logs": Shop().logs(), "metrics": Shop().gauges()}
    for signal, requests in shop.items():
        for body in taken(requests, 1_000):
            send_body(both.site, signal, body)
    write_all(both.site, PRIMITIVE)
    for name, asked in PRIMITIVE.items():
        (file,) = both.site.table(name).scan().plan_files()
        metadata = pq.read_metadata(file.file.file_path.removeprefix("file://")).row_group(0)
        used = {each for n in range(metadata.num_columns) for each in metadata.column(n).encodings}
        assert used & {"DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"}
        require_same(both, name, asked)
        change_by_spark(both, name)
        require_same(both, name, asked)
        (done,) = both.sql(
            f"CALL system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
        )
        assert done["rewritten_data_files_count"] >= 1
        require_same(both, name, asked)
        if name != "metrics_gauge":
            require_filters(both.site, name)


def require_same(both: SparkSite, table: str, asked: str) -> None:
    """Spark and DuckDB agree on sums of columns without maps or lists, and on everything."""
    for filtered in ("", " where _calve_offset between 100 and 700"):
        query = f"select {asked} from {table}{filtered}"
        (by_spark,) = both.sql(query)
        (by_duckdb,) = both.lake.sql(query, fresh=False)
        assert tuple(by_spark) == tuple(by_duckdb.values())
    rows = both.site.rows(table)
    by_spark = both.sql(f"select attributes, service_name from {table} order by _calve_offset")
    assert [(sorted(each[0].items()), each[1]) for each in by_spark] == [
        (sorted(each["attributes"]), each["service_name"]) for each in rows
    ]


def require_filters(site: Site, name: str) -> None:
    """What Spark has compacted has filters, too, and they say the same."""
    table = site.table(name)
    (task,) = table.scan().plan_files()
    path = task.file.file_path.removeprefix("file:")
    filters = read_filters(table.io, path, table.schema().find_field("trace_id").field_id)
    present = {row["trace_id"] for row in site.rows(name)}
    assert filters
    assert all(may_hold(filters, frozenset({each})) for each in present)
    assert sum(may_hold(filters, frozenset({f"absent {n}"})) for n in range(200)) < 20


def change_by_spark(both: SparkSite, table: str) -> None:
    both.sql(f"UPDATE {table} SET service_name = 'updated' WHERE _calve_offset = 5")
    both.sql(
        f"MERGE INTO {table} t USING (SELECT stack(2, 6, 7) AS n) s ON t._calve_offset = s.n "
        "WHEN MATCHED AND s.n = 6 THEN UPDATE SET service_name = 'merged' "
        "WHEN MATCHED THEN DELETE"
    )
    both.sql(f"DELETE FROM {table} WHERE _calve_offset = 8")
