"""Rows from anywhere fit the table, or are refused with their place and nothing lost."""

from __future__ import annotations

import gzip
import io
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calve.errors import CalveError, InvalidRequest, NotFound
from calve.tables.inputs import conform, infer_schema, open_input
from calve.tables.schemas import arrow_schema, define_table
from calve.testdata import generate_test_data

UUID_TEXT = "123e4567-e89b-12d3-a456-426614174000"
TYPES = {
    "id": "long",
    "name": "string",
    "age": "int",
    "ok": "boolean",
    "at": "timestamptz",
    "ts": "timestamp",
    "day": "date",
    "clock": "time",
    "x": "double",
    "f": "float",
    "price": "decimal(10,2)",
    "u": "uuid",
    "b": "binary",
    "fx": "fixed[4]",
    "l": "list<int>",
    "m": "map<string, long>",
    "s": 'struct<a: int, "b c": list<string>>',
}
SCHEMA = define_table(TYPES).schema
FULL: dict[str, Any] = {
    "id": 1,
    "name": 'ä "q", 🦊\nline',
    "age": 30,
    "ok": True,
    "at": datetime(2024, 1, 1, 8, tzinfo=UTC),
    "ts": datetime(2024, 1, 1, 8, 0, 0, 123456),  # noqa: DTZ001
    "day": date(2024, 2, 29),
    "clock": time(10, 30, 0, 5),
    "x": 1.5,
    "f": 2.5,
    "price": Decimal("12.30"),
    "u": UUID(UUID_TEXT),
    "b": b"\x00hi",
    "fx": b"abcd",
    "l": [1, None, 3],
    "m": [("k", 5)],
    "s": {"a": 1, "b c": ["x", "y"]},
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL)
JSON_ROW: dict[str, Any] = {
    **FULL,
    "at": "2024-01-01T10:00:00+02:00",
    "ts": "2024-01-01 08:00:00.123456",
    "day": "2024-02-29",
    "clock": "10:30:00.000005",
    "price": "12.3",
    "u": UUID_TEXT,
    "b": "AGhp",
    "fx": "\\x61626364",
    "m": {"k": 5},
}


