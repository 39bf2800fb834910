"""How long changes of a table take, beside what others need for the same in the same run.

    make bench, or: .venv/bin/python -m benchmarks.table_changes [insert upsert delete csv]

The claims: an insert of 1 M rows takes at most 1.2 times as long as PyIceberg's append; an upsert
of 100 k and of 300 k rows into 1 M is at least 8 and 25 times as fast as PyIceberg's, also with
partitions and deletes; deleting 1 % of 10 M rows takes at most 1.5 times as long as rewriting the
touched files with pyarrow alone; a CSV file of 2 GB is inserted in less than 1 GiB of memory. Runs
are interleaved, and the median is compared, because machines are noisy.
"""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table

from benchmarks.samples.memory import peak_bytes
from benchmarks.samples.people import COLUMNS, some_rows
from calve.changes import delete_rows, insert_rows, upsert_rows
from calve.settings import load_settings
from calve.tables.catalog import LakeCatalog
from calve.tables.schemas import define_table
from tests.fakes.delete_files import delete_positions

CSV_BYTES = 2 * 1024**3


def make(catalog: LakeCatalog, name: str, **options: Any) -> Table:
    defined = define_table(COLUMNS, **options)
    return catalog.create_table(name, defined.schema, partition_spec=defined.partition_spec)


def warm_up(catalog: LakeCatalog) -> None:
    """Load what the first change of a process loads."""
    make(catalog, "warm")
    insert_rows(catalog, "warm", some_rows(1_000))
    upsert_rows(catalog, "warm", some_rows(500, seed=1), ["id"])


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def report(what: str, own: list[float], other: list[float], claim: str) -> None:
    mine, theirs = statistics.median(own), statistics.median(other)
    ratio = mine / theirs
    print(
        f"{what:<44}{mine:>8.3f} s{theirs:>10.3f} s   {ratio:>6.2f} x, "
        f"{1 / ratio:>5.1f} times as fast   must be {claim}"
    )


def bench_insert(catalog: LakeCatalog) -> None:
    rows = some_rows(1_000_000)
    own: list[float] = []
    other: list[float] = []
    for turn in range(7):
        peer = make(catalog, f"peer{turn}")
        make(catalog, f"own{turn}")
        own.append(seconds(partial(insert_rows, catalog, f"own{turn}", rows)))
        other.append(seconds(partial(peer.append, rows)))
    report("insert 1 M rows; PyIceberg's append", own, other, "at most 1.2 x")


def bench_upsert(catalog: LakeCatalog) -> None:
    for shape, options in (("plain", {}), ("parts", {"partition_by": ["bucket(8, id)"]})):
        for count, rounds, claim in ((100_000, 3, 8), (300_000, 1, 25)):
            own: list[float] = []
            other: list[float] = []
            for turn in range(rounds):
                tables = [f"{who}_{shape}{count}_{turn}" for who in ("own", "peer")]
                for name in tables:
                    table = make(catalog, name, **options)
                    insert_rows(catalog, name, some_rows(1_000_000))
                    if options:
                        delete_some(catalog.load_table(name))
                own_name, peer_name = tables
                source = some_rows(count, start=1_000_000 - count + count // 10, seed=7)
                own.append(seconds(partial(upsert_rows, catalog, own_name, source, ["id"])))
                table = catalog.load_table(peer_name)
                other.append(seconds(partial(table.upsert, source, ["id"])))
                require_same(catalog, own_name, peer_name)
            what = f"upsert {count:,} into 1 M, {shape}; PyIceberg's"
            report(what, own, other, f"at least {claim} times as fast")


def delete_some(table: Table) -> None:
    files = [task.file for task in table.scan().plan_files()]
    delete_positions(table, {file.file_path: range(0, file.record_count, 100) for file in files})


def require_same(catalog: LakeCatalog, *names: str) -> None:
    mine, theirs = (
        catalog.load_table(name).scan().to_arrow().sort_by("id").combine_chunks() for name in names
    )
    assert mine.equals(theirs.cast(mine.schema)), "the two upserts differ"


def bench_delete(catalog: LakeCatalog) -> None:
    own: list[float] = []
    other: list[float] = []
    for turn in range(3):
        name = f"big{turn}"
        make(catalog, name)
        for part in range(10):
            insert_rows(catalog, name, some_rows(1_000_000, start=part * 1_000_000, seed=part))
        files = [task.file for task in catalog.load_table(name).scan().plan_files()]
        paths = [Path(file.file_path.removeprefix("file://")) for file in files]
        other.append(seconds(partial(rewrite, paths)))
        own.append(seconds(partial(delete_rows, catalog, name, "id % 100 = 0")))
    report("delete 1 % of 10 M; pyarrow alone", own, other, "at most 1.5 x")


def rewrite(paths: list[Path]) -> None:
    for path in paths:
        rows = pq.read_table(path)
        ids = rows["id"]
        rest = pc.subtract(ids, pc.multiply(pc.divide(ids, 100), 100))
        copy = path.with_suffix(".copy")
        pq.write_table(rows.filter(pc.not_equal(rest, 0)), copy, compression="zstd")


def bench_csv(directory: Path) -> None:
    file = directory / "big.csv"
    write_csv(file)
    script = (
        "import sys; from benchmarks.table_changes import insert_csv; insert_csv(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, str(directory / "csv"), str(file)]
    started = time.perf_counter()
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    took = time.perf_counter() - started
    peak = int(said) / 1024**2
    print(f"insert a CSV of 2 GB{took:>33.1f} s{peak:>10.0f} MiB   must be below 1024 MiB")


def insert_csv(lake: str, file: str) -> None:
    with LakeCatalog(load_settings(flags={"data": lake}, environ={}).settings) as catalog:
        make(catalog, "t")
        insert_rows(catalog, "t", file)
    print(peak_bytes())


def write_csv(file: Path) -> None:
    block = file.with_suffix(".block")
    with block.open("w", newline="") as out:
        csv.writer(out).writerows(
            map(list, zip(*some_rows(200_000).to_pydict().values(), strict=True))
        )
    content = block.read_bytes()
    with file.open("wb") as out_bytes:
        out_bytes.write((",".join(COLUMNS) + "\n").encode())
        while out_bytes.tell() < CSV_BYTES:
            out_bytes.write(content)


def main() -> None:
    wanted = sys.argv[1:] or ["insert", "upsert", "delete", "csv"]
    print(f"{'work':<44}{'Calve':>10}{'other':>12}")
    with tempfile.TemporaryDirectory() as directory:
        settings = load_settings(flags={"data": f"{directory}/lake"}, environ={}).settings
        with LakeCatalog(settings) as catalog:
            warm_up(catalog)
            for name, bench in BENCHES.items():
                if name in wanted:
                    bench(catalog)
        if "csv" in wanted:
            bench_csv(Path(directory))


BENCHES = {"insert": bench_insert, "upsert": bench_upsert, "delete": bench_delete}

if __name__ == "__main__":
    main()
