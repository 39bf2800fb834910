"""Offset commits on SQLite: how long one takes, and whether it stays so after thousands.

python -m benchmarks.offset_commits [COMMITS]

Beside them, in the same minute, PyIceberg's own append of a file to a table that keeps all its
snapshots, which is what the bounds are for.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyiceberg.table import Table

from calve.settings import load_settings
from calve.tables.catalog import LakeCatalog
from calve.tables.data_files import write_data_files
from calve.tables.offsets import LogRange, commit_range, range_operation_id
from calve.tables.staging import Edit

COMMITS: Final = 5_000
WINDOW: Final = 100
P50_MS_MAX: Final = 80
GROWTH_MAX: Final = 1.5
ROWS: Final = 10
SCHEMA: Final = pa.schema(
    [
        pa.field("_calve_partition", pa.int32()),
        pa.field("_calve_offset", pa.int64()),
        pa.field("_calve_ingested_at", pa.timestamp("us", "UTC")),
        *(pa.field(f"c{number}", pa.string()) for number in range(10)),
    ]
)


def some_rows(start: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"_calve_partition": 0, "_calve_offset": start + each, "c0": f"value {start + each}"}
            for each in range(ROWS)
        ],
        schema=SCHEMA,
    )


def bench_offset_commits(catalog: LakeCatalog, commits: int) -> list[float]:
    """Seconds of each commit, the writing of its data file left out."""
    table, log, took = catalog.create_table("fed", SCHEMA), uuid4(), []
    for number in range(commits):
        rows = LogRange(0, log, number * ROWS, (number + 1) * ROWS, f"{number:08x}")
        operation_id = range_operation_id(rows)
        files = write_data_files(table, [some_rows(rows.start)], operation_id=operation_id)
        started = time.perf_counter()
        done = commit_range(table, rows, Edit(added=files), operation_id=operation_id)
        took.append(time.perf_counter() - started)
        assert done.is_new
        table = done.table
        if (number + 1) % max(WINDOW, commits // 10) == 0:
            report(number + 1, took[-WINDOW:], table)
    assert table.scan().count() == commits * ROWS
    return took


def report(commits: int, took: list[float], table: Table) -> None:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    ordered = sorted(took)
    metadata = Path(table.location().removeprefix("file://")) / "metadata"
    print(
        f"{commits:>8}{median(ordered) * 1000:>10.1f}{ordered[-len(ordered) // 20] * 1000:>10.1f}"
        f"{ordered[-1] * 1000:>10.1f}{len(table.metadata.snapshots):>11}"
        f"{len(snapshot.manifests(table.io)):>11}{len(list(metadata.glob('*.json'))):>10}",
        flush=True,
    )


def bench_plain_appends(catalog: LakeCatalog, commits: int) -> list[float]:
    table, took = catalog.create_table("plain", SCHEMA), []
    for number in range(commits):
        rows = pa.Table.from_batches([some_rows(number * ROWS)])
        started = time.perf_counter()
        table.append(rows)
        took.append(time.perf_counter() - started)
    return took


def main() -> None:
    commits = int(sys.argv[1]) if len(sys.argv) > 1 else COMMITS
    print(
        f"{'commits':>8}{'p50 ms':>10}{'p95 ms':>10}{'max ms':>10}{'snapshots':>11}"
        f"{'manifests':>11}{'metadata':>10}"
    )
    with tempfile.TemporaryDirectory() as directory:
        settings = load_settings(flags={"data": f"{directory}/lake"}, environ={}).settings
        with LakeCatalog(settings) as catalog:
            plain = bench_plain_appends(catalog, 2 * WINDOW)
            took = bench_offset_commits(catalog, commits)
    first, last = median(took[:WINDOW]), median(took[-WINDOW:])
    print(f"p50 of all                {median(took) * 1000:8.1f} ms   must be at most {P50_MS_MAX}")
    print(f"last hundred / first      {last / first:8.2f}      must be at most {GROWTH_MAX}")
    print(
        f"PyIceberg's append, file included: {median(plain[:WINDOW]) * 1000:.1f} ms in the first "
        f"hundred, {median(plain[WINDOW:]) * 1000:.1f} ms in the second"
    )


if __name__ == "__main__":
    main()