def rows(data: object, schema: object = SCHEMA, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = open_input(data, schema=schema, **options).read_all().to_pylist()
    return found


def refused(data: object, schema: object = SCHEMA, **options: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        open_input(data, schema=schema, **options).read_all()
    return caught.value


def csv_bytes(*lines: str) -> io.BytesIO:
    return io.BytesIO("\n".join([*lines, ""]).encode())


def csv_cell(value: object) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return '"' + text.replace('"', '""') + '"'


CSV = csv_bytes(
    ",".join(csv_cell(name) for name in FULL),
    ",".join(csv_cell(value) for value in JSON_ROW.values()),
    ",".join("" for _ in FULL),
).getvalue()
NDJSON = (json.dumps(JSON_ROW) + "\n\n" + "{}\n").encode()


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lambda b: pa.compress(b, "zstd", asbytes=True)])  # fmt: skip
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", CSV),
        ("rows.csv", b"\xef\xbb\xbf" + CSV),
        ("rows.csv", CSV.replace(b"\n", b"\r\n").replace(b"\r\nline", b"\nline")),
        ("rows.tsv", CSV.replace(b'","', b'"\t"').replace(b",,", b"\t\t").replace(b",\n", b"\t\n").replace(b"\t,", b"\t\t")),
        ("rows.ndjson", NDJSON),
        ("rows.jsonl", b"\xef\xbb\xbf" + NDJSON.strip()),
        ("rows.json", json.dumps([JSON_ROW, {}], indent=2).encode()),
        ("rows.json", json.dumps(JSON_ROW, indent=2).encode() + b"\n{}"),
    ],
)  # fmt: skip
def test_every_type_is_read_from_text(
    tmp_path: Path, name: str, content: bytes, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / name
    path.write_bytes(compress(content))
    assert rows(path) == [FULL, EMPTY]
    assert rows(str(path)) == [FULL, EMPTY]
    with path.open("rb") as file:
        assert rows(file) == [FULL, EMPTY]


@pytest.mark.parametrize("content", [CSV, NDJSON, json.dumps([JSON_ROW, {}]).encode()])
def test_a_format_without_a_name_is_recognised(content: bytes) -> None:
    assert rows(io.BytesIO(content)) == [FULL, EMPTY]
    assert rows(io.StringIO(content.decode(), newline="")) == [FULL, EMPTY]


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.arrows"])
def test_binary_files_are_read_from_paths_and_streams(tmp_path: Path, name: str) -> None:
    table = open_input([FULL, {}], schema=SCHEMA).read_all()
    path = tmp_path / name
    if name == "x.parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if name == "x.arrow" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table)
    content = path.read_bytes()
    assert rows(path) == rows(io.BytesIO(content)) == [FULL, EMPTY]
    assert rows(io.BytesIO(gzip.compress(content))) == [FULL, EMPTY]


def test_standard_input_is_a_dash() -> None:
    code = (
        "from calve.tables.inputs import open_input; print(open_input('-').read_all().to_pylist())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], input="a,b\n1,x\n", capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[{'a': 1, 'b': 'x'}]"


def test_a_standard_input_that_is_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidRequest, match="standard input is closed"):
        open_input("-")


def test_rows_of_python_follow_the_table() -> None:
    as_dicts = {**FULL, "m": {"k": 5}}
    assert rows([as_dicts, {}]) == [FULL, EMPTY]
    assert rows(row for row in [as_dicts, JSON_ROW | {"b": b"\x00hi", "fx": b"abcd"}]) == [FULL] * 2
    assert rows({name: [value, None] for name, value in as_dicts.items()}) == [FULL, EMPTY]


def test_a_column_may_mix_kinds_that_each_fit() -> None:
    mixed = [{"x": 1, "at": "2024-01-01", "price": 7, "u": UUID_TEXT}]
    mixed += [
        {"x": 2.5, "at": datetime(2024, 1, 1, tzinfo=UTC), "price": "1.5", "u": UUID(UUID_TEXT)}
    ]
    mixed += [{"x": None, "at": date(2024, 1, 1), "price": 0.25, "u": UUID(UUID_TEXT).bytes}]
    schema = define_table({name: TYPES[name] for name in ("x", "at", "price", "u")}).schema
    found = rows(mixed, schema)
    assert [row["x"] for row in found] == [1.0, 2.5, None]
    assert {row["at"] for row in found} == {datetime(2024, 1, 1, tzinfo=UTC)}
    assert [row["price"] for row in found] == [Decimal(7), Decimal("1.5"), Decimal("0.25")]
    assert {row["u"] for row in found} == {UUID(UUID_TEXT)}


def test_frames_and_relations_follow_the_table() -> None:
    table = open_input([FULL, {}], schema=SCHEMA).read_all()
    simple = table.drop_columns(["u", "m"])
    expected = [{**row, "u": None, "m": None} for row in (FULL, EMPTY)]
    assert rows(simple.to_pandas()) == expected
    assert rows(pl.DataFrame(simple)) == expected
    assert rows(duckdb.from_arrow(simple)) == expected
    assert rows(simple) == rows(simple.to_reader()) == rows(simple.to_batches()) == expected
    assert rows(simple.to_batches()[0]) == expected


def test_pandas_gaps_objects_categories_and_indexes() -> None:
    frame = pd.DataFrame(
        {
            "name": pd.Categorical(["a", None, "b"]),
            "age": [1.0, math.nan, 3.0],
            "ok": pd.array([True, None, False], "boolean"),
            "at": pd.to_datetime(["2024-01-01", None, "2024-01-02"]).tz_localize("Europe/Berlin"),
            "m": [{"k": 5}, None, {}],
            "price": [Decimal("1.5"), math.nan, pd.NA],
        },
        index=pd.Index([7, 8, 9], name="id"),
    )
    found = rows(frame)
    assert [row["id"] for row in found] == [7, 8, 9]
    assert [row["name"] for row in found] == ["a", None, "b"]
    assert [row["age"] for row in found] == [1, None, 3]
    assert [row["ok"] for row in found] == [True, None, False]
    assert found[0]["at"] == datetime(2023, 12, 31, 23, tzinfo=UTC)
    assert [row["m"] for row in found] == [[("k", 5)], None, []]
    assert [row["price"] for row in found] == [Decimal("1.50"), None, None]


@pytest.mark.parametrize(
    ("data", "column", "place", "says"),
    [
        (csv_bytes("id,age", "1,2", "2,abc"), "age", "2", "'abc' is not a valid int"),
        (csv_bytes("id,age", "1,99999999999"), "age", "1", "'99999999999' is not a valid int"),
        (csv_bytes("id,age", "1,1.5"), "age", "1", "'1.5' is not a valid int"),
        (csv_bytes("id,price", "1,1.234"), "price", "1", "decimal"),
        (csv_bytes("id,price", "1,123456789.1"), "price", "1", "decimal"),
        (csv_bytes("id,age", "1,5", "2,0xffffffff"), "age", "2", "'0xffffffff' is not a valid int"),
        (csv_bytes("id,age", "1,+5", "2,+-5"), "age", "2", "'+-5' is not a valid int"),
        (csv_bytes("id,x", "1,+.5", "2,+-5"), "x", "2", "'+-5' is not a valid double"),
        (csv_bytes("id,x", "1,1e999"), "x", "1", "too big"),
        (csv_bytes("id,f", "1,1e39"), "f", "1", "too big"),
        (csv_bytes("id,ok", "1,maybe"), "ok", "1", "'maybe' is not a valid boolean"),
        (csv_bytes("id,day", "1,2024-02-30"), "day", "1", "not a valid date"),
        (csv_bytes("id,at", "1,yesterday"), "at", "1", "not a valid timestamptz"),
        (csv_bytes("id,at", "1,2024-01-01T00:00:00.123456789Z"), "at", "1", "timestamptz"),
        (csv_bytes("id,clock", "1,25:00"), "clock", "1", "not a valid time"),
        (csv_bytes("id,u", "1,123"), "u", "1", "not a valid uuid"),
        (csv_bytes("id,b", "1,%%"), "b", "1", "not a valid binary"),
        (csv_bytes("id,fx", "1,YWI="), "fx", "1", "not a valid fixed"),
        (csv_bytes("id,l", "1,[1"), "l", "1", "not JSON"),
        (csv_bytes("id,s", '1,"{""z"": 1}"'), "s", "1", "no field 'z'"),
        (io.BytesIO(b"id,name\n1,ok\n2,\xff\xfe\n"), "name", "2", "not UTF-8"),
        (io.BytesIO(b'{"id": 1}\n\n{"id": "x"}\n'), "id", "3", "'x' is not a valid long"),
        (io.BytesIO(b'{"id": true}'), "id", "1", "boolean"),
        (io.BytesIO(b'{"id": 1.5}'), "id", "1", "1.5 is not a valid long"),
        (io.BytesIO(b'{"id": 123456789012345678901}'), "id", "1", "valid long"),
        (io.BytesIO(b'{"name": 5}'), "name", "1", "text"),
        (io.BytesIO(b'{"at": 1700000000}'), "at", "1", "timestamptz"),
        (io.BytesIO(b'[{"id": 1}, {"l": [1, "a"]}]'), "l", "2", "list"),
        (io.BytesIO(b'{"s": {"a": 1, "c": 2}}'), "s", "1", "no field 'c'"),
        (io.BytesIO(b'{"m": [1]}'), "m", "1", "not a map"),
        ([{"id": 1}, {"id": "7"}], "id", "2", "text"),
        ([{"b": "text"}], "b", "1", "text"),
        ([{"id": object()}], "id", "1", "cannot be read"),
        ([{"name": "\ud800"}], "name", "1", "not valid Unicode"),
        (pa.table({"age": pa.array([1, 2**40])}), "age", "2", "1099511627776"),
        (pa.table({"f": [1.0, 1e300]}), "f", "2", "too big"),
        (pa.table({"price": [0.1, 0.123]}), "price", "2", "0.123"),
        (pa.table({"x": [2**53, 2**53 + 1]}), "x", "2", "9007199254740993"),
        (pa.table({"day": pa.array([0, 5], pa.timestamp("s"))}), "day", "2", "time of day"),
        (pa.table({"at": pa.array([1000, 1001], pa.timestamp("ns"))}), "at", "2", "microseconds"),
        (pa.table({"fx": [b"abcd", b"abc"]}), "fx", "2", "abc"),
        (pa.table({"l": [[1], [2**40]]}), "l", "2", "1099511627776"),
        (pd.DataFrame({"age": [1.0, 1.5]}), "age", "2", "1.5"),
        (pd.DataFrame({"id": [1, 2], "m": [{}, "x"]}), "m", "2", "'x' is not a valid map"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named_with_its_place(
    data: object, column: str, place: str, says: str
) -> None:
    if isinstance(data, io.BytesIO):
        data = io.BytesIO(data.getvalue())
    error = refused(data)
    assert says in error.message
    assert error.hint
    assert error.context["column"] == column
    assert error.context.get("row", error.context.get("line")) == place
    assert f"column {column!r}" in error.message


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({"id": ["1"]}), "column 'id': the data has text, the table long"),
        (pa.table({"id": [True]}), "column 'id': the data has boolean, the table long"),
        (pa.table({"name": [1]}), "column 'name': the data has long, the table text"),
        (pa.table({"name": [b"x"]}), "column 'name': the data has binary, the table text"),
        (pa.table({"at": [1]}), "column 'at': the data has long, the table timestamptz"),
        (pa.table({"l": [1]}), "column 'l': the data has long, the table a list"),
        (pa.table({"s": [{"z": 1}]}), "column 's': there is no field 'z'"),
        (pa.table({"ok": [1]}), "column 'ok': the data has long, the table boolean"),
        (pa.table([[1], [2]], names=["id", "id"]), "column 'id': the name is there twice"),
    ],
)
def test_a_column_of_the_wrong_type_is_refused_before_reading(table: pa.Table, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        open_input(table, schema=SCHEMA)
    assert caught.value.context or "twice" in says


REQUIRED = define_table(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("tag", pa.list_(pa.field("e", pa.string(), nullable=False))),
            pa.field("at", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
        ]
    )
).schema


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (csv_bytes("name", "x"), "required column 'id' is missing"),
        (csv_bytes("id,name", "1,x", ",y"), "row 2, column 'id': a required value is missing"),
        (io.BytesIO(b'{"id": 1}\n{"name": "x"}'), "line 2, column 'id': a required value"),
        ([{"id": 1}, {"id": None}], "row 2, column 'id': a required value is missing"),
        ({"name": ["x"]}, "required column 'id' is missing"),
        (pd.DataFrame({"name": ["x"]}), "required column 'id' is missing"),
        (pa.table({"id": [1, None]}), "row 2, column 'id': a required value is missing"),
        (pa.table({"id": [1], "tag": [[None]]}), "row 1, column 'tag'.*an element is missing"),
        ([{"id": 1, "tag": [None]}], "row 1, column 'tag'.*an element is missing"),
        (pa.table({"id": [1], "at": [{"x": None}]}), "row 1, column 'at'.*field 'x' is missing"),
        ([{"id": 1}, {"id": 1, "at": {}}], "row 2, column 'at'.*field 'x' is missing"),
    ],
)
def test_a_missing_required_value_is_refused(data: object, says: str) -> None:
    if isinstance(data, io.BytesIO):
        data = io.BytesIO(data.getvalue())
    with pytest.raises(InvalidRequest, match=says):
        open_input(data, schema=REQUIRED).read_all()


