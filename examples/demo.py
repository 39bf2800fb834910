"""The main job end to end on the embedded default: SQLite catalog, local files, local Spark.

    make demo

Everything happens in a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import calve
from calve.query.engine import connect

ROWS = 100_000
STREAMED = 1_000
ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("country", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
        pa.field("ordered_at", pa.timestamp("us", tz="UTC")),
    ]
)
QUESTION = "select country, count(*) as orders, sum(amount) as amount from {table} group by country"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="calve-demo-") as directory:
        flags = {"data": Path(directory, "lake"), "ingest.http_port": 0, "ingest.flight_port": 0}
        with calve.open(calve.load_settings(flags=flags).settings) as lake:
            tell(lake)
            stream(lake)
        say("temporary data removed")
    return 0


def tell(lake: calve.Lake) -> None:
    table = lake.catalog.create_table("orders", ORDERS)
    say(f"1. Python made the table orders at {table.location()}")

    started = time.monotonic()
    spark = lake.spark()
    say(f"2. Spark {spark.version} opened the same catalog ({time.monotonic() - started:.1f} s)")

    started = time.monotonic()
    spark.sql(f"""
        insert into orders
        select id,
               element_at(array('de', 'fr', 'jp', 'us'), cast(id % 4 as int) + 1),
               cast(id % 10000 / 100 as decimal(10, 2)),
               timestamp_seconds(1700000000 + id)
        from range({ROWS})
    """)
    say(f"3. a Spark job filled it with {ROWS:,} rows ({time.monotonic() - started:.1f} s)")

    table = lake.catalog.load_table("orders")
    arrow = table.scan().to_arrow()
    by_python = sorted(
        (row["country"], row["id_count"], row["amount_sum"])
        for row in arrow.group_by("country")
        .aggregate([("id", "count"), ("amount", "sum")])
        .to_pylist()
    )
    by_spark = sorted(tuple(row) for row in spark.sql(QUESTION.format(table="orders")).collect())
    with connect() as duckdb:
        scan = f"iceberg_scan('{table.metadata_location}')"
        by_duckdb = sorted(duckdb.sql(QUESTION.format(table=scan)).fetchall())

    say("4. the same question, answered three times from the same table:\n")
    print(f"   {'country':<10}{'Python':>28}{'Spark SQL':>28}{'DuckDB':>28}")
    for python, sql, duck in zip(by_python, by_spark, by_duckdb, strict=True):
        cells = (f"{count:,} orders {amount}" for _, count, amount in (python, sql, duck))
        print(f"   {python[0]:<10}" + "".join(f"{cell:>28}" for cell in cells))
    print()
    if not by_python == by_spark == by_duckdb or sum(row[1] for row in by_python) != ROWS:
        raise SystemExit("the answers differ: this is a defect in Calve")


def stream(lake: calve.Lake) -> None:
    """Rows through the service into the log, from where nothing brings them into a table yet."""
    with lake.serve() as service, calve.Client(service.addresses.flight) as client:
        sent = client.produce("clicks", calve.generate_test_data(STREAMED)).result()
        say(f"5. {STREAMED:,} rows sent to {service.addresses.flight} are durable in the log")
        read = client.read("clicks", sent.first, sent.end)
        if read.column("id").to_pylist() != list(range(STREAMED)):
            raise SystemExit("the rows differ: this is a defect in Calve")
        say(f"   and read back from there, at offsets {sent.first} to {sent.end}\n")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
