"""What the tests of the writer share: a writer of a test's own, and what it left on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from calve import BatchOptimizationConfig
from calve.lake import Lake
from calve.model import TableName
from calve.writer import IcebergTableWriter

# Small enough that a few thousand rows are files before anything is committed.
EAGER = BatchOptimizationConfig(max_rows_per_batch=500, max_memory_per_batch_bytes=8_000)


def writer_for(lake: Lake, table: str = "t", **options: Any) -> IcebergTableWriter:
    """One over the lake's own connections, so that a test can meddle with its catalog."""
    return IcebergTableWriter(lake._connections, TableName.parse(table), **options)


def rows(count: int, *, start: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + count), pa.int64())})


def ids(lake: Lake, table: str = "t") -> list[int]:
    found: list[int] = lake.catalog.load_table(table).scan().to_arrow()["id"].to_pylist()
    return sorted(found)


def read(lake: Lake, table: str = "t") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.catalog.load_table(table).scan().to_arrow().to_pylist()
    return found


def data_files(lake: Lake, table: str = "t") -> list[Path]:
    """The data files on disk, whoever they belong to."""
    place = Path(lake.catalog.load_table(table).location().removeprefix("file://"))
    return sorted(place.rglob("*.parquet"))


def snapshots(lake: Lake, table: str = "t") -> int:
    return len(lake.catalog.load_table(table).metadata.snapshots)
