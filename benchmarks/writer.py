"""How fast the writer is, beside PyIceberg in the same run, and how much memory it takes.

    make bench-writer, or: .venv/bin/python -m benchmarks.writer [single_batch …]

The claims: `single_batch`, a `write_batch` of 1 k, 50 k and 500 k rows, takes at most 1.2 times as
long as PyIceberg's append; `transaction_overhead`, 10 batches in one transaction, is at least 5
times as fast as 10 commits; `many_commits`, 5,000 batches of 10 rows that are committed one by one,
take at most 80 ms each, and the last hundred at most 1.5 times as long as the first;
`write_batches` of 10 GiB takes at most twice the configured bound of memory, which is
`max_memory_per_batch_bytes` times `target_concurrent_batches`, more than the process has when it
begins. Runs are interleaved, and the median is compared.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks.samples.memory import peak_bytes
from benchmarks.samples.people import COLUMNS, some_rows
from calve import BatchOptimizationConfig, create_iceberg_writer
from calve.lake import Lake
from calve.settings import Settings, load_settings
from calve.tables.schemas import define_table

GIB = 1024**3
MIB = 1024**2
COMMITS, WINDOW = 5_000, 100


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def single_batch(settings: Settings) -> None:
    with Lake(settings) as lake:
        for count, turns in ((1_000, 61), (50_000, 31), (500_000, 15)):
            schema = define_table(COLUMNS).schema
            lake.catalog.create_table(f"own_{count}", schema)
            peer = lake.catalog.create_table(f"peer_{count}", schema)
            rows = some_rows(count)
            own: list[float] = []
            other: list[float] = []
            with create_iceberg_writer(settings, "default", "default", f"own_{count}") as writer:
                for turn in range(turns):
                    if turn % 2:
                        other.append(seconds(partial(peer.append, rows)))
                    own.append(seconds(partial(writer.write_batch, rows)))
                    if not turn % 2:
                        other.append(seconds(partial(peer.append, rows)))
            mine, theirs = statistics.median(own[1:]), statistics.median(other[1:])
            print(
                f"single_batch          {count:>9,} rows   {mine * 1000:>8.1f} ms   PyIceberg "
                f"{theirs * 1000:>8.1f} ms   {mine / theirs:>5.2f} x   must be at most 1.2 x"
            )


def transaction_overhead(settings: Settings) -> None:
    rows = some_rows(1_000)
    together: list[float] = []
    apart: list[float] = []
    with (
        create_iceberg_writer(settings, "default", "default", "together") as one,
        create_iceberg_writer(settings, "default", "default", "apart") as ten,
    ):

        def in_one_transaction() -> None:
            with one.transaction():
                for _ in range(10):
                    one.write_batch(rows)

        def in_ten() -> None:
            for _ in range(10):
                ten.write_batch(rows)

        for turn in range(12):
            pair = [(together, in_one_transaction), (apart, in_ten)]
            for kept, work in pair if turn % 2 else pair[::-1]:
                kept.append(seconds(work))
    mine, theirs = statistics.median(together[1:]), statistics.median(apart[1:])
    print(
        f"transaction_overhead  10 batches of 1,000 rows {mine * 1000:>6.1f} ms   10 commits "
        f"{theirs * 1000:>8.1f} ms   {theirs / mine:>5.1f} times as fast   must be at least 5"
    )


def many_commits(settings: Settings) -> None:
    """The writing of a small data file is part of each."""
    rows = some_rows(10)
    with create_iceberg_writer(settings, "default", "default", "many") as writer:
        writer.write_batch(rows)
        took = [seconds(partial(writer.write_batch, rows)) for _ in range(COMMITS)]
    first, last = statistics.median(took[:WINDOW]), statistics.median(took[-WINDOW:])
    print(
        f"many_commits          {COMMITS:,} commits   p50 {statistics.median(took) * 1000:>6.1f} ms"
        f"   must be at most 80   last {WINDOW} to first {last / first:>5.2f} x   must be at most "
        "1.5 x"
    )


def write_batches(settings: Settings) -> None:
    """In a process of its own, whose memory is the writer's."""
    for bound in (BatchOptimizationConfig(), BatchOptimizationConfig(50_000, 32 * MIB)):
        arguments = [str(settings.data), str(bound.max_memory_per_batch_bytes), str(10 * GIB)]
        code = "import sys; from benchmarks.writer import stream; stream(*sys.argv[1:])"
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        print(run.stdout, end="")


def stream(data: str, memory_bytes: str, total_bytes: str) -> None:
    config = BatchOptimizationConfig(max_memory_per_batch_bytes=int(memory_bytes))
    bound = config.max_memory_per_batch_bytes * config.target_concurrent_batches
    rows = some_rows(50_000).combine_chunks().to_batches()[0]
    settings = load_settings(flags={"data": data}, environ={}).settings
    table = f"streamed_{int(memory_bytes) // MIB}"
    with create_iceberg_writer(settings, "default", "default", table, batch=config) as writer:
        writer.write_batch(rows)
        before = peak_bytes()
        started = time.perf_counter()
        done = writer.write_batches(_copies(rows, int(total_bytes)))
        took = time.perf_counter() - started
        more = peak_bytes() - before
        print(
            f"write_batches         {int(total_bytes) / GIB:.0f} GiB, {done.rows:,} rows, "
            f"{done.files} files in {took:.0f} s   memory {more / MIB:,.0f} MiB   bound "
            f"{bound / MIB:,.0f} MiB   {more / bound:>5.2f} x   must be at most 2 x"
        )
    with Lake(settings) as lake:
        lake.tables.drop_table(table, purge=True)


def _copies(rows: pa.RecordBatch, total_bytes: int) -> Iterator[pa.RecordBatch]:
    """Rows that nobody shares, as a source would hand them over."""
    order = pa.array(np.random.default_rng(1).permutation(rows.num_rows))
    for _ in range(max(1, total_bytes // rows.nbytes)):
        yield rows.take(order)


ALL = {
    each.__name__: each
    for each in (single_batch, transaction_overhead, many_commits, write_batches)
}


def main(chosen: list[str]) -> None:
    for name in chosen or ALL:
        with tempfile.TemporaryDirectory() as directory:
            ALL[name](load_settings(flags={"data": directory}, environ={}).settings)


if __name__ == "__main__":
    main(sys.argv[1:])