def test_a_missing_struct_may_miss_what_it_requires() -> None:
    data = pa.table(
        {"id": [1, 2], "at": pa.array([None, {"x": 5}], pa.struct([("x", pa.int32())]))}
    )
    assert [row["at"] for row in rows(data, REQUIRED)] == [None, {"x": 5}]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"id,nmae\n1,x\n", r"no column 'nmae' \(did you mean 'name'\?\)"),
        (b"id,id\n1,2\n", "column 'id': the name is there twice"),
        (b"id,\n1,2\n", "column 2 has no name"),
        (b"\n\n", "no header"),
        (b"id,age\n1,2\n1,2,3\n", "row 2: 3 cells where the header has 2"),
        (b"id,age\n1\n", "row 1: 1 cells where the header has 2"),
        (b"id;name\n1;x\n", "is the separator ';'"),
        (b'id,name\n1,"x\n2,y\n', "quote is not closed"),
        (b'id,name\n1,"x' + b"\ny,z" * 5_000_000, "longer than 4 MiB"),
        ("id,name\n1,x\n".encode("utf-16"), "not UTF-8"),
        (b"id,n\xe4me\n1,x\n", "header is not UTF-8"),
        (b"\x00\x01\x02", "not UTF-8"),
        (b'{"id": 1, "name": "a"}\n{"id": 2, "name": "a\x00b"}\n', "line 2 has a NUL"),
        (b"id,name\n1,Ada\n2,a\x00b\n", "line 3 has a NUL"),
        (b'{"id": 1}\n{"id": }\n', "line 2: not JSON"),
        (b'{"id": 1}\n{"name": "\xff"}\n', "line 2: the text is not UTF-8"),
        (b'{"id": 1}\n[1]\n', r"line 2: \[1\] is not a row"),
        (b'{"ids": 1}\n', r"line 1: the table has no column 'ids' \(did you mean 'id'\?\)"),
        (b"[1, 2]", "row 1: an object is expected"),
        (b'[{"x": NaN}]', "row 1: not JSON: NaN"),
        (b'{"x": NaN}', "not JSON"),
        (b'[{"id": 1}', "row 2: the array is not closed"),
        (b'[{"id": 1}] x', "more after the array"),
        (b'[{"id": 1},, {"id": 2}]', "row 2: an object is expected, not ','"),
        (b'[{"id": 1}, {"id": 2]', "row 2: not JSON"),
        (b'[{"name": "\xff"}]', "not UTF-8"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"PAR1 this is not Parquet", "cannot be read"),
        (b"ARROW1 nor Arrow", "cannot be read"),
        (b"\x1f\x8bnot gzip", "cannot be read"),
        (gzip.compress(CSV * 100, mtime=0)[:-200], "cannot be read"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_with_what_is_wrong(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=says) as caught:
        open_input(path, schema=SCHEMA).read_all()
    assert caught.value.context["file"] == str(path)


def test_a_damaged_parquet_file_is_refused_while_reading(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": range(100_000)}), path, compression="gzip", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[1000:1400] = b"\xff" * 400
    path.write_bytes(content)
    assert "cannot be read" in refused(path).message


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        open_input(tmp_path / "nothing.csv")
    assert "directory" in refused(tmp_path).message
    assert "cannot be opened" in refused("a\x00b").message


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (5, {}, "cannot be read from int"),
        (None, {}, "cannot be read from NoneType"),
        (pl.LazyFrame({"id": [1]}), {}, "cannot be read from LazyFrame"),
        ({"id": 5}, {}, "column 'id' is a single value"),
        ({"id": [1], "age": [1, 2]}, {}, "differ in length"),
        ([5], {}, "row 1: 5 is not a row"),
        ([{"id": 1}, {"nam": 1}], {}, "row 2: the table has no column 'nam'"),
        ([{5: 1}], {}, "row 1: the table has no column 5"),
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), {}, "column 'id': the name is there twice"),
        (pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])), {}, "levels"),
        (pa.chunked_array([[1]]), {}, "not a table of Arrow"),
        (io.BytesIO(b"x"), {"format": "cvs"}, "no format 'cvs' (did you mean 'csv'?)"),
        ([{"id": 1}], {"format": "csv"}, "only a file has a format"),
    ],
)
def test_what_cannot_be_rows_is_refused(data: object, options: dict[str, Any], says: str) -> None:
    error = refused(data, **options)
    assert says in error.message
    assert error.hint


