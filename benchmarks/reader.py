"""Readers of a topic: history replayed, a start in the middle of many files, and live delay.

    .venv/bin/python -m benchmarks.reader [--rows 10000000] [--files 5000] [--live 2000]

History is held against PyIceberg's own scan of the same table to Arrow, in the same run; the two
take turns. Everything is in one process, on local files. Each figure that must be reached is told
with whether it was.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from calve.lake import Lake
from calve.model import TableName
from calve.settings import load_settings
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.offsets import LogRange, commit_range
from calve.tables.schemas import arrow_schema, schema_from_arrow
from calve.tables.staging import Edit
from calve.tables.topic_tables import create_topic_table
from calve.topics import TopicSpec

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("price", pa.float64()),
        pa.field("name", pa.string()),
        pa.field("city", pa.string()),
    ]
)
COMMIT_FILES = 500


@contextmanager
def new_lake() -> Iterator[Lake]:
    with tempfile.TemporaryDirectory() as directory:
        flags = {"data": directory, "wal.free_bytes_min": 0}
        with Lake(load_settings(flags=flags, environ={}).settings) as lake:
            yield lake


def rows_of(start: int, count: int, schema: pa.Schema) -> pa.RecordBatch:
    ids = np.arange(start, start + count)
    given = {
        "id": pa.array(ids),
        "price": pa.array(ids * 0.25),
        "name": pa.array([f"name-{n % 9973}" for n in range(count)]),
        "city": pa.array([f"city-{n % 97}" for n in range(count)]),
        "_calve_partition": pa.array(np.zeros(count, np.int32)),
        "_calve_offset": pa.array(ids),
        "_calve_ingested_at": pa.array(ids, pa.timestamp("us", tz="UTC")),
    }
    arrays = [given[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fill(lake: Lake, name: str, rows: int, files: int) -> None:
    """A topic whose rows are all in its table, in files of one size."""
    topic_name = TableName.parse(name)
    lake.intake.create_topic(topic_name, TopicSpec(schema=COLUMNS))
    lake.produce(name, {"id": [0]})
    topic = lake.intake.topics.topic(topic_name)
    # The table alone has the rows, as when the log has let go of them.
    log = lake.intake.log
    log.record_hole(log.stream(topic_name), 1, rows)
    table = create_topic_table(
        lake.catalog, topic_name, schema_from_arrow(COLUMNS), properties=topic.properties
    )
    schema = arrow_schema(table.schema())
    size = rows // files
    stream_id = topic.partitions[0].stream_id
    for first in range(0, files, COMMIT_FILES):
        numbers = range(first, min(first + COMMIT_FILES, files))
        operation = new_operation_id("offsets")
        written = [
            file
            for number in numbers
            for file in write_data_files(
                table, [rows_of(number * size, size, schema)], operation_id=f"{operation}-{number}"
            )
        ]
        committed = LogRange(0, stream_id, first * size, (numbers[-1] + 1) * size, "")
        table = commit_range(table, committed, Edit(added=written), operation_id=operation).table


def replay(lake: Lake, name: str, rows: int) -> float:
    """Rows in a second, from the first to the last, by a reader."""
    started = time.perf_counter()
    found = 0
    with lake.read(name) as reader:
        while found < rows:
            found += len(next(reader))
    assert found == rows
    return rows / (time.perf_counter() - started)


def scan(lake: Lake, name: str, rows: int) -> float:
    """The same by PyIceberg, all rows at once and in no order."""
    started = time.perf_counter()
    found = lake.catalog.load_table(name).scan().to_arrow().num_rows
    assert found == rows
    return rows / (time.perf_counter() - started)


def history(rows: int, rounds: int) -> None:
    for files in (max(1, rows // 1_000_000), max(1, rows // 50_000)):
        with new_lake() as lake:
            fill(lake, "orders", rows, files)
            told: dict[str, list[float]] = {"reader": [], "PyIceberg": []}
            for _ in range(rounds):
                told["reader"].append(replay(lake, "orders", rows))
                told["PyIceberg"].append(scan(lake, "orders", rows))
            ours, theirs = (statistics.median(each) for each in told.values())
            print(
                f"history of {rows:,} rows in {files:,} files: {ours / 1e6:.2f} M rows/s, "
                f"PyIceberg's scan {theirs / 1e6:.2f} M rows/s"
            )
            at_least("M rows/s of history", ours / 1e6, 1.0)
            at_least("% of PyIceberg's scan", ours / theirs * 100, 50)


def middle(files: int) -> None:
    with new_lake() as lake:
        fill(lake, "orders", files * 20, files)
        for which in ("first reader", "second reader"):
            started = time.perf_counter()
            with lake.read("orders", files * 10 + 7) as reader:
                next(reader)
                took = time.perf_counter() - started
                opened = reader.stats.files_opened
            print(
                f"start in the middle of {files:,} files, {which}: {took * 1000:.0f} ms to the "
                f"first row, {opened} data files opened"
            )
            at_most("data files opened before the first row", opened, 3)


def live(count: int) -> None:
    with new_lake() as lake:
        lake.produce("orders", {"sent_at": [0]})
        delays: list[float] = []

        def follow() -> None:
            with lake.read("orders", "latest") as reader:
                ready.set()
                while len(delays) < count:
                    batch = next(reader)
                    now = time.perf_counter_ns()
                    sent = batch.to_arrow()["sent_at"].to_pylist()
                    delays.extend((now - each) / 1e6 for each in sent)

        ready = threading.Event()
        thread = threading.Thread(target=follow)
        thread.start()
        ready.wait()
        for _ in range(count):
            lake.produce("orders", {"sent_at": [time.perf_counter_ns()]})
            time.sleep(0.005)
        thread.join()
        print(f"produced to delivered, {len(delays):,} single rows: {quantiles(delays)}")
        in_time(delays)


def quantile(delays: list[float], share: float) -> float:
    return sorted(delays)[int(len(delays) * share)]


def quantiles(delays: list[float]) -> str:
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return ", ".join(f"{name} {quantile(delays, each):.2f} ms" for name, each in shares.items())


def in_time(delays: list[float]) -> None:
    at_most("ms to a live reader, p50", quantile(delays, 0.5), 5)
    at_most("ms to a live reader, p99", quantile(delays, 0.99), 50)


def at_least(what: str, figure: float, wanted: float) -> None:
    _judge(what, figure, f"at least {wanted:g}", is_reached=figure >= wanted)


def at_most(what: str, figure: float, wanted: float) -> None:
    _judge(what, figure, f"at most {wanted:g}", is_reached=figure <= wanted)


def _judge(what: str, figure: float, wanted: str, *, is_reached: bool) -> None:
    word = "reached" if is_reached else "MISSED"
    print(f"  {figure:>10.2f} {what:<48} must be {wanted}: {word}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=5_000)
    parser.add_argument("--live", type=int, default=2_000)
    given: Any = parser.parse_args()
    history(given.rows, given.rounds)
    middle(given.files)
    live(given.live)


if __name__ == "__main__":
    main()
