"""How fast the pipeline's tasks bring rows of the log into a table, beside others in the same run.

    .venv/bin/python -m benchmarks.pipeline [--rows 20000000] [--turns 3]

Rows of 6 columns and about 75 bytes, appended to a log first. Measured from the log to the commit,
on two cores: `run_pieces` and `commit_range`; pyarrow writing the same Parquet with two threads and
no Spark, the limit; Spark's Iceberg sink fed from the log by a data source in Python, and from
Parquet files of the same rows; and `run_pieces` into a table that is partitioned by day and sorted.
The claims: at least 55 % of pyarrow, 2.5 and 1.5 times Spark's sink, and 60 % of the plain rate
where partitioned and sorted. Ways take turns, and the median of each is compared.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from calve.lake import Lake
from calve.model import TableName
from calve.pipeline.job import run_pieces
from calve.pipeline.shapes import shape_of
from calve.pipeline.work import Piece
from calve.settings import load_settings
from calve.sources.place import LogPlace
from calve.tables.data_files import new_operation_id
from calve.tables.letter_columns import DEAD_LETTER_COLUMNS
from calve.tables.offsets import LogRange, commit_range
from calve.tables.schemas import schema_from_arrow
from calve.tables.staging import Edit
from calve.tables.transforms import partition_spec, sort_order
from calve.topics import Topic, TopicSpec
from calve.topics.log_rows import PLACE_FIELDS, placed
from calve.wal import LogReader

BATCH_ROWS = 10_000
TOPIC = TableName.parse("events")
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("user", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
PLACES = [pa.field(field.name, field.type) for field in PLACE_FIELDS]


def some_rows(random: np.random.Generator, start: int, count: int) -> pa.RecordBatch:
    """Events of three days, in their order."""
    ids = np.arange(start, start + count)
    kinds = pa.array([f"kind{n}" for n in range(12)])
    users = pa.array([f"user{n:06}" for n in range(100_000)])
    notes = pa.array([f"{n:x} went to {n * 7919 % 1000} and back" for n in range(50_000)])
    at = 1_700_000_000_000_000 + ids * 13_000 + random.integers(0, 10_000, count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids),
            pa.array(at).cast(pa.timestamp("us", "UTC")),
            users.take(pa.array(random.integers(0, 100_000, count))),
            kinds.take(pa.array(random.integers(0, 12, count))),
            pa.array(random.random(count)),
            notes.take(pa.array(random.integers(0, 50_000, count))),
        ],
        schema=COLUMNS,
    )


def fill(lake: Lake, rows: int) -> Topic:
    spec = TopicSpec(schema=COLUMNS)
    lake.intake.create_topic(TOPIC, spec)
    random = np.random.default_rng(0)
    for start in range(0, rows, BATCH_ROWS):
        lake.intake.submit(TOPIC, some_rows(random, start, BATCH_ROWS))
    lake.intake.log.flush()
    return lake.intake.topics.topic(TOPIC)


class Work:
    """One lake with its log, and the ways to get its rows into tables."""

    def __init__(self, lake: Lake, rows: int, pieces: int) -> None:
        self._lake = lake
        self._rows = rows
        self._pieces = pieces
        self._topic = fill(lake, rows)
        self._session = lake.spark()
        self._names = iter(f"t{n}" for n in range(1_000))
        self.directory = Path(tempfile.mkdtemp(dir=lake.settings.data))

    def table(self, *, partition_by: tuple[str, ...] = (), sort_by: tuple[str, ...] = ()) -> Any:
        schema = schema_from_arrow(pa.schema([*self._topic.arrow_schema, *PLACES]))
        catalog = self._lake.catalog.iceberg
        catalog.create_namespace_if_not_exists(("default", "default"))
        return catalog.create_table(
            ("default", "default", next(self._names)),
            schema,
            partition_spec=partition_spec(partition_by, schema),
            sort_order=sort_order(sort_by, schema),
        )

    def drop(self, table: Any) -> None:
        self._lake.catalog.iceberg.purge_table(table.name())

    def pieces(self, table: Any, rows: int) -> list[Piece]:
        binding = self._topic.partitions[0]
        place = LogPlace(
            log_id=binding.log_id,
            stream_id=binding.stream_id,
            directory=str(self._lake.settings.wal.path),
        )
        letters = self._lake.catalog.iceberg.create_table_if_not_exists(
            ("default", "default", "events__dead_letters"),
            schema_from_arrow(pa.schema([*DEAD_LETTER_COLUMNS, *PLACES])),
        )
        bounds = np.linspace(0, rows, self._pieces + 1).astype(int).tolist()
        return [
            Piece(
                number=number,
                topic=self._topic,
                partition=0,
                place=place,
                start=start,
                end=end,
                table=shape_of(table),
                dead_letters=shape_of(letters),
                operation_id=new_operation_id(f"offsets-0-{start}-{end}"),
                file_bytes=0,
            )
            for number, (start, end) in enumerate(pairwise(bounds))
        ]

    def warm_up(self) -> None:
        """Have Spark start its Python workers, which stay."""
        table = self.table()
        run_pieces(self._session, self.pieces(table, BATCH_ROWS), tasks_max=2)
        self.drop(table)

    def calve(self, table: Any) -> None:
        pieces = self.pieces(table, self._rows)
        done = run_pieces(self._session, pieces, tasks_max=2)
        assert not [each.problem for each in done if each.problem]
        files = [file for each in done for file in pickle.loads(each.files)]
        rows = LogRange(0, pieces[0].place.log_id, 0, self._rows, done[-1].checksum)
        commit_range(table, rows, Edit(added=files), operation_id=pieces[0].operation_id)

    def arrow_tables(self) -> list[pa.Table]:
        """The rows with where and when each came, as they are in the table, in two halves."""
        half = self._rows // 2
        return [self._read(0, half), self._read(half, self._rows)]

    def _read(self, start: int, end: int) -> pa.Table:
        reader = LogReader(Path(str(self._lake.settings.wal.path)))
        entries = reader.read(reader.stream(TOPIC), start, end)
        return placed([entry for entry in entries if entry.batch], 0)

    def pyarrow(self, halves: list[pa.Table]) -> None:
        def write(number: int) -> None:
            path = self.directory / f"peer-{number}.parquet"
            with pq.ParquetWriter(path, halves[number].schema, compression="zstd") as writer:
                writer.write_table(halves[number], row_group_size=1_048_576)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(write, range(2)))

    def sink(self, table: Any, *, from_log: bool) -> None:
        if from_log:
            reader = self._session.read.format("calve_log")
            options = {"directory": str(self._lake.settings.wal.path), "rows": str(self._rows)}
            frame = reader.options(**options).load()
        else:
            frame = self._session.read.parquet(str(self.directory))
        frame.writeTo(".".join(table.name())).append()


class LogSource(DataSource):
    """The log's rows for Spark, in Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return "calve_log"

    def schema(self) -> str:
        return (
            "id long, at timestamp, user string, kind string, amount double, note string, "
            "_calve_partition int, _calve_offset long, _calve_ingested_at timestamp"
        )

    def reader(self, schema: Any) -> DataSourceReader:
        return LogSourceReader(self.options["directory"], int(self.options["rows"]))