def test_python_names_what_separates_cells() -> None:
    text = b"id;name\n1;'a,b'\n"
    schema = define_table({"id": "long", "name": "string"}).schema
    rows = open_input(io.BytesIO(text), schema=schema, delimiter=";").read_all().to_pylist()
    assert rows == [{"id": 1, "name": "'a,b'"}]
    assert infer_schema(io.BytesIO(text), delimiter=";").names == ["id", "name"]
    # Who says that it is a comma means it, also where the only name looks otherwise.
    assert infer_schema(io.BytesIO(b"id;name\n1;x\n"), delimiter=",").names == ["id;name"]
    with pytest.raises(InvalidRequest, match="only a file has a delimiter"):
        open_input(rows, schema=schema, delimiter=";")


@pytest.mark.parametrize(
    ("data", "schema", "says"),
    [
        ([{"id": 1, "name": "\udcff"}], SCHEMA, "row 1, column 'name'.*not valid Unicode"),
        (io.StringIO("id,name\n1,\udcff\n"), SCHEMA, "the text is not valid Unicode"),
        ([{"name": "\udcff"}], None, "column 'name': not valid Unicode"),
        ([{"\udcff": 1}], None, "cannot be written"),
        ([{"s": {"\udcff": 1}}], None, "cannot be written"),
    ],
)
def test_halves_of_characters_are_refused(data: object, schema: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        open_input(data, schema=schema).read_all()
    assert refused.value.hint


def test_a_header_alone_gives_no_rows_and_suggests_no_types() -> None:
    assert rows(io.BytesIO(b"id,name")) == rows(io.BytesIO(b"id,name\n")) == []
    with pytest.raises(InvalidRequest, match="a header and no rows") as caught:
        infer_schema(io.BytesIO(b"id,name\n"))
    assert "schema" in (caught.value.hint or "")


def test_empty_and_quoted_cells_of_csv() -> None:
    found = rows(csv_bytes("id,name,age", '1,,""', '2,""," 7"', '3,NULL,"8.0"', "4,NaN,+9"))
    assert [row["name"] for row in found] == [None, "", "NULL", "NaN"]
    assert [row["age"] for row in found] == [None, 7, 8, 9]


def test_times_without_a_zone_are_utc() -> None:
    found = rows(csv_bytes("at,ts", "2024-01-01,2024-01-01T10:00:00+02:00", "2024-01-01T01:00+01,2024-01-01 08:00:00.000"))  # fmt: skip
    assert {row["at"] for row in found} == {datetime(2024, 1, 1, tzinfo=UTC)}
    assert {row["ts"] for row in found} == {datetime(2024, 1, 1, 8)}  # noqa: DTZ001
    berlin = timezone(timedelta(hours=1))
    assert rows([{"at": datetime(2024, 1, 1, 1, tzinfo=berlin)}])[0]["at"] == found[0]["at"]


def test_json_numbers_keep_every_digit_in_decimals() -> None:
    schema = define_table({"p": "decimal(30,20)", "x": "double"}).schema
    line = b'{"p": 1234567890.12345678901234567890, "x": 0.1}'
    expected = [{"p": Decimal("1234567890.12345678901234567890"), "x": 0.1}]
    assert rows(io.BytesIO(line), schema) == expected
    assert rows(io.BytesIO(b"[" + line + b"]"), schema) == expected


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**200)])
def test_a_whole_number_beyond_a_long_is_told_as_such(number: int) -> None:
    told = str(refused(io.BytesIO(f'{{"id": {number}}}'.encode()), format="ndjson"))
    assert "cannot be read" not in told
    assert str(number)[:40] in told
    assert "is not a valid long: the number is too big" in told


