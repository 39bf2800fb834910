"""An upsert changes what its rows give, and keeps in rows that are there what they leave open."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from calve.changes import insert_rows, upsert_rows, upsert_with_spark
from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.tables.catalog import LakeCatalog
from calve.tables.evolution import AddColumn, evolve_schema
from calve.tables.schemas import define_table
from tests.fakes.lying_catalog import lying

COLUMNS = {"id": "long", "name": "string", "price": "double"}
REQUIRED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType(), required=True),
    NestedField(3, "price", DoubleType()),
)
A = (1, "a", 1.0)
C = (3, "c", 3.0)
D = (4, None, 4.0)


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    return lake.catalog


def make(catalog: LakeCatalog, *rows: tuple[Any, ...], **options: Any) -> None:
    defined = define_table(COLUMNS, **options)
    catalog.create_table("t", defined.schema, partition_spec=defined.partition_spec)
    insert_rows(catalog, "t", [dict(zip(COLUMNS, row, strict=True)) for row in rows])


def rows(catalog: LakeCatalog) -> list[tuple[Any, ...]]:
    found = catalog.load_table("t").scan().to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


NAMES = pa.table({"id": [2, 9], "name": ["b2", "new"]})


@pytest.mark.parametrize(
    "data",
    [
        NAMES,
        NAMES.to_pydict(),
        NAMES.to_pandas(),
        NAMES.to_batches(),
        NAMES.to_pylist(),
        b"id,name\n2,b2\n9,new\n",
        b'{"id": 2, "name": "b2"}\n\n{"id": 9, "name": "new"}\n',
        b'[{"id": 2, "name": "b2"}, {"id": 9, "name": "new"}]',
        parquet(NAMES),
    ],
    ids=["arrow", "columns", "pandas", "batches", "dicts", "csv", "ndjson", "json", "parquet"],
)
def test_what_an_upsert_leaves_open_is_kept(catalog: LakeCatalog, data: object) -> None:
    make(catalog, A, (2, "b", 2.5), partition_by=["name"])
    given = io.BytesIO(data) if isinstance(data, bytes) else data
    change = upsert_rows(catalog, "t", given, ["id"])
    assert (change.updated_rows, change.inserted_rows) == (1, 1)
    assert rows(catalog) == [A, (2, "b2", 2.5), (9, "new", None)]


def test_each_row_says_for_itself_what_it_leaves_open(catalog: LakeCatalog) -> None:
    make(catalog, A, C, D)
    data = [{"id": 1, "name": "x"}, {"id": 3, "price": None}, {"id": 4, "price": 7.0}]
    assert upsert_rows(catalog, "t", data, ["id"]).updated_rows == 3
    assert rows(catalog) == [(1, "x", 1.0), (3, "c", None), (4, None, 7.0)]


def test_only_a_new_row_needs_what_is_required(catalog: LakeCatalog) -> None:
    catalog.create_table("t", REQUIRED)
    insert_rows(catalog, "t", [{"id": 1, "name": "a"}])
    assert upsert_rows(catalog, "t", [{"id": 1, "price": 2.0}], ["id"]).updated_rows == 1
    assert rows(catalog) == [(1, "a", 2.0)]
    for data, said in (
        ([{"id": 1, "price": 3.0}, {"id": 2}], "row 2: the required column 'name' is missing"),
        (pa.table({"id": [1, 2]}), "row 2: the required column 'name' is missing"),
        ([{"id": 1}, {"id": 1, "name": None}], "row 2, column 'name': a required value is missing"),
        (pa.table({"name": ["x"]}), "the key 'id' is missing"),
        ([{"name": "x"}], "row 1, column 'id': a key is null"),
        (pa.table({"id": [1], "nmae": ["x"]}), "no column 'nmae'.*did you mean 'name'"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            upsert_rows(catalog, "t", data, ["id"])
    assert rows(catalog) == [(1, "a", 2.0)]


def test_columns_that_others_add_meanwhile_are_left_open(catalog: LakeCatalog) -> None:
    make(catalog, A, C)

    def somebody_adds_a_column(commit: Any) -> Any:
        evolve_schema(catalog.load_table("t"), [AddColumn("more", "string")])
        insert_rows(catalog, "t", [{"id": 9, "more": "m"}])
        return commit()

    with lying(catalog, somebody_adds_a_column) as left:
        upsert_rows(catalog, "t", [{"id": 1, "price": 8.0}, {"id": 9, "name": "n"}], ["id"])
    assert not left
    assert rows(catalog) == [(1, "a", 8.0, None), (3, "c", 3.0, None), (9, "n", None, "m")]


def test_spark_keeps_what_is_left_open_too(spark_lake: Lake) -> None:
    catalog, spark = spark_lake.catalog, spark_lake.spark()
    make(catalog, A, C, D)
    change = upsert_with_spark(catalog, spark, "t", NAMES, ["id"])
    assert change.inserted_rows == 2
    data = [{"id": 1, "name": "x"}, {"id": 3, "price": None}, {"id": 4, "price": 7.0}]
    upsert_with_spark(catalog, spark, "t", data, ["id"])
    upsert_with_spark(catalog, spark, "t", [{"id": 1}, {"id": 5}], ["id"])
    assert rows(catalog) == [
        (1, "x", 1.0), (2, "b2", None), (3, "c", None), (4, None, 7.0), (5, None, None),
        (9, "new", None),
    ]  # fmt: skip


def test_spark_wants_what_is_required(spark_lake: Lake) -> None:
    spark_lake.catalog.create_table("t", REQUIRED)
    insert_rows(spark_lake.catalog, "t", [{"id": 1, "name": "a"}])
    with pytest.raises(InvalidRequest, match=r"required column 'name'.*Spark"):
        upsert_with_spark(spark_lake.catalog, spark_lake.spark(), "t", [{"id": 1}], ["id"])
