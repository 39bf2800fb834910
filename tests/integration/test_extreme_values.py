"""Values at the ends of their types: acknowledged, they are in the table or among the dead letters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import DateType, PrimitiveType, TimestamptzType

from calve.model import TableName
from calve.query.cells import column_values
from tests.conftest import MakeSettings
from tests.fakes.pipelines import Site, site

US = pa.timestamp("us", "UTC")
FAR = [2**63 - 1, -(2**63), 300_000_000_000_000_000, -62_135_596_800_000_001, 0]
FAR_DAYS = [2**31 - 1, -(2**31), 5_000_000, -5_000_000, 2_932_897, 0]
HOUR_MAX = 2**31 * 3_600_000_000


@pytest.fixture
def made(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(pipeline__flush_interval_ms=1)) as made:
        yield made


def land(made: Site, kind: str, values: pa.Array, **specs: dict[str, Any]) -> dict[str, pa.Table]:
    """What the tables of topics hold that get these values, each topic with its own layout."""
    for topic, spec in specs.items():
        made.create(topic, schema={"v": kind, "id": "long"}, **spec)
        made.send(topic, pa.record_batch({"id": range(len(values)), "v": values}))
    with closing(made.pipeline()) as pipeline:
        pipeline.drain(2)
    for topic in specs:
        made.require_each_once(topic, len(values))
    return {topic: made.table(topic).scan().to_arrow().sort_by("id") for topic in specs}


def land_everywhere(made: Site, kind: str, values: pa.Array, *partitions: str) -> None:
    """Whatever a table is sorted or partitioned by, every value comes to it."""
    specs: dict[str, dict[str, Any]] = {"plain": {}, "sorted": {"sort_by": ["v desc"]}}
    for number, each in enumerate(partitions):
        specs |= {f"p{number}": {"partition_by": [each]}, f"s{number}": {"sort_by": [each]}}
    for topic, found in land(made, kind, values, **specs).items():
        assert found["v"].combine_chunks().equals(values), specs[topic]


def bounds(file: DataFile, column: int, kind: PrimitiveType) -> list[Any]:
    return [from_bytes(kind, each[column]) for each in (file.lower_bounds, file.upper_bounds)]


def letters(made: Site, topic: str) -> list[str]:
    name = str(TableName.parse(topic).dead_letters)
    return [row["reason"] for row in made.rows(name)]


def test_moments_beyond_the_calendar_are_rows_of_the_table(made: Site) -> None:
    values = pa.array([*FAR, None], US)
    land_everywhere(
        made, "timestamptz", values, "v", "day(v)", "month(v)", "year(v)", "bucket(4, v)"
    )
    table = made.table("plain")
    column = table.schema().find_field("v").field_id
    (task,) = table.scan().plan_files()
    assert bounds(task.file, column, TimestamptzType()) == [-(2**63), 2**63 - 1]
    assert task.file.null_value_counts[column] == 1


def test_days_beyond_the_calendar_are_rows_of_the_table(made: Site) -> None:
    values = pa.array([*FAR_DAYS, None], pa.date32())
    land_everywhere(made, "date", values, "v", "day(v)", "month(v)", "year(v)", "bucket(4, v)")
    table = made.table("plain")
    column = table.schema().find_field("v").field_id
    (task,) = table.scan().plan_files()
    assert bounds(task.file, column, DateType()) == [-(2**31), 2**31 - 1]


def test_years_and_months_are_numbered_as_iceberg_has_them(made: Site) -> None:
    days = pa.array(FAR_DAYS, pa.date32())
    land(made, "date", days, y={"partition_by": ["year(v)"]}, m={"partition_by": ["month(v)"]})
    years = {
        each["v_year"] for each in made.table("y").inspect.partitions()["partition"].to_pylist()
    }
    months = {
        each["v_month"] for each in made.table("m").inspect.partitions()["partition"].to_pylist()
    }
    # The last day is 5881580-07-11, the first -5877641-06-23.
    assert {5_881_580 - 1970, -5_877_641 - 1970, 15_659 - 1970, 0} <= years
    assert {(5_881_580 - 1970) * 12 + 6, (-5_877_641 - 1970) * 12 + 5, 0} <= months


def test_an_hour_that_has_no_number_is_a_dead_letter(made: Site) -> None:
    values = pa.array([HOUR_MAX, HOUR_MAX - 1, -HOUR_MAX, -HOUR_MAX - 1, None], US)
    found = land(made, "timestamptz", values, far={"partition_by": ["hour(v)"]})["far"]
    assert found["id"].to_pylist() == [1, 2, 4]
    assert found["v"].combine_chunks().equals(values.take([1, 2, 4]))
    reasons = letters(made, "far")
    assert len(reasons) == 2
    assert "hour" in reasons[0]


@pytest.mark.parametrize(
    ("kind", "arrow", "low"), [("int", pa.int32(), -(2**31)), ("long", pa.int64(), -(2**63))]
)
def test_a_number_that_cannot_be_truncated_is_a_dead_letter(
    made: Site, kind: str, arrow: pa.DataType, low: int
) -> None:
    values = pa.array([low, low + 7, low + 8, -low - 1, None], arrow)
    layouts = {
        "low": {"partition_by": ["truncate(10, v)"]},
        "all": {"sort_by": ["truncate(10, v)"]},
    }
    found = land(made, kind, values, **layouts)
    assert found["low"]["id"].to_pylist() == [2, 3, 4]
    assert len(letters(made, "low")) == 2
    assert found["all"]["v"].combine_chunks().equals(values)


@pytest.mark.parametrize("precision", [9, 38])
def test_decimals_are_divided_wherever_they_lie_in_the_log(made: Site, precision: int) -> None:
    most = Decimal((0, (9,) * precision, -2))
    values = pa.array([most, most.copy_negate(), Decimal("-1.05"), None] * 3)
    values = values.cast(pa.decimal128(precision, 2))
    kind = f"decimal({precision},2)"
    land_everywhere(made, kind, values, "v", "bucket(4, v)")
    found = land(
        made,
        kind,
        values,
        sorted_cut={"sort_by": ["truncate(50, v)"]},
        cut={"partition_by": ["truncate(50, v)"]},
    )
    kept = [place for place in range(len(values)) if place not in {1, 5, 9}]
    assert found["cut"]["id"].to_pylist() == kept
    assert found["cut"]["v"].combine_chunks().equals(values.take(kept))
    assert found["sorted_cut"]["v"].combine_chunks().equals(values)


def test_a_long_text_is_a_partition_like_any_other(made: Site) -> None:
    long = ["x" * 300, "x" * 299 + "y", "\U0001f600" * 300, "/" * 400, "x" * 1_000_000]
    values = pa.array(long, pa.large_string())
    land_everywhere(made, "string", values, "v", "truncate(200, v)")
    table = made.table("p0")
    paths = table.inspect.files()["file_path"].to_pylist()
    assert max(len(part) for path in paths for part in path.split("/")) < 200
    assert len({path.rpartition("/")[0] for path in paths}) == len(long)
    partitions = table.inspect.partitions()["partition"].to_pylist()
    assert sorted(each["v"] for each in partitions) == sorted(long)


def test_many_long_partition_fields_make_no_path_that_a_store_refuses(made: Site) -> None:
    names = [f"p{number}" for number in range(12)]
    made.create("many", schema=dict.fromkeys(names, "string"), partition_by=names)
    made.send("many", pa.record_batch({name: ["x" * 300] for name in names}))
    with closing(made.pipeline()) as pipeline:
        pipeline.drain(2)
    made.require_each_once("many", 1)
    (path,) = made.table("many").inspect.files()["file_path"].to_pylist()
    assert len(path.removeprefix(made.table("many").location())) < 800


EXTREMES: dict[str, tuple[pa.DataType, list[Any], tuple[str, ...]]] = {
    "boolean": (pa.bool_(), [True, False], ("v",)),
    "int": (pa.int32(), [2**31 - 1, -(2**31), 0], ("v", "bucket(4, v)")),
    "long": (pa.int64(), [2**63 - 1, -(2**63), 0], ("v", "bucket(4, v)")),
    "float": (pa.float32(), [math.inf, -math.inf, 3.4e38, 1e-45, -0.0, 0.0], ("v",)),
    "double": (pa.float64(), [math.inf, -math.inf, 1.7e308, 5e-324, -0.0, 0.0], ("v",)),
    "time": (pa.time64("us"), [0, 86_399_999_999], ("v",)),
    "timestamp": (pa.timestamp("us"), FAR, ("v", "day(v)", "bucket(4, v)")),
    "string": (
        pa.large_string(),
        ["", " ", "a/b%2F..", "\0", "null", "__HIVE_DEFAULT_PARTITION__", "\u202e", "e\u0301"],
        ("v", "bucket(4, v)", "truncate(1, v)"),
    ),
    "binary": (
        pa.large_binary(),
        [b"", b"\0", b"\xff" * 400, b"../.."],
        ("v", "bucket(4, v)"),
    ),
    "fixed[4]": (pa.binary(4), [b"\0" * 4, b"\xff" * 4], ("bucket(4, v)",)),
    "uuid": (pa.uuid(), [bytes(16), b"\xff" * 16], ("bucket(4, v)",)),
}


@pytest.mark.parametrize("kind", EXTREMES)
def test_the_ends_of_every_type_land_whatever_a_table_is_laid_out_by(made: Site, kind: str) -> None:
    arrow, listed, partitions = EXTREMES[kind]
    land_everywhere(made, kind, pa.array([*listed, None], arrow), *partitions)


def test_the_last_moments_have_a_text_of_their_own() -> None:
    assert column_values(pa.array([2**63 - 1, -(2**63), 3 * 10**17, None], US)) == [
        "294247-01-10T04:00:54.775807Z",
        "-290308-12-21T19:59:05.224192Z",
        "11476-08-15T05:20:00.000000Z",
        None,
    ]
    days = column_values(pa.array([2**31 - 1, -(2**31)], pa.date32()))
    assert days == ["5881580-07-11", "-5877641-06-23"]
