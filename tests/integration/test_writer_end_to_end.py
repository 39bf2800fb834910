"""A writer from its making to rows that every engine reads, on every kind of input and catalog."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import calve
from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.tables.commit import TableCommit
from calve.tables.sorting import sorted_rows
from calve.tables.staging import Edit
from calve.tables.types import type_name
from calve.writer import IcebergTableWriter, create_iceberg_writer
from tests.contract.backends import Servers, backend
from tests.integration.writing import data_files, ids, read, rows, snapshots, writer_for

ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "Ada", "born": dt.date(1815, 12, 10)},
    {"id": 2, "name": None, "born": None},
]


@pytest.fixture
def writer(lake: Lake) -> Iterator[IcebergTableWriter]:
    with writer_for(lake) as writer:
        yield writer


def columns(lake: Lake, table: str = "t") -> dict[str, str]:
    schema = lake.catalog.load_table(table).schema()
    return {field.name: type_name(field.field_type) for field in schema.fields}


def test_a_missing_table_is_made_from_the_first_rows(tmp_path: Path) -> None:
    with create_iceberg_writer(tmp_path / "lake", "acme", "sales", "orders") as writer:
        done = writer.write_batch(ROWS)
        assert done.rows == 2
        assert repr(writer) == "IcebergTableWriter('acme.sales.orders')"
    with calve.open(tmp_path / "lake") as lake:
        assert columns(lake, "acme.sales.orders") == {"id": "long", "name": "string", "born": "date"}  # fmt: skip
        assert lake.tables.query_table("acme.sales.orders").to_arrow().to_pylist() == ROWS
        place = lake.catalog.load_table("acme.sales.orders").location()
        assert place.endswith("acme__/sales/orders")


def test_writers_of_one_lake_share_its_connections(lake: Lake) -> None:
    writers = [lake.writer(f"acme.sales.t{n}") for n in range(3)]
    for number, writer in enumerate(writers):
        writer.write_batch(rows(number + 1))
        writer.close()
    assert [len(ids(lake, f"acme.sales.t{n}")) for n in range(3)] == [1, 2, 3]
    left = lake.writer("acme.sales.t0")
    left.begin_transaction()
    lake.close()
    with pytest.raises(InvalidRequest, match="the lake has been closed"):
        left.write_batch(rows(1))
    left.close()
    assert left.stats.transactions_rolled_back == 1


@pytest.mark.parametrize("part", ["acme.x", "Acme", "", "a__b"])
def test_a_name_that_cannot_be_is_refused_at_once(tmp_path: Path, part: str) -> None:
    for names in ((part, "sales", "orders"), ("acme", part, "orders"), ("acme", "sales", part)):
        with pytest.raises(InvalidRequest, match="not a valid part"):
            create_iceberg_writer(tmp_path / "lake", *names)
    assert not (tmp_path / "lake").exists()


def test_every_kind_of_rows_in_memory_is_taken(lake: Lake, writer: IcebergTableWriter) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = pa.Table.from_pylist(ROWS)
    kinds: list[Any] = [
        ROWS,
        (row for row in ROWS),
        {name: [row[name] for row in ROWS] for name in ROWS[0]},
        table,
        table.to_batches()[0],
        table.to_batches(),
        table.to_reader(),
        pandas.DataFrame(ROWS),
        polars.DataFrame(ROWS),
    ]
    for kind in kinds:
        assert writer.write_batch(kind).rows == 2
    assert writer.write_batches([table, ROWS, table.to_batches()[0]]).rows == 6
    assert writer.write_batches(table.to_reader()).rows == 2
    found = read(lake)
    assert len(found) == 2 * len(kinds) + 8
    assert sorted(found, key=lambda row: row["id"]) == [ROWS[0]] * 13 + [ROWS[1]] * 13


@pytest.mark.parametrize("kind", ["users.csv", Path("users.parquet"), None, 7])
def test_what_has_no_rows_in_memory_is_refused(writer: IcebergTableWriter, kind: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        writer.write_batch(kind)
    assert refused.value.hint


def test_rows_in_place_of_batches_are_one_batch(lake: Lake, writer: IcebergTableWriter) -> None:
    pandas = pytest.importorskip("pandas")
    for kind in (rows(3), rows(3).to_batches()[0], {"id": [0, 1, 2]}, rows(3).to_pandas()):
        assert writer.write_batches(kind).rows == 3
    assert writer.write_batches([pandas.DataFrame({"id": [0, 1, 2]})]).rows == 3
    assert ids(lake) == [0] * 5 + [1] * 5 + [2] * 5
    with pytest.raises(InvalidRequest, match="not from a file"):
        writer.write_batches("users.csv")


def test_columns_are_matched_by_name(lake: Lake, writer: IcebergTableWriter) -> None:
    lake.tables.create_table("t", {"a": "long", "b": "string"})
    writer.write_batch(pa.table({"b": ["x"], "a": [1]}))
    writer.write_batch([{"b": "y"}])
    writer.write_batch(pa.table({"a": pa.array([2], pa.int16())}))
    found = sorted(read(lake), key=str)
    assert found == [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": None, "b": "y"}]


def test_new_columns_and_wider_types_come_in_one_snapshot(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    lake.tables.create_table("t", {"a": "int", "f": "float", "s": "struct<x: int>"})
    writer.write_batch([{"a": 1, "f": 0.5, "s": {"x": 1}}])
    assert columns(lake) == {"a": "int", "f": "float", "s": "struct<x: int>"}
    big = {"a": 2**40, "f": 0.1, "s": {"x": 1, "y": "new"}, "n": Decimal("1.50"), "u": uuid.UUID(int=7)}  # fmt: skip
    typed = pa.Table.from_pylist([big], schema=pa.schema([
        ("a", pa.int64()), ("f", pa.float64()), ("s", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("n", pa.decimal128(9, 2)), ("u", pa.uuid())]))  # fmt: skip
    writer.write_batch(typed)
    assert columns(lake) == {
        "a": "long",
        "f": "double",
        "s": "struct<x: int, y: string>",
        "n": "decimal(9,2)",
        "u": "uuid",
    }
    assert snapshots(lake) == 2
    before, after = sorted(read(lake), key=lambda row: row["a"])
    assert before == {"a": 1, "f": 0.5, "s": {"x": 1, "y": None}, "n": None, "u": None}
    assert after == big


def test_values_without_a_declared_type_widen_a_column_only_if_they_must(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    pandas = pytest.importorskip("pandas")
    lake.tables.create_table("t", {"a": "int"})
    writer.write_batch([{"a": 1}])
    writer.write_batch(pandas.DataFrame({"a": [2]}))
    assert columns(lake) == {"a": "int"}
    writer.write_batch([{"a": 3}, {"a": 2**31}])
    assert columns(lake) == {"a": "long"}
    assert sorted(row["a"] for row in read(lake)) == [1, 2, 3, 2**31]


def test_a_column_without_a_value_is_not_made(lake: Lake, writer: IcebergTableWriter) -> None:
    with pytest.raises(InvalidRequest, match="no value to make a column from"):
        writer.write_batch([{"a": None}])
    writer.write_batch([{"a": None, "b": 1}])
    writer.write_batch(pa.table({"b": [2], "c": pa.nulls(1)}))
    assert columns(lake) == {"b": "long"}
    writer.write_batch([{"a": "now it has", "b": 3}])
    assert columns(lake) == {"b": "long", "a": "string"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([{"a": "x"}], "column 'a'"),
        (pa.table({"a": ["x"]}), "column 'a'"),
        ([{"a": 1.5}], "column 'a'"),
        ([{"a": 1, "s": 5}], "column 's'"),
        ([{"a": 1, "s": {"x": "text"}}], "column 's'"),
        ([{"s": None}], "required column 'a'"),
        ([{"a": None}], "row 1, column 'a': a required value is missing"),
        ([{"a": 1, "A": 2}], "differ in case only"),
        ([{"a": 1, "_file": 2}], "reserved name"),
        ([{"a": 1, "z": 1}, {"a": 1, "z": "x"}], "column 'z': values are of several types"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_column_and_changes_nothing(
    lake: Lake, writer: IcebergTableWriter, data: Any, said: str
) -> None:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), ("s", pa.struct([("x", pa.int32())]))])  # fmt: skip
    lake.tables.create_table("t", schema)
    with pytest.raises(InvalidRequest, match=said):
        writer.write_batch(data)
    table = lake.catalog.load_table("t")
    assert len(table.metadata.schemas) == 1
    assert not data_files(lake)


def test_a_table_that_a_topic_feeds_is_not_written_past_it(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    fed = {"calve.topic": "acme.sales.orders"}
    lake.tables.create_table("t", {"id": "long"}, properties=fed)
    with pytest.raises(InvalidRequest, match=r"the topic acme\.sales\.orders feeds") as refused:
        writer.write_batch(rows(1))
    assert "calve produce" in str(refused.value)
    assert ids(lake) == []


def test_a_table_that_a_topic_comes_to_feed_is_not_written_past_it(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    writer.write_batch(rows(1))
    transaction = writer.begin_transaction()
    writer.write_batch(rows(1, start=1))
    fed = Edit(properties={"calve.topic": "acme.sales.orders"})
    TableCommit(lake.catalog.load_table("t")).attempt(fed)
    with pytest.raises(InvalidRequest, match=r"the topic acme\.sales\.orders feeds"):
        writer.commit_transaction(transaction)
    writer.rollback_transaction(transaction)
    assert ids(lake) == [0]
    assert len(data_files(lake)) == 1


def test_partitions_and_sort_order_are_kept(lake: Lake, writer: IcebergTableWriter) -> None:
    lake.tables.create_table(
        "t",
        {"id": "long", "at": "timestamp", "country": "string"},
        partition_by=["day(at)", "country"],
        sort_by=["id desc"],
    )
    first = dt.datetime(2024, 2, 28)  # noqa: DTZ001
    days = [first + dt.timedelta(days=n % 2, hours=n % 24) for n in range(200)]
    given = [{"id": n * 7 % 200, "at": days[n], "country": ["de", "fr"][n // 100]} for n in range(200)]  # fmt: skip
    with writer.transaction():
        for start in range(0, 200, 50):
            writer.write_batch(given[start : start + 50])
        writer.write_batch([{**given[0], "id": 1_000, "extra": 1}])
    table = lake.catalog.load_table("t")
    tasks = list(table.scan().plan_files())
    assert {tuple(task.file.partition._data) for task in tasks} == {
        (day, country) for day in (19_781, 19_782) for country in ("de", "fr")
    }
    for task in tasks:
        assert task.file.sort_order_id == table.sort_order().order_id
        found = pa.parquet.read_table(task.file.file_path.removeprefix("file://"))
        assert found.equals(sorted_rows(found, table.sort_order(), table.schema()))
    assert len(read(lake)) == 201


def test_spark_and_duckdb_read_what_the_writer_wrote(spark_lake: Lake) -> None:
    with writer_for(spark_lake, "acme.sales.orders") as writer, writer.transaction():
        writer.write_batch(ROWS)
        writer.write_batch([{"id": 3, "tags": ["a", None], "deep": [{"x": 1}]}])
    spark = spark_lake.spark()
    told = spark.sql("SELECT id, name, tags, deep[0].x FROM acme.sales.orders ORDER BY id")
    expected = [(1, "Ada", None, None), (2, None, None, None), (3, None, ["a", None], 1)]
    assert [tuple(row) for row in told.collect()] == expected
    rows = spark_lake.sql(
        "SELECT id, name, tags, deep[1].x AS x FROM acme.sales.orders ORDER BY id"
    )
    assert [tuple(row.values()) for row in rows] == expected
    spark.sql("DELETE FROM acme.sales.orders WHERE id = 2")
    spark.sql("INSERT INTO acme.sales.orders (id) VALUES (4)")
    with writer_for(spark_lake, "acme.sales.orders") as writer:
        writer.write_batch([{"id": 5}])
    assert ids(spark_lake, "acme.sales.orders") == [1, 3, 4, 5]


@pytest.mark.parametrize("pair", ["postgres × s3", "rest × local", "memory × memory", "glue × s3"])
def test_transactions_work_on_other_catalogs_and_stores(
    request: pytest.FixtureRequest, tmp_path: Path, pair: str
) -> None:
    name = f"acme.sales.t{uuid.uuid4().hex[:8]}"
    with (
        backend(pair, Servers(request.getfixturevalue), tmp_path) as backing,
        Lake(backing.settings()) as lake,
        writer_for(lake, name) as writer,
    ):
        writer.write_batch(rows(3))
        with writer.transaction():
            writer.write_batch([{"id": 3, "note": "grown"}])
            writer.write_batch(pa.table({"id": [4], "more": [0.5]}))
        lost = writer.begin_transaction()
        writer.write_batch(rows(5_000))
        writer.rollback_transaction(lost)
        assert ids(lake, name) == [0, 1, 2, 3, 4]
        assert columns(lake, name) == {"id": "long", "note": "string", "more": "double"}
        loaded = lake.catalog.load_table(name)
        newest = loaded.current_snapshot()
        assert newest is not None
        assert newest.schema_id == loaded.metadata.current_schema_id


def test_nanoseconds_are_refused_and_fit_a_long(lake: Lake, writer: IcebergTableWriter) -> None:
    nanos = 1_700_000_000_123_456_789
    column = pa.array([nanos], pa.timestamp("ns", "UTC"))
    writer.write_batch(pa.table({"at": column.cast(pa.int64()), "coarse": column.cast(pa.timestamp("us", "UTC"), safe=False)}))  # fmt: skip
    with pytest.raises(InvalidRequest, match="column 'coarse'"):
        writer.write_batch(pa.table({"coarse": column}))
    (found,) = read(lake)
    assert found["at"] == nanos