def test_json_has_words_for_the_numbers_it_lacks() -> None:
    words = ["NaN", "Infinity", "-Infinity"]
    lines = "\n".join(json.dumps({"id": n, "x": word, "f": word}) for n, word in enumerate(words))
    read = rows(io.BytesIO(f'{lines}\n{{"id": 3, "x": 1.5}}'.encode()), format="ndjson")
    for column in ("x", "f"):
        assert math.isnan(read[0][column])
        assert [row[column] for row in read[1:3]] == [math.inf, -math.inf]
    assert [read[3]["x"], read[3]["f"]] == [1.5, None]
    for wrong in ("nan", "1.5", ""):
        said = refused(io.BytesIO(json.dumps({"id": 1, "x": wrong}).encode()), format="ndjson")
        assert "the data has text, the table double" in said.message


def test_columns_are_matched_by_name_and_missing_ones_filled() -> None:
    schema = define_table({"a": "int", "b": "string", "c": "struct<x: int, y: int>"}).schema
    data = pa.table({"c": [{"y": 2, "x": 1}, None], "a": pa.array([1, 2], pa.int64())})
    reader = conform(data, schema)
    assert reader.schema == arrow_schema(schema)
    assert reader.read_all().to_pylist() == [
        {"a": 1, "b": None, "c": {"x": 1, "y": 2}},
        {"a": 2, "b": None, "c": None},
    ]