class LogSourceReader(DataSourceReader):
    def __init__(self, directory: str, rows: int) -> None:
        self._directory = directory
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(half) for half in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        half = self._rows // 2
        reader = LogReader(Path(self._directory))
        start = partition.value * half
        for entry in reader.read(reader.stream(TOPIC), start, start + half):
            yield from placed([entry], 0).to_batches()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(work: Work, turns: int) -> dict[str, float]:
    """The median seconds of each way."""
    halves = work.arrow_tables()
    sorted_by_day = {"partition_by": ("day(at)",), "sort_by": ("user",)}
    ways: dict[str, tuple[dict[str, Any], Callable[[Any], None]]] = {
        "calve": ({}, work.calve),
        "pyarrow": ({}, lambda _: work.pyarrow(halves)),
        "calve, by day and sorted": (sorted_by_day, work.calve),
        "Spark's sink, Python source": ({}, lambda table: work.sink(table, from_log=True)),
        "Spark's sink, Parquet": ({}, lambda table: work.sink(table, from_log=False)),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, (options, way) in ways.items():
            table = work.table(**options)
            took[name].append(seconds(lambda: way(table)))  # noqa: B023
            work.drop(table)
    return {name: statistics.median(each) for name, each in took.items()}


def report(rows: int, took: dict[str, float]) -> None:
    for name, spent in took.items():
        print(f"{name:<28} {rows / spent / 1e6:>6.2f} M rows/s   {spent:>7.1f} s")
    own = took["calve"]
    for text, ratio, wanted in (
        ("of pyarrow", took["pyarrow"] / own, 0.55),
        ("of Spark's sink, Python source", took["Spark's sink, Python source"] / own, 2.5),
        ("of Spark's sink, Parquet", took["Spark's sink, Parquet"] / own, 1.5),
        ("by day and sorted, of plain", own / took["calve, by day and sorted"], 0.6),
    ):
        print(f"{ratio:>6.2f} x {text:<32} must be at least {wanted}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--pieces", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        flags = {"data": directory, "spark.master": "local[2]", "wal.sync_mode": "none"}
        with Lake(load_settings(flags=flags, environ={}).settings) as lake:
            work = Work(lake, given.rows, given.pieces)
            lake.spark().dataSource.register(LogSource)
            work.warm_up()
            report(given.rows, measure(work, given.turns))


if __name__ == "__main__":
    main()
