"""Columns of data files are written as a table's properties say, and everybody reads them."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datafusion import SessionContext
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from calve.changes import insert_rows
from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.tables.data_files import write_data_files
from calve.tables.schemas import arrow_schema, define_table

ENCODING = "write.parquet.encoding.column."
LEVEL = "write.parquet.compression-level.column."
BLOOM = "write.parquet.bloom-filter-enabled.column."
COLUMNS = {
    "a b": "long",
    "at": "timestamptz",
    "n": "int",
    "x": "double",
    "id": "string",
    "text": "string",
    "raw": "binary",
    "more": pa.map_(pa.string(), pa.string()),
    "events": pa.list_(pa.struct([("at", pa.timestamp("us", "UTC")), ("id", pa.string())])),
}
PROPERTIES = {
    f"{ENCODING}a b": "delta-binary-packed",
    f"{ENCODING}at": "delta-binary-packed",
    f"{ENCODING}n": "DELTA-BINARY-PACKED",
    f"{ENCODING}x": "byte-stream-split",
    f"{ENCODING}id": "delta-length-byte-array",
    f"{ENCODING}text": "delta-byte-array",
    f"{ENCODING}raw": "plain",
    f"{ENCODING}more.value": "delta-byte-array",
    f"{ENCODING}events.element.at": "delta-binary-packed",
    f"{ENCODING}events.element.id": "delta-length-byte-array",
}
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def row(number: int) -> dict[str, Any]:
    """One of which every ninth has nothing in it."""
    if number % 9 == 8:
        return dict.fromkeys(COLUMNS)
    at = BEGIN + timedelta(microseconds=number**2 * 1_001)
    return {
        "a b": number * 7919 % 100_003 - 50_000,
        "at": at,
        "n": -number,
        "x": number / 7,
        "id": f"{number * 2_654_435_761 % 2**64:016x}",
        "text": f"GET /products/{number % 50}",
        "raw": bytes([number % 256]) * (number % 5),
        "more": [("k", f"v{number}"), ("l", None)][: number % 3],
        "events": [{"at": at, "id": f"{number}"}, {"at": None, "id": None}][: number % 3],
    }


ROWS = [row(number) for number in range(3_000)]


def make(lake: Lake, properties: dict[str, str], **options: Any) -> Table:
    defined = define_table(COLUMNS, properties=properties, **options)
    return lake.catalog.create_table(
        "t", defined.schema, sort_order=defined.sort_order, properties=dict(defined.properties)
    )


def written(table: Table) -> list[DataFile]:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=arrow_schema(table.schema()))
    return write_data_files(table, [batch], operation_id="op-1")


def local(file: DataFile) -> Path:
    return Path(file.file_path.removeprefix("file://"))


def columns(file: DataFile) -> dict[str, Any]:
    group = pq.read_metadata(local(file)).row_group(0)
    found = [group.column(place) for place in range(group.num_columns)]
    return {each.path_in_schema: each for each in found}


def test_columns_have_the_encodings_that_properties_name(lake: Lake) -> None:
    (file,) = written(make(lake, PROPERTIES))
    found = {name: set(column.encodings) - {"RLE"} for name, column in columns(file).items()}
    assert found == {
        "a_x20b": {"DELTA_BINARY_PACKED"},
        "at": {"DELTA_BINARY_PACKED"},
        "n": {"DELTA_BINARY_PACKED"},
        "x": {"BYTE_STREAM_SPLIT"},
        "id": {"DELTA_LENGTH_BYTE_ARRAY"},
        "text": {"DELTA_BYTE_ARRAY"},
        "raw": {"PLAIN"},
        "more.key_value.key": {"PLAIN", "RLE_DICTIONARY"},
        "more.key_value.value": {"DELTA_BYTE_ARRAY"},
        "events.list.element.at": {"DELTA_BINARY_PACKED"},
        "events.list.element.id": {"DELTA_LENGTH_BYTE_ARRAY"},
    }


@pytest.mark.parametrize("sort_by", [[], ["text", "at"]])
def test_every_encoding_is_read_by_every_reader(lake: Lake, sort_by: list[str]) -> None:
    table = make(lake, {**PROPERTIES, f"{BLOOM}id": "true"}, sort_by=sort_by)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyIceberg has one for properties that it cannot follow
        insert_rows(
            lake.catalog, "t", pa.Table.from_pylist(ROWS, schema=arrow_schema(table.schema()))
        )
    table = lake.catalog.load_table("t")
    (task,) = table.scan().plan_files()
    path = str(local(task.file))

    def key(each: dict[str, Any]) -> str:
        return repr(each)

    assert sorted(table.scan().to_arrow().to_pylist(), key=key) == sorted(ROWS, key=key)
    assert sorted(lake.sql("select * from t").to_arrow().to_pylist(), key=key) == sorted(
        ROWS, key=key
    )
    wanted = (sum(each["a b"] or 0 for each in ROWS), max(each["id"] or "" for each in ROWS))
    sums = 'sum("a_x20b"), max("id")'
    assert duckdb.sql(f"select {sums} from '{path}'").fetchone() == wanted
    context = SessionContext()
    context.register_parquet("t", path)
    (batch,) = context.sql(f"select {sums} from t").collect()
    assert tuple(column[0].as_py() for column in batch.columns) == wanted
    polars = pl.read_parquet(path)
    assert (polars["a_x20b"].sum(), polars["id"].max()) == wanted
    assert polars["events"].to_list() == pq.read_table(path)["events"].to_pylist()


def test_a_column_without_a_dictionary_is_plain_unless_it_has_an_encoding(lake: Lake) -> None:
    without = {
        f"write.parquet.dict-encoding-enabled.column.{name}": "false" for name in ("id", "n")
    }
    (file,) = written(make(lake, {**without, f"{ENCODING}n": "delta-binary-packed"}))
    found = {name: set(column.encodings) - {"RLE"} for name, column in columns(file).items()}
    assert found["id"] == {"PLAIN"}
    assert found["n"] == {"DELTA_BINARY_PACKED"}
    assert found["at"] == {"PLAIN", "RLE_DICTIONARY"}


@pytest.mark.parametrize("sort_by", [[], ["few"]])
def test_values_that_hardly_repeat_get_no_dictionary_unless_one_is_asked_for(
    lake: Lake, sort_by: list[str]
) -> None:
    count = 60_000
    numbers = np.arange(count)
    random = np.random.default_rng(0)
    unique = random.permutation(count)
    values = {
        "unique": unique,
        "asked": unique,
        "a b": random.random(count),
        "at": unique.astype("datetime64[us]"),
        "text": [f"{number:x}" for number in unique],
        "few": [f"text{number % 12}" for number in numbers],
        "runs": numbers // 50,
        "mostly nothing": pa.array(unique, mask=numbers % 100 > 0),
        "inside": [{"unique": number} for number in unique.tolist()],
    }
    rows = pa.table(values)
    properties = {"write.parquet.dict-encoding-enabled.column.asked": "true"}
    defined = define_table(rows.schema, sort_by=sort_by, properties=properties)
    table = lake.catalog.create_table(
        "t", defined.schema, sort_order=defined.sort_order, properties=dict(defined.properties)
    )
    batches = rows.cast(arrow_schema(table.schema())).to_batches()
    (file,) = write_data_files(table, batches, operation_id="op-1")
    without = {name for name, column in columns(file).items() if not column.has_dictionary_page}
    assert without == {"unique", "a_x20b", "at", "text"}
    read = pq.read_table(local(file))
    assert sorted(read["unique"].to_pylist()) == numbers.tolist()
    assert read["unique"] == read["asked"]


def test_what_a_column_cannot_have_is_left_out(lake: Lake) -> None:
    odd = {
        f"{ENCODING}text": "delta-binary-packed",
        f"{ENCODING}n": "byte-stream-split",
        f"{ENCODING}gone": "plain",
        f"{BLOOM}x": "true",
        f"{BLOOM}more.key": "true",
        f"{BLOOM}gone": "true",
    }
    (file,) = written(make(lake, odd))
    assert all("RLE_DICTIONARY" in column.encodings for column in columns(file).values())


def test_a_column_can_be_compressed_harder_than_the_others(lake: Lake) -> None:
    usual = columns(written(make(lake, {}))[0])
    lake.catalog.drop_table("t")
    harder = columns(written(make(lake, {f"{LEVEL}id": "19"}))[0])
    lake.catalog.drop_table("t")
    capped = columns(
        written(make(lake, {f"{LEVEL}id": "22", "write.parquet.compression-codec": "gzip"}))[0]
    )
    changed = [
        name
        for name in usual
        if usual[name].total_compressed_size != harder[name].total_compressed_size
    ]
    assert changed == ["id"]
    assert capped["id"].compression == "GZIP"


def test_a_filter_knows_which_values_a_file_does_not_have(lake: Lake) -> None:
    table = make(lake, {f"{BLOOM}id": "true", f"{BLOOM}a b": "true", f"{BLOOM}text": "true"})
    path = local(written(table)[0])

    def is_excluded(column: str, value: str) -> bool:
        probe = f"select bool_and(bloom_filter_excludes) from parquet_bloom_probe('{path}', '{column}', {value})"
        found = duckdb.sql(probe).fetchone()
        assert found is not None
        return bool(found[0])

    assert not any(is_excluded("id", f"'{each['id']}'") for each in ROWS[:5])
    absent = [is_excluded("id", f"'absent{number}'") for number in range(300)]
    assert absent.count(False) <= 15  # one in a hundred may be wrong
    assert not is_excluded("text", "'GET /products/1'")
    assert not is_excluded("a_x20b", str(ROWS[3]["a b"]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (f"{ENCODING}id", "rle"),
        (f"{LEVEL}id", "0"),
        (f"{LEVEL}id", "high"),
        ("write.parquet.bloom-filter-fpp.column.id", "2"),
        ("write.parquet.bloom-filter-fpp.column.id", "often"),
    ],
)
def test_values_that_mean_nothing_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match="property"):
        define_table(COLUMNS, properties={name: value})
