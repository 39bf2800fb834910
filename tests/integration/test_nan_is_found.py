"""A row with NaN is found in Parquet files and Arrow data, whose own filters would miss it."""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.condition import SESSION, Column, parse_condition

COLUMNS = (
    Column("id", "BIGINT"),
    Column("d", "DOUBLE"),
    Column("f", "FLOAT"),
    Column("s", "STRUCT(v DOUBLE)"),
    Column("l", "DOUBLE[]"),
)
VALUES = [5.0, math.nan, None, -1.0]
ROWS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "d": VALUES,
        "f": pa.array(VALUES, pa.float32()),
        "s": [{"v": value} for value in VALUES],
        "l": [[value] for value in VALUES],
    }
)


@pytest.mark.parametrize("source", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("d > 1e300", {2}), ("d >= 5 AND d > 1e300", {2}), ("NOT d <= 1e300", {2}), ("d > 5 OR id = 4", {2, 4}),
        ("d = 'nan'::DOUBLE", {2}), ("d BETWEEN 6 AND 'nan'::DOUBLE", {2}), ("d <> 5", {2, 4}), ("id > 1 AND d > 9", {2}),
        ("d IN (7, 'nan'::DOUBLE)", {2}), ("d NOT IN (5, -1)", {2}), ("d > id", {1, 2}), ("d IS DISTINCT FROM 5", {2, 3, 4}),
        ("f > 9", {2}), ("s.v > 9", {2}), ("l[1] > 9", {2}), ("d IS NULL", {3}), ("d < 9", {1, 4}),
    ],
)  # fmt: skip
def test_nan_is_above_all_numbers_wherever_it_lies(
    tmp_path: Path, source: str, text: str, ids: set[int]
) -> None:
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    condition = parse_condition(text, COLUMNS)
    with duckdb.connect() as connection:
        connection.execute(SESSION)
        connection.register("rows", ROWS)
        place = f"'{tmp_path}/rows.parquet'" if source == "parquet" else "rows"
        found = connection.execute(f"SELECT id FROM {place} WHERE {condition.duckdb_filter()}")
        assert {number for (number,) in found.fetchall()} == ids
