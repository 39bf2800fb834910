"""One catalog for Python and Spark: tables made, evolved, appended to and deleted from by either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.types import DoubleType, StringType

from calve.lake import Lake
from calve.query.engine import connect
from tests.contract.backends import Backend, Servers, backend
from tests.forks import FORKS
from tests.integration.appender import append

PAIRS = ["sqlite × local", "postgres × local", "postgres × s3", "rest × local", "rest × s3"]
PROCESSES = 4
APPENDS = 10
# Waits are for machines that share a catalog; here they would only make the race less close.
CLOSE = {"commit.retry.min-wait-ms": "5", "commit.retry.max-wait-ms": "50"}


@pytest.fixture(params=PAIRS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with backend(request.param, Servers(request.getfixturevalue), tmp_path) as made:
        yield made


@pytest.fixture
def both(kind: Backend, spark_running: None) -> Iterator[Lake]:
    """A lake of each kind, open in Python and in Spark."""
    with Lake(kind.settings()) as lake:
        yield lake


@pytest.fixture
def name() -> str:
    """The REST server's catalog is shared by the whole run."""
    return f"t_{uuid4().hex}"


def seen_by_all(lake: Lake, table: str) -> list[dict[str, object]]:
    """The rows of a table, after making sure that Python, Spark and DuckDB see the same."""
    loaded = lake.catalog.load_table(table)
    by_python = _ordered(loaded.scan().to_arrow().to_pylist())
    assert by_python == _ordered([row.asDict() for row in lake.spark().table(table).collect()])
    if loaded.location().startswith("file:"):
        with connect() as duckdb:
            scan = duckdb.sql(f"select * from iceberg_scan('{loaded.metadata_location}')")
            assert by_python == _ordered(scan.to_arrow_table().to_pylist())
    return by_python


def _ordered(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: str(sorted(row.items())))


def test_a_table_made_in_python_is_sparks_too(both: Lake, name: str) -> None:
    spark = both.spark()
    table = both.catalog.create_table(name, pa.schema([("id", pa.int32()), ("name", pa.string())]))
    table.append(pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "b"]}))
    spark.sql(f"insert into {name} values (3, 'c')")
    spark.sql(f"alter table {name} add column email string")
    spark.sql(f"alter table {name} alter column id type bigint")
    spark.sql(f"update {name} set email = 'b@x' where id = 2")
    table = both.catalog.load_table(name)
    with table.update_schema() as update:
        update.rename_column("name", "full_name")
        update.add_column("score", DoubleType())
    table.delete("id == 1")
    spark.sql(f"delete from {name} where id = 3")
    assert seen_by_all(both, name) == [{"id": 2, "full_name": "b", "email": "b@x", "score": None}]
    assert name in [row.tableName for row in spark.sql("show tables").collect()]


def test_a_table_made_in_spark_is_pythons_too(both: Lake, name: str) -> None:
    spark = both.spark()
    table_name = f"acme.sales.{name}"
    spark.sql("create namespace if not exists acme.sales")
    spark.sql(
        f"create table {table_name} (id bigint, day date) using iceberg partitioned by (days(day))"
    )
    spark.sql(f"insert into {table_name} values (1, date'2024-01-01'), (2, date'2024-01-02')")
    assert table_name in map(str, both.catalog.list_tables())
    table = both.catalog.load_table(table_name)
    table.append(table.scan(row_filter="id == 2").to_arrow())
    with table.update_schema() as update:
        update.add_column("note", StringType())
    with table.update_spec() as spec:
        spec.add_identity("note")
    spark.sql(f"insert into {table_name} values (3, date'2024-01-03', 'x')")
    table = both.catalog.load_table(table_name)
    table.delete("id == 1")
    spark.sql(f"delete from {table_name} where id = 2")
    (row,) = seen_by_all(both, table_name)
    assert (row["id"], row["note"]) == (3, "x")


def test_a_table_dropped_by_one_is_gone_for_the_other(both: Lake, name: str) -> None:
    for each in (f"{name}_one", f"{name}_two"):
        both.catalog.create_table(each, pa.schema([("id", pa.int64())]))
    both.spark().sql(f"drop table {name}_one")
    both.catalog.drop_table(f"{name}_two")
    assert not [table for table in both.catalog.list_tables() if name in str(table)]
    assert not [row for row in both.spark().sql("show tables").collect() if name in row.tableName]


def test_processes_and_spark_append_at_once_and_lose_nothing(
    both: Lake, kind: Backend, name: str, tmp_path: Path
) -> None:
    schema = pa.schema([("writer", pa.int32()), ("number", pa.int32())])
    both.catalog.create_table(name, schema, properties=CLOSE)
    flags = {"data": str(both.settings.data), **kind.flags}
    began = FORKS.Barrier(PROCESSES + 1)
    words = [tmp_path / f"words-{writer}" for writer in range(PROCESSES)]
    processes = [
        FORKS.Process(target=append, args=(flags, name, writer, APPENDS, began, str(file)))
        for writer, file in enumerate(words)
    ]
    for process in processes:
        process.start()
    spark = both.spark()
    began.wait(60)
    for number in range(APPENDS):
        spark.sql(f"insert into {name} values ({PROCESSES}, {number})")
    for process in processes:
        process.join(240)
    said = "\n".join(file.read_text()[-3000:] for file in words)
    assert [process.exitcode for process in processes] == [0] * PROCESSES, said
    assert "locked" not in said
    expected: list[dict[str, object]] = [
        {"writer": writer, "number": number}
        for writer in range(PROCESSES + 1)
        for number in range(APPENDS)
    ]
    assert _ordered(seen_by_all(both, name)) == _ordered(expected)


def test_a_table_that_spark_makes_lies_inside_no_table_of_calve(spark_lake: Lake) -> None:
    spark_lake.catalog.create_table("default", pa.schema([("id", pa.int64())]))
    spark_lake.spark().sql("create table made (id bigint) using iceberg")
    root = f"file://{spark_lake.settings.data}"
    assert spark_lake.catalog.load_table("default").location() == f"{root}/default"
    assert spark_lake.catalog.load_table("made").location() == f"{root}/_spark/default/default/made"
