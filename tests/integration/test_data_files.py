"""Arrow batches become data files: in bounded pieces, partitioned, sorted, or not at all."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from calve.changes import insert_rows
from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.tables import data_files
from calve.tables.data_files import DataFileWriter, write_data_files
from calve.tables.file_sizes import FileSizes
from calve.tables.schemas import arrow_schema, define_table
from tests.property.condition_grammar import SCHEMA

SPACED = pa.struct([("a b", pa.int64()), ("c", pa.int64())])


def make(lake: Lake, columns: Any, **options: Any) -> Table:
    properties = options.pop("properties", {})
    defined = define_table(columns, **options)
    return lake.catalog.create_table(
        "t",
        defined.schema,
        partition_spec=defined.partition_spec,
        sort_order=defined.sort_order,
        properties=properties,
    )


def batches(schema: Schema, rows: list[dict[str, Any]], size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[start : start + size], schema=arrow_schema(schema))


def local(file: DataFile) -> Path:
    return Path(file.file_path.removeprefix("file://"))


def read(lake: Lake) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        lake.catalog.load_table("t").scan(AlwaysTrue()).to_arrow().to_pylist()
    )
    return found


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "PIECE_BYTES", 4096)
    monkeypatch.setattr(data_files, "_LANE_BYTES", 4 * 4096)


def test_a_stream_becomes_files_of_the_target_size(lake: Lake, small_pieces: None) -> None:
    table = make(lake, {"id": "long"}, properties={"write.target-file-size-bytes": "20000"})
    rows = [{"id": n * 7919 % 100_003} for n in range(20_000)]
    files = write_data_files(table, batches(table.schema(), rows, 500), operation_id="op-1")
    assert sum(file.record_count for file in files) == 20_000
    assert len(files) > 3
    assert all(local(file).name.startswith("op-1-") for file in files)
    assert all(file.file_size_in_bytes == local(file).stat().st_size for file in files)
    assert max(file.file_size_in_bytes for file in files) <= 20_000
    read_back = [n for file in files for n in pq.read_table(local(file))["id"].to_pylist()]
    assert sorted(read_back) == sorted(row["id"] for row in rows)


@pytest.mark.parametrize("text_bytes", [50, 50 * 1024])
@pytest.mark.parametrize("options", [{}, {"partition_by": ["day(at)"]}, {"sort_by": ["text"]}])
def test_rows_of_any_size_make_files_near_the_target(
    lake: Lake, text_bytes: int, options: dict[str, list[str]]
) -> None:
    target = 4 * 1024 * 1024
    columns = {"id": "long", "text": "string", "at": "timestamptz"}
    table = make(lake, columns, **options)
    random = np.random.default_rng(0)
    count = 600_000 if text_bytes == 50 else 600
    sizes = FileSizes(target, None if "partition_by" in options else count)
    with DataFileWriter(table, operation_id="x", lanes_max=1, sizes=sizes) as writer:
        for start in range(0, count, count // 20):
            writer.write(text_rows(random, start, count // 20, text_bytes))
        files = writer.finish()
    found = sorted(file.file_size_in_bytes / target for file in files)
    assert sum(file.record_count for file in files) == count
    assert max(found) <= 1
    # What is left of each partition, or of each sorted piece, may be less.
    rest = 2 if options else 0
    assert len(found) > rest + 1
    assert min(found[rest:]) >= 0.5


def text_rows(random: np.random.Generator, start: int, count: int, size: int) -> pa.Table:
    """Rows of two days, with text that hardly can be compressed to less than half."""
    at = 1_700_000_000_000_000 + (np.arange(start, start + count) % 2) * 86_400_000_000
    digits = np.frombuffer(random.bytes(count * size // 2), np.uint8).tobytes().hex()
    text = [digits[n * size : (n + 1) * size] for n in range(count)]
    return pa.table(
        {
            "id": np.arange(start, start + count),
            "text": pa.array(text, pa.large_string()),
            "at": pa.array(at).cast(pa.timestamp("us", "UTC")),
        }
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(SPACED), [{"a b": 1, "c": 2}]),
        (pa.list_(pa.list_(SPACED)), [[{"a b": 1, "c": 2}], None, []]),
        (pa.list_(pa.map_(pa.string(), SPACED)), [[("k", {"a b": 1, "c": 2})]]),
        (pa.map_(pa.string(), pa.list_(SPACED)), [("k", [{"a b": 1, "c": 2}])]),
    ],
)
def test_fields_whose_names_avro_cannot_write_keep_their_values(
    lake: Lake, kind: pa.DataType, value: Any
) -> None:
    """In the file they have another name, wherever they lie."""
    make(lake, {"x": kind})
    rows = pa.Table.from_pylist([{"x": value}, {"x": None}], schema=pa.schema({"x": kind}))
    insert_rows(lake.catalog, "t", rows)
    assert [row["x"] for row in read(lake)] == [value, None]
    assert [row["x"] for row in lake.sql("select x from t").to_arrow().to_pylist()] == [value, None]


def test_more_partitions_than_files_may_be_open(
    lake: Lake, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "_OPEN_MAX", 3)
    make(
        lake, {"id": "long", "p": "string"}, partition_by=["p", "bucket(3, id)", "truncate(5, id)"]
    )
    rows = [{"id": n % 40, "p": f"p{n % 5}" if n % 7 else None} for n in range(3_000)]
    change = insert_rows(lake.catalog, "t", rows)
    assert change.inserted_rows == 3_000
    assert sorted(map(repr, read(lake))) == sorted(map(repr, rows))


def test_a_partition_is_in_each_files_description(lake: Lake) -> None:
    table = make(
        lake,
        {"d": "date", "ts": "timestamptz", "n": "decimal(9, 2)", "s": "string"},
        partition_by=["month(d)", "day(ts)", "n", "truncate(2, s)"],
    )
    row = {
        "d": dt.date(1969, 12, 31),
        "ts": dt.datetime(2024, 2, 29, 23, 59, tzinfo=dt.UTC),
        "n": Decimal("1.50"),
        "s": "ü/ä",
    }
    (file,) = write_data_files(table, batches(table.schema(), [row], 1), operation_id="x")
    day = (dt.date(2024, 2, 29) - dt.date(1970, 1, 1)).days
    assert list(file.partition._data) == [-1, day, Decimal("1.50"), "ü/"]
    insert_rows(lake.catalog, "t", [row])
    assert read(lake) == [row]


def test_files_are_sorted_and_say_so(lake: Lake, small_pieces: None) -> None:
    table = make(
        lake, {"a": "double", "b": "string"}, sort_by=["a desc nulls last", "b asc nulls first"]
    )
    values = [1.0, None, math.nan, -math.inf, 2.5]
    rows = [{"a": values[n % 5], "b": f"{n * 31 % 97}" if n % 3 else None} for n in range(2_000)]
    files = write_data_files(table, batches(table.schema(), rows, 100), operation_id="x")
    assert len(files) > 1

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        a, b = row["a"], row["b"]
        first = (1, 0) if a is None else (0, -math.inf) if math.isnan(a) else (0, -a)
        if a is not None and math.isnan(a):
            first = (-1, 0)
        return (*first, b is not None, b or "")

    for file in files:
        assert file.sort_order_id == table.sort_order().order_id
        found = pq.read_table(local(file)).to_pylist()
        assert found == sorted(found, key=place)


@pytest.mark.parametrize("target", [512 * 1024**2, 128 * 1024])
@pytest.mark.parametrize("sort_by", ["a name desc nulls last", "truncate(2, a name)", "at"])
def test_sorted_text_that_repeats_is_written_as_it_came(
    lake: Lake, target: int, sort_by: str
) -> None:
    columns = {"a name": "string", "at": "long", "note": "string", "own": "string"}
    properties = {"write.target-file-size-bytes": str(target)}
    table = make(lake, columns, sort_by=[sort_by], properties=properties)
    count = 80_000
    random = np.random.default_rng(0)
    names = pa.array([f"näme{n}" for n in range(3_000)] + [None, ""])
    rows = pa.table(
        {
            "a name": names.take(pa.array(random.integers(0, len(names), count))),
            "at": random.permutation(count),
            "note": pa.array(["x" * 200, None]).take(pa.array(np.arange(count) % 2)),
            "own": [f"{n:x}" for n in range(count)],
        }
    )
    with DataFileWriter(table, operation_id="x") as writer:
        writer.write(rows)
        files = writer.finish()
    assert (len(files) > 3) is (target < 1024**2)
    found = []
    for file in files:
        read = pq.ParquetFile(local(file)).read()
        assert set(read.schema.types) == {pa.string(), pa.int64()}
        read = read.rename_columns(list(columns))
        found.append(read)
        field_id = table.schema().find_field("a name").field_id
        bounds = pc.min_max(read.column("a name")).as_py()
        assert file.lower_bounds[field_id] == bounds["min"].encode()
        assert file.null_value_counts[field_id] == read.column("a name").null_count
        kept = pq.ParquetFile(local(file)).metadata.row_group(0).column(0)
        assert "RLE_DICTIONARY" in kept.encodings
        different = pc.count_distinct(read.column("a name").slice(0, kept.num_values)).as_py()
        assert kept.data_page_offset - kept.dictionary_page_offset <= different * 16 + 100
    assert sum(each.num_rows for each in found) == count
    assert pa.concat_tables(found).sort_by("at").equals(rows.sort_by("at").cast(found[0].schema))


def test_every_type_comes_back_as_it_was(lake: Lake) -> None:
    lake.catalog.create_table("t", SCHEMA)
    row = {
        "rid": 1,
        "f": -0.0,
        "d": math.inf,
        "u": b"\x00" * 16,
        "k": b"abcd",
        "n": Decimal("9999999.99"),
        'sp ace "q" ü': 5,
        "Select": "\U0010ffff",
        "st": {"a": None, "p q": "x", "must": 1, "x": -0.0},
        "ld": [math.inf, None],
        "ma": [("ä", 5), ("", None)],
        "tz": dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
    }
    insert_rows(lake.catalog, "t", pa.Table.from_pylist([row], schema=arrow_schema(SCHEMA)))
    (found,) = read(lake)
    assert {name: found[name] for name in row if name != "u"} == {
        name: row[name] for name in row if name != "u"
    }
    assert math.copysign(1, found["f"]) == -1
    assert found["x"] is None


def test_input_that_breaks_off_leaves_no_file(lake: Lake, small_pieces: None) -> None:
    table = make(lake, {"id": "long"})

    def broken() -> Iterator[dict[str, int]]:
        yield from ({"id": n} for n in range(200_000))
        raise OSError("the input broke off")

    with pytest.raises(OSError, match="broke off"):
        insert_rows(lake.catalog, "t", broken())
    assert read(lake) == []
    root = Path(table.location().removeprefix("file://"))
    assert not list(root.rglob("*.parquet"))


def test_a_missing_required_value_is_refused(lake: Lake) -> None:
    table = lake.catalog.create_table("t", SCHEMA)
    rows = pa.Table.from_pylist([{"rid": None}], schema=arrow_schema(SCHEMA))
    with pytest.raises(InvalidRequest, match="'rid'"):
        write_data_files(table, rows.to_batches(), operation_id="x")


def test_zero_rows_make_no_snapshot(lake: Lake) -> None:
    make(lake, {"id": "long"})
    seen: list[int] = []
    assert insert_rows(lake.catalog, "t", [], progress=seen.append).snapshot_id is None
    assert lake.catalog.load_table("t").current_snapshot() is None
    change = insert_rows(lake.catalog, "t", [{"id": 1}], progress=seen.append)
    assert change.to_dict()["inserted_rows"] == 1
    assert seen[-1] == 1


@pytest.mark.parametrize("transform", ["identity", "bucket[4]", "truncate[2]"])
def test_partitions_that_cannot_be_written_are_refused(lake: Lake, transform: str) -> None:
    kinds = {"identity": "uuid", "bucket[4]": "time", "truncate[2]": "binary"}
    table = make(lake, {"c": kinds[transform]})
    with table.update_spec() as update:
        update.add_field("c", transform, "p")
    with pytest.raises(InvalidRequest, match="cannot be written yet"):
        insert_rows(lake.catalog, "t", [{"c": None}])


def test_files_of_another_kind_are_refused(lake: Lake) -> None:
    make(lake, {"id": "long"}, properties={"write.format.default": "orc"})
    with pytest.raises(InvalidRequest, match="orc"):
        insert_rows(lake.catalog, "t", [{"id": 1}])
