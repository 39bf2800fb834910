"""Answers as table, JSON, CSV, Parquet and Arrow: every type, valid, and in bounded memory."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.query.formats import FORMATS, write_rows
from calve.query.rows import Rows
from calve.settings import load_settings

KEY = uuid.UUID(int=5)
SCHEMA = pa.schema(
    [
        ("i", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(20, 2)), ("b", pa.bool_()), ("s", pa.string()),
        ("day", pa.date32()), ("time", pa.time64("us")), ("ts", pa.timestamp("us")), ("tz", pa.timestamp("us", "UTC")),
        ("ns", pa.timestamp("ns")), ("u", pa.uuid()), ("bin", pa.binary()), ("l", pa.list_(pa.float64())),
        ("st", pa.struct([("x", pa.decimal128(5, 2)), ("y", pa.binary())])), ("m", pa.map_(pa.string(), pa.int32())),
        ("mi", pa.map_(pa.int32(), pa.string())),
    ]
)  # fmt: skip
ROW = {
    "i": 2**62, "f": math.nan, "d": Decimal("1234567890123456.50"), "b": True, "s": 'ü "x",\n', "day": dt.date(1900, 1, 2),
    "time": dt.time(1, 2, 3, 4), "ts": dt.datetime(2024, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
    "tz": dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
    "ns": 1_700_000_000_123_456_789, "u": KEY.bytes, "bin": b"\xff\x00", "l": [1.5, math.inf, None],
    "st": {"x": Decimal("1.50"), "y": b"a"}, "m": [("k", 1)], "mi": [(7, "v")],
}  # fmt: skip
EMPTY = dict.fromkeys(ROW)


def rows(*given: dict[str, object]) -> Rows:
    storage = pa.schema([(f.name, pa.binary(16) if f.name == "u" else f.type) for f in SCHEMA])
    made = pa.Table.from_pylist(list(given), schema=storage).cast(SCHEMA)
    return Rows(made.to_reader)


def written(answer: Rows, kind: str) -> bytes:
    out = io.BytesIO()
    write_rows(answer, out, kind)
    return out.getvalue()


def refuse(constant: str) -> object:
    raise AssertionError(f"{constant} is not JSON")


def test_json_is_valid_and_loses_nothing() -> None:
    first, second = json.loads(written(rows(ROW, EMPTY), "json"), parse_constant=refuse)
    assert first == {
        "i": 2**62, "f": "NaN", "d": "1234567890123456.50", "b": True, "s": 'ü "x",\n', "day": "1900-01-02",
        "time": "01:02:03.000004", "ts": "2024-01-02T03:04:05.000006", "tz": "2024-01-02T00:00:00Z",
        "ns": "2023-11-14T22:13:20.123456789", "u": str(KEY), "bin": "/wA=", "l": [1.5, "Infinity", None],
        "st": {"x": "1.50", "y": "YQ=="}, "m": {"k": 1}, "mi": [{"key": 7, "value": "v"}],
    }  # fmt: skip
    assert second == EMPTY
    lines = written(rows(ROW, EMPTY), "ndjson").splitlines()
    assert [json.loads(each) for each in lines] == [first, second]
    assert json.loads(written(rows(), "json")) == []
    assert written(rows(), "ndjson") == b""


def test_dates_beyond_pythons_calendar_are_shown() -> None:
    day, moment = pa.array([3_663_382, 0], pa.date32()), 3_663_382 * 86_400_000_000
    answer = pa.table(
        {
            "day": day,
            "ts": pa.array([moment, 0], pa.timestamp("us")),
            "tz": pa.array([moment, 0], pa.timestamp("us", "UTC")),
            "l": pa.ListArray.from_arrays([0, 1, 2], day),
            "s": pa.StructArray.from_arrays([day], ["x"]),
            "m": pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "k"]), day),
        }
    )
    far, near = json.loads(written(Rows(answer.to_reader), "json"))
    assert far == {
        "day": "12000-01-01",
        "ts": "12000-01-01T00:00:00.000000",
        "tz": "12000-01-01T00:00:00.000000Z",
        "l": ["12000-01-01"],
        "s": {"x": "12000-01-01"},
        "m": {"k": "12000-01-01"},
    }
    assert near["tz"] == "1970-01-01T00:00:00Z"
    assert b'12000-01-01,"12000-01-01T00:00:00.000000",' in written(Rows(answer.to_reader), "csv")
    assert b"12000-01-01" in written(Rows(answer.to_reader), "table")
    assert "12000-01-01" in repr(Rows(answer.to_reader))
    assert "12000-01-01" in Rows(answer.to_reader)._repr_html_()


def test_a_table_of_many_rows_cuts_no_number() -> None:
    answer = Rows(pa.table({"i": range(12_000), "x": [n * 1.5 for n in range(12_000)]}).to_reader)
    lines = written(answer, "table").decode().splitlines()
    assert lines[2].split() == ["0", "0.0"]
    assert lines[-1].split() == ["11999", "17998.5"]


def test_a_plan_is_shown_whole() -> None:
    plan = "┌─────┐\n│ SEQ │\n└─────┘\n" + "x" * 200 + "\n"
    answer = pa.table({"explain_key": ["physical_plan"], "explain_value": [plan]})
    assert written(Rows(answer.to_reader), "table").decode() == plan
    assert repr(Rows(answer.to_reader)) == plan.rstrip("\n")
    assert Rows(answer.to_reader)._repr_html_() == f"<pre>{plan.rstrip()}</pre>"
    assert json.loads(written(Rows(answer.to_reader), "json"))[0]["explain_value"] == plan


def test_csv_is_read_back() -> None:
    answer = Rows(
        pa.table({"s": ["", None, 'a"b,c\nd'], "i": [1, None, 2], "d": [Decimal("1.50"), None, Decimal(0)]}).to_reader
    )  # fmt: skip
    assert written(answer, "csv") == b'"s","i","d"\n"",1,1.50\n,,\n"a""b,c\nd",2,0.00\n'
    read = pyarrow.csv.read_csv(
        io.BytesIO(written(rows(ROW, EMPTY), "csv")),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True),
    ).to_pylist()
    assert read[0]["s"] == ROW["s"]
    assert json.loads(read[0]["st"]) == {"x": "1.50", "y": "YQ=="}
    assert read[0]["u"] == str(KEY)
    assert set(read[1].values()) == {None}
    assert written(rows(), "csv").count(b"\n") == 1


def test_parquet_and_arrow_keep_the_types() -> None:
    answer = rows(ROW, EMPTY)
    read = pa.ipc.open_stream(written(answer, "arrow")).read_all()
    assert read.schema == SCHEMA
    assert str(read.to_pylist()) == str(answer.to_arrow().to_pylist())
    back = pq.read_table(io.BytesIO(written(answer, "parquet")))
    assert back.schema.names == SCHEMA.names
    assert back.num_rows == 2
    assert pq.read_table(io.BytesIO(written(rows(), "parquet"))).num_rows == 0


def test_a_table_is_aligned_by_what_is_seen() -> None:
    table = pa.table(
        {"naïve": ["日本", "é", None], "n": [1, 200, None], "x": ["y" * 200, "a\tb", "\x1b[31m"]}
    )
    lines = written(Rows(table.to_reader), "table").decode().splitlines()
    assert lines[0].split() == ["naïve", "n", "x"]
    assert lines[2] == "日本     1  " + "y" * 59 + "…"
    assert lines[3] == "é      200  a\\tb"
    assert lines[4] == "∅        ∅  \\x1b[31m"
    assert written(rows(), "table").decode().count("\n") == 2


@pytest.mark.parametrize("kind", FORMATS)
def test_an_answer_larger_than_memory_is_written(tmp_path: Path, kind: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    most = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(12):
            text = pa.array(["x" * 200] * 5_000)
            yield pa.RecordBatch.from_arrays([pa.array([number] * 5_000), text], schema=schema)
            most = max(most, pa.total_allocated_bytes() - before)

    before = pa.total_allocated_bytes()
    answer = Rows(lambda: pa.RecordBatchReader.from_batches(schema, batches()))
    with (tmp_path / "out").open("wb") as out:
        write_rows(answer, out, kind)
    assert most < 8_000_000, "12 MB went through"


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "sql.md"


def documented() -> list[list[str]]:
    """The cells of the page's table of types, from the second on."""
    table = PAGE.read_text().partition("| type | in SQL |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.split("|")[2:-1]] for row in rows]


@pytest.fixture(scope="module")
def empty_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    flags = {"data": str(tmp_path_factory.mktemp("lake"))}
    with Lake(load_settings(flags=flags, environ={}).settings) as lake:
        yield lake


@pytest.mark.parametrize("cells", documented(), ids=lambda cells: cells[0])
def test_the_page_shows_values_as_they_are_written(empty_lake: Lake, cells: list[str]) -> None:
    answer = empty_lake.sql(f"SELECT {cells[0]} AS x")
    found = [
        written(answer, "ndjson").decode().strip().removeprefix('{"x":').removesuffix("}"),
        written(answer, "csv").decode().splitlines()[1],
        written(answer, "table").decode().splitlines()[2],
        str(answer.schema.field("x").type),
    ]
    assert found == cells[1:]


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'parquet'"):
        written(rows(), "parkett")
