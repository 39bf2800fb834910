"""The main job end to end: rows sent to a service become an Iceberg table that others query.

    make demo

Everything happens in a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow as pa

import calve

ROWS = 100_000
COUNTRIES = ("de", "fr", "jp", "us")
QUESTION = "select country, count(*) orders, sum(cents) cents from orders group by country"
SLOW_SPANS = """
    select service_name, name, count(*) as spans, count_if(status_code = 'ERROR') as failed,
           quantile_cont(duration_nano, 0.99) / 1e6 as p99_ms
    from traces group by all order by p99_ms desc
"""
LAST_WARNING = """
    select logs.service_name, body, traces.attributes['shop.country'] as country
    from logs join traces using (trace_id, span_id)
    where severity_number >= 13 order by logs.time desc limit 1
"""
BY_HAND = [
    {"id": ROWS, "country": "de", "cents": 1250},
    {"id": "many", "country": "fr", "cents": 990},
    {"id": ROWS + 1, "country": "jp", "cents": 4500},
]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="calve-demo-") as directory:
        ports = {f"ingest.{name}_port": 0 for name in ("flight", "http", "otlp_grpc", "otlp_http")}
        flags = {"data": Path(directory, "lake"), **ports}
        settings = calve.load_settings(flags=flags).settings
        started = time.monotonic()
        with calve.open(settings) as lake, lake.serve(pipeline=True, otlp=True) as service:
            say(f"1. a lake in {settings.data}, with a service and Spark ({since(started)})")
            say(f"     Flight  {service.addresses.flight}")
            say(f"     HTTP    {service.addresses.http}")
            say(f"     OTLP    {service.addresses.otlp_grpc}\n")
            produce(service.addresses.flight)
            post(service.addresses.http)
            ask_at_once(service.addresses.flight)
            commit(lake)
            ask(lake)
            show_dead_letter(lake)
            verify(lake)
            subscribe(service.addresses.flight)
            observe(lake, service.addresses.otlp_grpc)
        say("temporary data removed")
    return 0


def produce(url: str) -> None:
    ids = range(ROWS)
    orders = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "country": [COUNTRIES[each % len(COUNTRIES)] for each in ids],
            "cents": pa.array([each % 10_000 for each in ids], pa.int64()),
        }
    )
    started = time.monotonic()
    with calve.Client(url) as client:
        sent = client.produce("orders", orders).result()
    say(f"2. {ROWS:,} orders sent over Flight are acknowledged ({since(started)}):")
    say(f"   they are in the log, synced to disk, at offsets {sent.first} to {sent.end:,}")


def post(url: str) -> None:
    request = Request(
        f"{url}/v1/topics/orders/rows?on_error=dead_letter",
        json.dumps(BY_HAND).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request) as response:
        answer = json.load(response)
    say(f"   {answer['rows']} more over HTTP; {answer['rejected']} that does not fit is set aside")


def ask_at_once(url: str) -> None:
    """Before anything is in a table: the log has the rows."""
    with calve.Client(url) as client:
        client.sql("select 1").to_arrow()
        started = time.monotonic()
        (found,) = client.sql("select count(*) as orders from orders")
        took_ms = (time.monotonic() - started) * 1000
    say(f"   SQL sees all {found['orders']:,} of them, {took_ms:.0f} ms later\n")
    if found["orders"] != ROWS + 2:
        raise defect("an acknowledged row is not visible in SQL")


def commit(lake: calve.Lake) -> None:
    started = time.monotonic()
    reached = lake.flush("orders")
    table = lake.catalog.load_table("orders")
    files = len(list(table.scan().plan_files()))
    say(f"3. Spark wrote them to the Iceberg table orders ({since(started)}):")
    say(f"   data files: {files}, up to offset {reached.committed:,}, in one commit\n")


def ask(lake: calve.Lake) -> None:
    by_duckdb = sorted(tuple(row.values()) for row in lake.sql(QUESTION))
    by_spark = sorted(tuple(row) for row in lake.spark().sql(QUESTION).collect())
    say("4. the same question to the same table:\n")
    say(f"   {'country':<10}{'DuckDB':>28}{'Spark SQL':>28}")
    for duckdb, spark in zip(by_duckdb, by_spark, strict=True):
        cells = (f"{count:,} orders {cents / 100:,.2f}" for _, count, cents in (duckdb, spark))
        say(f"   {duckdb[0]:<10}" + "".join(f"{cell:>28}" for cell in cells))
    say("")
    if by_duckdb != by_spark:
        raise defect("the answers differ")
    if sum(count for _, count, _ in by_duckdb) != ROWS + 2:
        raise defect("rows are missing or doubled")


def show_dead_letter(lake: calve.Lake) -> None:
    (letter,) = lake.dead_letters("orders").list().letters
    shown = lake.dead_letters("orders").show(letter.offset)
    say(f"5. the dead letter, at offset {letter.offset:,}: {letter.reason}")
    say(f"   {shown.text}\n")


def verify(lake: calve.Lake) -> None:
    found = lake.tables.verify_topic("orders")
    if not found.is_sound:
        raise defect("an offset is missing or there twice")
    total = found.rows + found.dead_letters
    say(f"6. verify: each of {total:,} offsets is in the table or set aside, once\n")


def subscribe(url: str) -> None:
    with calve.Client(url) as client, client.subscribe("orders", "billing") as billing:
        rows = 0
        while rows < ROWS + 2:
            batch = next(billing)
            rows += len(batch)
            billing.ack(batch)
        say(f"7. a subscriber has read all {rows:,} orders, from the table,")
        client.produce("orders", [{"id": ROWS + 2, "country": "us", "cents": 75}]).result()
        live = next(billing)
        billing.ack(live)
        (order,) = live.to_arrow().select(["id", "country", "cents"]).to_pylist()
        say(f"   waits for more, and gets what was just sent: {order}")
        say(f"   billing is {billing.lag} rows behind, and goes on there next time\n")
    if rows != ROWS + 2 or order["id"] != ROWS + 2:
        raise defect("the subscriber got other rows")


def observe(lake: calve.Lake, url: str | None) -> None:
    """A shop sends an hour of telemetry with the OpenTelemetry SDK, as to any collector."""
    shop = runpy.run_path(str(Path(__file__).with_name("telemetry.py")))
    orders = shop["send"](url)
    counts = {
        table: next(iter(lake.sql(f"select count(*) as n from {table}")))["n"]
        for table in ("traces", "logs", "metrics_sum", "metrics_histogram")
    }
    points = counts["metrics_sum"] + counts["metrics_histogram"]
    say(f"8. the OpenTelemetry SDK has sent an hour of a shop over OTLP: {counts['traces']} spans,")
    say(f"   {counts['logs']} log records, {points} points of metrics; SQL over their tables")
    for row in lake.sql(SLOW_SPANS):
        say(
            f"   {row['service_name']:9} {row['name']:15} {row['spans']} spans, "
            f"99 % within {row['p99_ms']:,.0f} ms, {row['failed']} failed"
        )
    (log,) = lake.sql(LAST_WARNING)
    say(f"   the last warning: {log['service_name']}, {log['body']!r}, in the checkout of")
    say(f"   a customer from {log['country']}\n")
    if (counts["traces"], counts["logs"], points) != (2 * orders, orders, 180):
        raise defect("telemetry is missing or doubled")


def defect(what: str) -> SystemExit:
    return SystemExit(f"{what}: this is a defect in Calve")


def since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