def test_conform_takes_readers_tables_and_batches_and_names_their_origin() -> None:
    target = pa.schema([("a", pa.int32())])
    data = pa.table({"a": [1, 2, 3]})
    for source in (data, data.to_reader(), data.to_batches(), iter(data.to_batches(1))):
        assert conform(source, target).read_all() == data.cast(target)
    with pytest.raises(InvalidRequest, match=r"^topic orders, row 2, column 'a': 4294967296"):
        conform(pa.table({"a": [1, 2**32]}), target, origin="topic orders").read_all()
    with pytest.raises(InvalidRequest, match="no batches"):
        conform([], target)


def test_rows_are_counted_across_batches() -> None:
    table = pa.table({"age": pa.array([*range(300_000), 2**40])})
    assert refused(table).context["row"] == "300001"
    text = "age\n" + "1\n" * 5_000_000 + "x\n"
    assert refused(io.BytesIO(text.encode())).context["row"] == "5000001"
    lines = '{"age": 1}\n' * 500_000 + '{"age": "x"}\n'
    assert refused(io.BytesIO(lines.encode())).context["line"] == "500001"


ARROWS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.list_(pa.int64()), [[9], [1, None], None, []]),
    (pa.large_list(pa.int8()), [[9], [1, None], None, []]),
    (pa.list_view(pa.int16()), [[9], [1, None], None, []]),
    (pa.list_(pa.int32(), 2), [[9, 9], [1, None], None, [3, 4]]),
]


@pytest.mark.parametrize(("kind", "values"), ARROWS, ids=lambda part: str(part)[:30])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_lists_of_every_kind_conform_also_when_sliced(
    kind: pa.DataType, values: list[Any], start: int
) -> None:
    data = pa.table({"l": pa.array(values, kind)}).slice(start)
    target = define_table({"l": "list<int>"}).schema
    assert [row["l"] for row in rows(data, target)] == values[start:]


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_maps_and_structs_conform_also_when_sliced(start: int) -> None:
    maps = [[("z", 0)], None, [("a", 1), ("b", None)], []]
    structs = [{"x": 1, "l": [1]}, None, {"x": None, "l": None}, {"x": 4, "l": []}]
    data = pa.table(
        {
            "m": pa.array(maps, pa.map_(pa.string(), pa.int16())),
            "s": pa.array(structs, pa.struct([("x", pa.int8()), ("l", pa.list_(pa.int8()))])),
        }
    ).slice(start)
    target = define_table({"m": "map<string, long>", "s": "struct<l: list<long>, x: int>"}).schema
    found = rows(data, target)
    assert [row["m"] for row in found] == maps[start:]
    assert [row["s"] for row in found] == structs[start:]


