"""Bytes that telemetry takes in its tables, beside the same requests compressed with gzip.

    python -m benchmarks.otlp_storage               100,000 records of each signal
    python -m benchmarks.otlp_storage --quick       50,000
    python -m benchmarks.otlp_storage --columns     and what each column takes of it
    python -m benchmarks.otlp_storage --commit 5000 commits of so many rows instead of 50,000

Requests are those of `benchmarks.samples.shop`, 512 records in each, and gzip has each of them
for itself at level 6, as an exporter sends it. They go through the door of OTLP into the log,
and the pipeline's own tasks write and commit them whenever `pipeline.rows_max` rows wait; what is
counted is the data files of the table, whole. The claim: at most 0.7 times gzip for spans and logs.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.samples.shop import RECORDS, Shop, taken
from calve.access import Caller
from calve.ingest import Intake
from calve.ingest.otlp.telemetry import Telemetry
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.pipeline.task import work_on
from calve.pipeline.work import Piece, PieceDone
from calve.settings import load_settings
from calve.sources.entries import Sources
from calve.state import open_state
from calve.tables.catalog import LakeCatalog

CLAIM = 0.7
SHOWN_BYTES = 0.05


@dataclass(frozen=True)
class Signal:
    """What is sent, how OTLP calls it, and where it goes."""

    what: str
    signal: str
    table: str


SIGNALS = (
    Signal("traces", "traces", "traces"),
    Signal("logs", "logs", "logs"),
    Signal("gauges", "metrics", "metrics_gauge"),
)


def run_here(_: object, pieces: Sequence[Piece], *, tasks_max: int) -> list[PieceDone]:
    """What Spark's tasks do, in this process."""
    assert tasks_max > 0
    with Sources() as sources:
        return [work_on(piece, sources) for piece in pieces]


def committed(
    directory: str, signal: Signal, requests: list[bytes], commit_rows: int
) -> list[Path]:
    """The data files of a table that the requests went to."""
    flags = {"data": directory, "wal.free_bytes_min": 0, "wal.sync_mode": "none"}
    settings = load_settings(flags=flags, environ={}).settings
    name = TableName.parse(signal.table)
    state = open_state(settings)
    with Intake(settings) as intake, LakeCatalog(settings) as catalog:
        telemetry = Telemetry(intake)
        pipeline = Pipeline(settings, None, state, catalog, run_pieces=run_here)  # type: ignore[arg-type]
        waiting = 0
        for request in requests:
            with intake.admission.hold(len(request)) as admitted:
                telemetry.take(
                    signal.signal, request, caller=Caller.of_host(), dataset=None, admitted=admitted
                )
            waiting += RECORDS
            if waiting >= commit_rows:
                intake.request_flush(name)
                pipeline.run_cycle()
                waiting = 0
        intake.request_flush(name)
        pipeline.run_cycle()
        table = catalog.load_table(name)
        state.close()
        return [
            Path(each.file.file_path.removeprefix("file://")) for each in table.scan().plan_files()
        ]


def by_column(files: list[Path]) -> Counter[str]:
    found: Counter[str] = Counter()
    for file in files:
        metadata = pq.read_metadata(file)
        for group in range(metadata.num_row_groups):
            for place in range(metadata.num_columns):
                column = metadata.row_group(group).column(place)
                found[column.path_in_schema] += column.total_compressed_size
    return found


def measure(signal: Signal, *, records: int, commit_rows: int, shows_columns: bool) -> bool:
    requests = taken(getattr(Shop(), signal.what)(), records)
    packed = sum(len(gzip.compress(each, 6)) for each in requests)
    with tempfile.TemporaryDirectory() as directory:
        files = committed(directory, signal, requests, commit_rows)
        rows = sum(pq.read_metadata(each).num_rows for each in files)
        size = sum(each.stat().st_size for each in files)
        columns = by_column(files)
    assert rows == len(requests) * RECORDS
    raw = sum(map(len, requests)) / rows
    print(
        f"{signal.what:7} {rows:9,} in {len(files):3} files: {size / rows:6.1f} bytes each   "
        f"protobuf {raw:4.0f}, with gzip {packed / rows:5.1f}   ratio {size / packed:.2f}"
    )
    if shows_columns:
        for name, column_bytes in columns.most_common():
            if column_bytes / rows >= SHOWN_BYTES:
                print(f"        {column_bytes / rows:6.2f}  {name}")
        print(f"        {(size - columns.total()) / rows:6.2f}  footers and filters")
    return size <= CLAIM * packed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--columns", action="store_true")
    parser.add_argument("--commit", type=int, default=50_000)
    arguments = parser.parse_args()
    records = 50_000 if arguments.quick else 100_000
    missed = [
        signal.what
        for signal in SIGNALS
        if not measure(
            signal, records=records, commit_rows=arguments.commit, shows_columns=arguments.columns
        )
    ]
    print(f"more than {CLAIM} times gzip: {', '.join(missed)}" if missed else "as claimed")


if __name__ == "__main__":
    main()
