"""Rows of a log as offset commits want them, and the proof that a table has each of them once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from calve.tables.catalog import LakeCatalog
from calve.tables.data_files import write_data_files
from calve.tables.expiry import referred_files
from calve.tables.offsets import LogRange, RangeCommit, commit_range, range_operation_id
from calve.tables.positions import Position, committed_position
from calve.tables.staging import Edit

LOG = UUID("11111111-1111-4111-8111-111111111111")
OTHER_LOG = UUID("22222222-2222-4222-8222-222222222222")
SCHEMA = pa.schema(
    [
        pa.field("_calve_partition", pa.int32()),
        pa.field("_calve_offset", pa.int64()),
        pa.field("value", pa.string()),
    ]
)
# Waits are for machines that share a catalog, not for tests.
QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "5"}


def make_table(
    catalog: LakeCatalog, properties: dict[str, str] | None = None, *, name: str = "t"
) -> Table:
    return catalog.create_table(name, SCHEMA, properties=QUICK | (properties or {}))


def checksum(end: int) -> str:
    """Of the frame that ends there, in a log that has not changed."""
    return f"{end * 2654435761 % 2**32:08x}"


def log_range(start: int, end: int, *, partition: int = 0, log: UUID = LOG) -> LogRange:
    return LogRange(partition, log, start, end, checksum(end))


def batch(table: Table, rows: LogRange) -> pa.RecordBatch:
    """The rows, with null in columns that others have added."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "_calve_partition": rows.partition,
                "_calve_offset": offset,
                "value": f"{rows.partition}/{offset}",
            }
            for offset in range(rows.start, rows.end)
        ],
        schema=table.schema().as_arrow(),
    )


@dataclass(frozen=True)
class Parcel:
    """A range with its data files, none of them in the table yet; can be sent more than once."""

    rows: LogRange
    operation_id: str
    files: Sequence[DataFile]

    def send(self, table: Table, **options: Any) -> RangeCommit:
        edit = Edit(added=self.files)
        return commit_range(table, self.rows, edit, operation_id=self.operation_id, **options)

    def paths(self) -> list[Path]:
        return [Path(file.file_path.removeprefix("file://")) for file in self.files]


def parcel(table: Table, rows: LogRange) -> Parcel:
    operation_id = range_operation_id(rows)
    files = write_data_files(table, [batch(table, rows)], operation_id=operation_id)
    return Parcel(rows, operation_id, files)


def feed(table: Table, start: int, end: int, **options: Any) -> RangeCommit:
    """Write and commit one range."""
    rows = log_range(start, end, partition=options.pop("partition", 0))
    return parcel(table, rows).send(table, **options)


def position(table: Table, partition: int = 0) -> Position:
    found = committed_position(table, partition)
    assert found is not None
    return found


def offsets(table: Table, partition: int = 0) -> list[int]:
    rows = table.scan().to_arrow().to_pylist()
    return sorted(row["_calve_offset"] for row in rows if row["_calve_partition"] == partition)


def require_each_once(table: Table, end: int, partition: int = 0) -> None:
    """The table has every offset up to the end once, says so, and lacks no file."""
    found = Counter(offsets(table, partition))
    doubled = sorted(offset for offset, times in found.items() if times > 1)
    missing = sorted(set(range(end)) - found.keys())
    assert (doubled, missing, len(found)) == ([], [], end)
    assert position(table, partition).offset == end
    require_readable(table)


def require_readable(table: Table) -> None:
    """Every file that a kept snapshot needs is there."""
    for file in referred_files(table.io, table.metadata.snapshots):
        assert table.io.new_input(file).exists(), file


def data_files_on_disk(table: Table) -> set[str]:
    root = Path(table.location().removeprefix("file://"))
    return {path.name for path in root.rglob("*.parquet")}