def test_encodings_of_arrow_are_taken_apart() -> None:
    data = pa.table(
        {
            "name": pa.array(["a", "b", "a", None]).dictionary_encode(),
            "age": pa.array(pa.RunEndEncodedArray.from_arrays([2, 4], [1, 2])),
            "u": pa.array([UUID(UUID_TEXT).bytes] * 4, pa.binary(16)),
            "price": pa.array([1, 2, 3, None], pa.int64()),
            "day": pa.array([date(2024, 1, 1)] * 4, pa.date64()),
        }
    )
    found = rows(data)
    assert [row["name"] for row in found] == ["a", "b", "a", None]
    assert [row["age"] for row in found] == [1, 1, 2, 2]
    assert found[0]["u"] == UUID(UUID_TEXT)
    assert found[2]["price"] == Decimal(3)
    assert found[0]["day"] == date(2024, 1, 1)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20),
    "decimal(20,5)": st.decimals(-(10**14), 10**14, places=5, allow_nan=False),
    "date": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "time": st.times(),
    "timestamp": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),  # noqa: DTZ001
    "timestamptz": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),  # noqa: DTZ001
    "uuid": st.uuids(),
    "list<int>": st.lists(st.none() | st.integers(-5, 5), max_size=3),
    "map<string, double>": st.lists(
        st.tuples(st.text(max_size=3), st.none() | st.floats(-5, 5)), max_size=3,
        unique_by=lambda pair: pair[0],
    ),
    "struct<a: int, b: list<string>>": st.fixed_dictionaries(
        {"a": st.none() | st.integers(-5, 5), "b": st.none() | st.lists(st.text(max_size=3), max_size=2)}
    ),
}  # fmt: skip
COLUMNS = {f"c{number}": kind for number, kind in enumerate(VALUES)}
ALL = define_table(COLUMNS).schema
ANY_ROW = st.fixed_dictionaries({n: st.none() | VALUES[kind] for n, kind in COLUMNS.items()})


def as_text(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | list | dict) or value is None:
        return value
    return value.isoformat() if isinstance(value, date | time) else str(value)


@settings(max_examples=50, deadline=None)
@given(st.lists(ANY_ROW, min_size=1, max_size=5))
def test_whatever_is_written_is_read_back_from_every_source(data: list[dict[str, Any]]) -> None:
    table = open_input(data, schema=ALL).read_all()
    assert table.to_pylist() == data
    texts = [{name: as_text(value) for name, value in row.items()} for row in data]
    for row in texts:
        row["c12"] = None if row["c12"] is None else dict(row["c12"])
    lines = "\n".join(json.dumps(row) for row in texts).encode()
    assert rows(io.BytesIO(lines), ALL, format="json") == data
    assert rows(io.BytesIO(json.dumps(texts, indent=1).encode()), ALL, format="json") == data
    cells = csv_bytes(
        ",".join(COLUMNS), *(",".join(csv_cell(row[name]) for name in COLUMNS) for row in texts)
    )
    assert rows(cells, ALL, format="csv") == data
    assert rows(table, ALL) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_refused(content: bytes) -> None:
    for name in (None, "csv", "json", "parquet", "arrow"):
        for schema in (None, SCHEMA):
            try:
                open_input(io.BytesIO(content), schema=schema, format=name).read_all()
            except CalveError as error:
                assert error.hint or error.message  # noqa: PT017


def test_csv_suggests_types_that_lose_nothing() -> None:
    data = csv_bytes(
        "n,long_n,x,flag,day,at,zoned,hours,clock,zip,colour,word,void",
        "1,12345678901234567890,1.5,true,2024-01-01,2024-01-01 10:00:00,2024-01-01T10:00:00Z,2024-01-01 10:00:00+01,10:30,01234,0xff,a,",
        ",2,2,FALSE,,2024-01-02,2024-01-02T10:00:00+01:00,,11:00:00.5,99999,0x00,,",
    )
    assert {f.name: str(f.type) for f in infer_schema(data)} == {
        "n": "int64",
        "long_n": "large_string",
        "x": "double",
        "flag": "bool",
        "day": "date32[day]",
        "at": "timestamp[us]",
        "zoned": "timestamp[us, tz=UTC]",
        "hours": "timestamp[us, tz=UTC]",
        "clock": "time64[us]",
        "zip": "large_string",
        "colour": "large_string",
        "word": "large_string",
        "void": "large_string",
    }


