"""Time-travel queries over 10 snapshots of 1 M rows each, against PyIceberg's scan.

    make bench, or: .venv/bin/python -m benchmarks.table_reads

The claims: a query of an old snapshot takes at most half of the time that PyIceberg's scan takes
for the same answer, and less than 2 s in a new process. Both sides answer by turns in the same run,
each query at every snapshot. A query that takes every row and column is shown too: there the time
goes into making Arrow columns, which Arrow's own reader, PyIceberg's, does faster than DuckDB.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.table import Table

from calve.lake import Lake
from calve.query.scan import read_table
from calve.query.sql import run_sql
from calve.settings import Settings, load_settings
from calve.testdata import generate_test_data

ROUNDS = 3
SNAPSHOTS = 10
ROWS_EACH = 1_000_000
COLD = """
import sys
from calve.lake import Lake
from calve.query.scan import read_table
from calve.settings import load_settings
with Lake(load_settings(flags={"data": sys.argv[1]}, environ={}).settings) as lake:
    table = lake.catalog.load_table("users")
    asked = {"snapshot_id": int(sys.argv[2]), "where": "age > 80", "columns": ["id", "name"]}
    rows = read_table(table, **asked)
    assert len(rows.to_arrow())
"""


@dataclass(frozen=True)
class Query:
    name: str
    ours: Callable[[Lake, Table, int], pa.Table]
    theirs: Callable[[Table, int], pa.Table]
    must_reach: str


QUERIES = [
    Query(
        "one row",
        lambda _, table, at: read_table(table, snapshot_id=at, where="id = 77").to_arrow(),
        lambda table, at: table.scan("id == 77", snapshot_id=at).to_arrow(),
        "0.5",
    ),
    Query(
        "a fifth of the rows, two columns",
        lambda _, table, at: read_table(
            table, snapshot_id=at, where="age > 80", columns=["id", "name"]
        ).to_arrow(),
        lambda table, at: table.scan(
            "age > 80", selected_fields=("id", "name"), snapshot_id=at
        ).to_arrow(),
        "0.5",
    ),
    Query(
        "an aggregate by country (SQL)",
        lambda lake, _, at: run_sql(
            lake.catalog,
            "SELECT country, avg(age) AS age, sum(amount) AS amount"
            f" FROM users AT (VERSION => {at}) GROUP BY ALL",
        ).to_arrow(),
        lambda table, at: (
            table.scan(selected_fields=("country", "age", "amount"), snapshot_id=at)
            .to_arrow()
            .group_by("country")
            .aggregate([("age", "mean"), ("amount", "sum")])
        ),
        "0.5",
    ),
    Query(
        "every row and column",
        lambda _, table, at: read_table(table, snapshot_id=at).to_arrow(),
        lambda table, at: table.scan(snapshot_id=at).to_arrow(),
        "-",
    ),
]


def settings(directory: str) -> Settings:
    return load_settings(flags={"data": directory}, environ={}).settings


def filled(lake: Lake) -> Table:
    table = lake.catalog.create_table("users", generate_test_data(1).schema)
    for seed in range(SNAPSHOTS):
        table.append(generate_test_data(ROWS_EACH, seed=seed))
    return table


def seconds(work: Callable[[], pa.Table]) -> tuple[float, int]:
    started = time.perf_counter()
    answer = work()
    return time.perf_counter() - started, len(answer)


def measure(query: Query, lake: Lake, table: Table) -> None:
    at = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(ROUNDS):
        for snapshot in at:
            ours, count = seconds(lambda at=snapshot: query.ours(lake, table, at))  # type: ignore[misc]
            theirs, same = seconds(lambda at=snapshot: query.theirs(table, at))  # type: ignore[misc]
            assert count == same
            times["ours"].append(ours)
            times["theirs"].append(theirs)
    mine, others = (statistics.median(times[name]) * 1000 for name in ("ours", "theirs"))
    print(f"{query.name:<34}{mine:>10.0f}{others:>14.0f}{mine / others:>8.2f}   {query.must_reach}")


def cold(directory: str, snapshot_id: int) -> None:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", COLD, directory, str(snapshot_id)], check=True)
        times.append(time.perf_counter() - started)
    print(f"{'a fifth of the rows, new process':<34}{statistics.median(times) * 1000:>10.0f}")


def main() -> None:
    # An installed Calve is compiled, and so is this one from the second process on.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as directory, Lake(settings(directory)) as lake:
        table = filled(lake)
        print(f"{'median of a query, ms':<34}{'Calve':>10}{'PyIceberg':>14}{'ratio':>8}   at most")
        for query in QUERIES:
            measure(query, lake, table)
        cold(directory, table.metadata.snapshots[-1].snapshot_id)


if __name__ == "__main__":
    main()
