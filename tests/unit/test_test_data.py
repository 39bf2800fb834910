"""Synthetic data is the same every time, and its files appear whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import calve
from calve.errors import InvalidRequest
from calve.tables.schemas import define_table
from calve.testdata import SCHEMA, generate_test_data, write_parquet_batch


@pytest.mark.parametrize("rows", [0, 1, 131_072, 131_073, 300_000])
def test_there_are_as_many_rows_as_asked_for(rows: int) -> None:
    table = generate_test_data(rows)
    table.validate(full=True)
    assert table.num_rows == rows
    assert table.schema == SCHEMA
    assert table["id"].to_pylist() == list(range(rows))


def test_the_same_seed_gives_the_same_rows_also_in_another_process() -> None:
    code = (
        "import calve; print(calve.generate_test_data(200_000, seed=7).slice(199_990).to_pylist())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(generate_test_data(200_000, seed=7).slice(199_990).to_pylist())
    assert generate_test_data(1000, seed=7) != generate_test_data(1000, seed=8)


def test_fewer_rows_are_the_beginning_of_more() -> None:
    assert generate_test_data(140_000) == generate_test_data(300_000).slice(0, 140_000)


def test_the_columns_are_mixed() -> None:
    table = generate_test_data(100_000)
    assert 0 < table["age"].null_count < 10_000
    assert pc.min_max(table["age"]).as_py() == {"min": 5, "max": 99}
    assert any(not name.isascii() for name in table["name"].unique().to_pylist())
    assert len(table["country"].unique()) == 10
    assert 45 < pc.mean(table["score"]).as_py() < 55
    assert pc.max(table["amount"]).as_py() < 10_000
    assert 0.75 < pc.mean(table["active"].cast(pa.int8())).as_py() < 0.85
    assert {time.year for time in table["created_at"].slice(0, 1000).to_pylist()} == {2024}


def test_columns_are_independent() -> None:
    table = generate_test_data(100_000)
    score, amount = (
        pc.subtract(values, pc.mean(values))
        for values in (table["score"], table["amount"].cast(pa.float64()))
    )
    covariance = pc.mean(pc.multiply(score, amount)).as_py()
    spread = pc.stddev(score).as_py() * pc.stddev(amount).as_py()
    assert abs(covariance / spread) < 0.02


def test_a_table_can_be_made_of_it() -> None:
    assert len(define_table(generate_test_data(1).schema).schema.fields) == 8


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="-1 rows"):
        generate_test_data(-1)
    with pytest.raises(InvalidRequest, match="out of range"):
        generate_test_data(1, seed=-1)


def test_a_file_replaces_another_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "batch.parquet"
    first, second = generate_test_data(10), generate_test_data(20)
    assert calve.write_parquet_batch(first, path) == path
    assert pq.read_table(path) == first
    write_parquet_batch(second.to_batches()[0], str(path))
    assert pq.read_table(path) == second
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    good = generate_test_data(10)
    write_parquet_batch(good, path)
    unwritable = pa.table({"d": pa.array([None], pa.month_day_nano_interval())})
    with pytest.raises(pa.ArrowNotImplementedError):
        write_parquet_batch(unwritable, path)
    assert pq.read_table(path) == good
    assert list(tmp_path.iterdir()) == [path]