def test_json_and_rows_suggest_types() -> None:
    lines = b'{"a": 1, "b": {"x": [1, 2.5]}, "at": "2024-01-01T00:00:00Z"}\n{"c": "x", "d": null, "e": []}'
    assert {f.name: str(f.type) for f in infer_schema(io.BytesIO(lines))} == {
        "a": "int64",
        "b": "struct<x: large_list<element: double>>",
        "at": "timestamp[us, tz=UTC]",
        "c": "large_string",
        "d": "large_string",
        "e": "large_list<element: large_string>",
    }
    found = infer_schema([{"a": 1, "at": "2024-01-01"}, {"a": 2.5, "p": Decimal("1.25")}])
    assert {f.name: str(f.type) for f in found} == {
        "a": "double",
        "at": "large_string",
        "p": "decimal128(3, 2)",
    }


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "there are no rows"),
        ([{}], "there are no rows"),
        (io.BytesIO(b"[]"), "there are no rows"),
        (io.BytesIO(b'{"a": 1}\n{"a": "x"}'), "column 'a': values are of several types: int, str"),
        (io.BytesIO(b'{"a": {}}'), "struct without fields"),
        (io.BytesIO(b""), "empty"),
        (pa.table({"d": pa.array([1], pa.duration("s"))}), "column 'd'.*no type for Arrow's"),
        (csv_bytes("a,A", "1,2"), "differ in case only"),
    ],
)
def test_data_that_suggests_no_schema_says_why(data: object, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        infer_schema(data)
    assert caught.value.hint


def test_what_is_suggested_can_be_created_and_read() -> None:
    table = generate_test_data(1000)
    text = io.BytesIO()
    pa.csv.write_csv(table, text)
    for data in (table, table.to_pandas(), pl.DataFrame(table), table.to_pylist()):
        schema = define_table(infer_schema(data)).schema
        assert rows(data, schema) == table.to_pylist()
    schema = define_table(infer_schema(io.BytesIO(text.getvalue()))).schema
    found = open_input(io.BytesIO(text.getvalue()), schema=schema).read_all()
    assert found["id"].to_pylist() == table["id"].to_pylist()
    assert found["name"].to_pylist() == table["name"].to_pylist()
    assert found["created_at"].to_pylist() == table["created_at"].to_pylist()


def test_a_sample_that_ends_inside_a_quoted_cell_is_still_a_sample() -> None:
    row = '1,"' + "x\n" * 50_000 + '"\n'
    found = infer_schema(io.BytesIO(("a,b\n" + row * 60).encode()))
    assert found.names == ["a", "b"]
    assert found.field("a").type == pa.int64()


def test_without_a_schema_rows_have_the_suggested_types() -> None:
    assert rows(csv_bytes("a,b", "1,x"), None) == [{"a": 1, "b": "x"}]
    assert rows(({"a": n} for n in range(3)), None) == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert rows({"a": [1, 2], "b": np.array([1.5, 2.5])}, None)[1] == {"a": 2, "b": 2.5}


def test_ten_thousand_columns() -> None:
    names = [f"column_{number}" for number in range(10_000)]
    text = ",".join(names) + "\n" + (",".join("5" for _ in names) + "\n") * 3
    schema = define_table(infer_schema(io.BytesIO(text.encode()))).schema
    found = open_input(io.BytesIO(text.encode()), schema=schema).read_all()
    assert found.shape == (3, 10_000)
    assert found.column(9_999).to_pylist() == [5, 5, 5]


MEASURED = """
from pathlib import Path
from calve.tables.inputs import open_input
from calve.tables.schemas import define_table
schema = define_table({schema!r}).schema
rows = sum(batch.num_rows for batch in open_input({path!r}, schema=schema))
print(rows, int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024)
"""
TEST_DATA_TYPES = {
    "id": "long",
    "name": "string",
    "country": "string",
    "age": "int",
    "score": "double",
    "amount": "decimal(12,2)",
    "active": "boolean",
    "created_at": "timestamptz",
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own numbers")
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "ndjson", "json"])
def test_a_large_file_needs_little_memory(tmp_path: Path, kind: str) -> None:
    table = generate_test_data(1_000_000 if kind.startswith("csv") else 5_000)
    path = tmp_path / f"large.{kind}"
    block = io.BytesIO()
    if kind.startswith("csv"):
        pa.csv.write_csv(table, block)
        content = block.getvalue()
        path.write_bytes(content if kind == "csv" else gzip.compress(content, 1))
    else:
        lines = [json.dumps(row, default=str) for row in table.to_pylist()]
        joined = (",\n" if kind == "json" else "\n").join(lines * 60)
        path.write_text(f"[{joined}]" if kind == "json" else joined)
    code = MEASURED.format(schema=TEST_DATA_TYPES, path=str(path))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, megabytes = map(int, run.stdout.split())
    assert count == (1_000_000 if kind.startswith("csv") else 300_000)
    assert megabytes < 500


def test_files_are_closed_when_read_refused_or_left(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id\n" + "1\n" * 10)
    open_input(path, schema=SCHEMA).read_all()
    open_input(path, schema=SCHEMA).read_next_batch()
    open_input(path, schema=SCHEMA)
    for bad in ("idd\n1\n", "id\nx\n"):
        path.write_text(bad)
        refused(path)
    with tempfile.TemporaryFile() as file:
        file.write(b"id\n1\n")
        file.seek(0)
        assert len(rows(file)) == 1
        assert not file.closed


def test_neither_numpy_nor_pandas_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(CSV)
    code = f"""
import sys
for name in ("numpy", "pandas", "polars"):
    sys.modules[name] = None
from calve.tables.inputs import open_input
from calve.tables.schemas import define_table
schema = define_table({TYPES!r}).schema
assert open_input({str(path)!r}, schema=schema).read_all().num_rows == 2
assert open_input([{{"id": 1}}], schema=schema).read_all().num_rows == 1
import calve
assert calve.generate_test_data(10).num_rows == 10
"""
    subprocess.run([sys.executable, "-c", code], check=True)
