"""How long the auditor takes for a table of 100 million offsets, beside DuckDB counting them.

    make bench, or: .venv/bin/python -m benchmarks.verify [rows in millions]

The claims: verifying takes at most 1.5 times as long as DuckDB's `count(distinct _calve_offset)`
over the same files, and less than 1 GiB of memory; with the rows in the order of their offsets, as
ingest and compaction leave them, and with all of them shuffled. Each runs in a process of its own,
in turn, and the median is compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa

from benchmarks.samples.memory import peak_bytes
from calve.settings import load_settings
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.positions import Position, position_property
from calve.tables.schemas import arrow_schema
from calve.tables.staging import Edit
from tests.fakes.topic_table import SCHEMA, make_topic_table

FILE_ROWS = 1_000_000
RUNS = 3
ORDERS = ("ordered", "shuffled")


def opened(lake: Path) -> LakeCatalog:
    return LakeCatalog(load_settings(flags={"data": str(lake)}, environ={}).settings)


def make(lake: Path, wanted: str) -> float:
    name, rows = wanted.split("-")
    with opened(lake) as catalog:
        fill(catalog, name, int(rows))
    return 0.0


def fill(catalog: LakeCatalog, name: str, rows: int) -> None:
    table = make_topic_table(catalog, name)
    schema = arrow_schema(SCHEMA)
    offsets = np.arange(rows)
    if name == "shuffled":
        np.random.default_rng(0).shuffle(offsets)
    files = []
    for start in range(0, rows, FILE_ROWS):
        part = pa.array(offsets[start : start + FILE_ROWS])
        columns = {
            "_calve_partition": pa.array(np.zeros(len(part), np.int32)),
            "_calve_offset": part,
        }
        batch = pa.record_batch(
            [columns.get(field.name, pa.nulls(len(part), field.type)) for field in schema],
            schema=schema,
        )
        files += write_data_files(table, [batch], operation_id=new_operation_id("offsets"))

    def reached(snapshot_id: int) -> dict[str, str]:
        return position_property(0, Position(UUID(int=1), rows, "", snapshot_id))

    TableCommit(table).append(Edit(added=files, stamp=reached))


def verify(lake: Path, name: str) -> float:
    from calve.maintenance.verify import verify_topic

    with opened(lake) as catalog:
        started = time.perf_counter()
        found = verify_topic(catalog, name)
        assert found.is_sound
        return time.perf_counter() - started


def count_distinct(lake: Path, name: str) -> float:
    import duckdb

    started = time.perf_counter()
    files = f"{lake}/{name}/data/*.parquet"
    duckdb.sql(f"SELECT count(DISTINCT _calve_offset) FROM read_parquet('{files}')").fetchall()
    return time.perf_counter() - started


def measured(who: str, lake: Path, name: str) -> tuple[float, float]:
    """Seconds and MiB, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.verify", who, str(lake), name]
    seconds, peak = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return seconds, peak


def compare(lake: Path, name: str, rows: int) -> None:
    ours, theirs = [], []
    for _ in range(RUNS):
        ours.append(measured("verify", lake, name))
        theirs.append(measured("duckdb", lake, name))
    seconds, other = (statistics.median(each[0] for each in runs) for runs in (ours, theirs))
    memory, others = (max(each[1] for each in runs) for runs in (ours, theirs))
    print(
        f"verify {rows / 1e6:.0f} M {name} offsets: {seconds:.2f} s, {memory:.0f} MiB; "
        f"DuckDB {other:.2f} s, {others:.0f} MiB; {seconds / other:.2f} times as long (at most 1.5)"
    )


def main(arguments: list[str]) -> None:
    if len(arguments) > 1:
        seconds = WORK[arguments[0]](Path(arguments[1]), arguments[2])
        print(json.dumps([seconds, peak_bytes() / 1024**2]))
        return
    rows = int(arguments[0] if arguments else 100) * 1_000_000
    with tempfile.TemporaryDirectory() as directory:
        lake = Path(directory) / "lake"
        for name in ORDERS:
            # Not here: so that this process holds nothing that those it starts need.
            measured("make", lake, f"{name}-{rows}")
            compare(lake, name, rows)


WORK = {"make": make, "verify": verify, "duckdb": count_distinct}


if __name__ == "__main__":
    main(sys.argv[1:])
