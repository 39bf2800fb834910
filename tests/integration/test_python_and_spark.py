"""One catalog for Python and Spark: tables made, evolved, appended to and deleted from by either."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyiceberg.types import DoubleType, StringType

from calve.lake import Lake
from calve.query.engine import connect

APPENDER = Path(__file__).with_name("appender.py")
PROCESSES = 4
APPENDS = 25


def seen_by_all(lake: Lake, table: str) -> list[dict[str, object]]:
    """The rows of a table, after making sure that Python, Spark and DuckDB see the same."""
    loaded = lake.catalog.load_table(table)
    by_python = loaded.scan().to_arrow().to_pylist()
    by_spark = [row.asDict() for row in lake.spark().table(table).collect()]
    with connect() as duckdb:
        scan = duckdb.sql(f"select * from iceberg_scan('{loaded.metadata_location}')")
        by_duckdb = scan.to_arrow_table().to_pylist()

    def ordered(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return sorted(rows, key=lambda row: str(sorted(row.items())))

    assert ordered(by_python) == ordered(by_spark) == ordered(by_duckdb)
    return ordered(by_python)


def test_a_table_made_in_python_is_sparks_too(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    table = spark_lake.catalog.create_table(
        "users", pa.schema([("id", pa.int32()), ("name", pa.string())])
    )
    table.append(pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "b"]}))
    spark.sql("insert into users values (3, 'c')")
    spark.sql("alter table users add column email string")
    spark.sql("alter table users alter column id type bigint")
    spark.sql("update users set email = 'b@x' where id = 2")
    table = spark_lake.catalog.load_table("users")
    with table.update_schema() as update:
        update.rename_column("name", "full_name")
        update.add_column("score", DoubleType())
    table.delete("id == 1")
    spark.sql("delete from users where id = 3")
    assert seen_by_all(spark_lake, "users") == [
        {"id": 2, "full_name": "b", "email": "b@x", "score": None}
    ]
    assert [row.tableName for row in spark.sql("show tables").collect()] == ["users"]


def test_a_table_made_in_spark_is_pythons_too(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    spark.sql("create namespace if not exists acme.sales")
    spark.sql(
        "create table acme.sales.orders (id bigint, day date) using iceberg partitioned by (days(day))"
    )
    spark.sql("insert into acme.sales.orders values (1, date'2024-01-01'), (2, date'2024-01-02')")
    assert list(map(str, spark_lake.catalog.list_tables())) == ["acme.sales.orders"]
    table = spark_lake.catalog.load_table("acme.sales.orders")
    table.append(table.scan(row_filter="id == 2").to_arrow())
    with table.update_schema() as update:
        update.add_column("note", StringType())
    with table.update_spec() as spec:
        spec.add_identity("note")
    spark.sql("insert into acme.sales.orders values (3, date'2024-01-03', 'x')")
    table = spark_lake.catalog.load_table("acme.sales.orders")
    table.delete("id == 1")
    spark.sql("delete from acme.sales.orders where id = 2")
    (row,) = seen_by_all(spark_lake, "acme.sales.orders")
    assert (row["id"], row["note"]) == (3, "x")


def test_a_table_that_spark_makes_lies_inside_no_table_of_calve(spark_lake: Lake) -> None:
    spark_lake.catalog.create_table("default", pa.schema([("id", pa.int64())]))
    spark_lake.spark().sql("create table made (id bigint) using iceberg")
    root = f"file://{spark_lake.settings.data}"
    assert spark_lake.catalog.load_table("default").location() == f"{root}/default"
    assert spark_lake.catalog.load_table("made").location() == f"{root}/_spark/default/default/made"


def test_a_table_dropped_by_one_is_gone_for_the_other(spark_lake: Lake) -> None:
    for name in ("one", "two"):
        spark_lake.catalog.create_table(name, pa.schema([("id", pa.int64())]))
    spark_lake.spark().sql("drop table one")
    spark_lake.catalog.drop_table("two")
    assert spark_lake.catalog.list_tables() == []
    assert spark_lake.spark().sql("show tables").collect() == []


def test_processes_and_spark_append_at_once_and_lose_nothing(spark_lake: Lake) -> None:
    spark_lake.catalog.create_table(
        "counts", pa.schema([("writer", pa.int32()), ("number", pa.int32())])
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CALVE_")}
    processes = [
        subprocess.Popen(
            [sys.executable, APPENDER, spark_lake.settings.data, "counts", str(writer), str(APPENDS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for writer in range(PROCESSES)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    spark = spark_lake.spark()
    with ThreadPoolExecutor(PROCESSES + 1) as pool:
        outputs = [pool.submit(process.communicate, "go\n", timeout=240) for process in processes]
        for number in range(APPENDS):
            spark.sql(f"insert into counts values ({PROCESSES}, {number})")
        errors = [output.result()[1] for output in outputs]
    assert [process.returncode for process in processes] == [0] * PROCESSES, errors
    assert not [error for error in errors if "locked" in error]
    expected = [
        {"writer": writer, "number": number}
        for writer in range(PROCESSES + 1)
        for number in range(APPENDS)
    ]
    found = seen_by_all(spark_lake, "counts")
    assert sorted(found, key=str) == sorted(expected, key=str)
