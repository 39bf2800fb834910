"""A table that a topic feeds, made and filled without a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from calve.maintenance import coverage
from calve.model import TableName
from calve.settings import Settings
from calve.state import open_state
from calve.tables.catalog import LakeCatalog
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.offsets import LogRange, commit_range, range_operation_id
from calve.tables.positions import committed_position
from calve.tables.ranges import Ranges
from calve.tables.schemas import arrow_schema
from calve.tables.staging import Edit
from calve.topics import TopicSpec
from calve.topics.registry import TopicRegistry

LOG = UUID(int=7)
NOTHING = Ranges()
SCHEMA = Schema(
    NestedField(1, "_calve_partition", IntegerType()),
    NestedField(2, "_calve_offset", LongType()),
    NestedField(3, "_calve_ingested_at", TimestamptzType()),
    NestedField(4, "id", LongType()),
    NestedField(5, "name", StringType()),
)


def make_topic_table(catalog: LakeCatalog, name: str = "t", **properties: str) -> Table:
    given = {key.replace("__", "."): value for key, value in properties.items()}
    return catalog.create_table(
        name,
        SCHEMA,
        properties={
            "calve.topic": f"default.default.{name}",
            "write.metadata.metrics.column._calve_offset": "full",
            "commit.retry.min-wait-ms": "1",
            **given,
        },
    )


def register_topic(settings: Settings, name: str = "t") -> None:
    """Have the state know the table's topic, which has no rows in any log."""
    with closing(open_state(settings)) as state:
        TopicRegistry(state).create(TableName.parse(name), TopicSpec(schema={"id": "long"}))


def topic_rows(offsets: Iterable[int | None], partition: int = 0) -> pa.Table:
    """One row for each offset; `id` is the offset too."""
    listed = list(offsets)
    partitions = [None if each is None else partition for each in listed]
    columns: dict[str, Sequence[Any]] = {
        "_calve_partition": partitions,
        "_calve_offset": listed,
        "_calve_ingested_at": [None] * len(listed),
        "id": listed,
        "name": [f"n{each}" for each in listed],
    }
    schema = arrow_schema(SCHEMA)
    return pa.table([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def data_files(table: Table, rows: pa.Table) -> list[DataFile]:
    return write_data_files(table, rows.to_batches(), operation_id=new_operation_id("offsets"))


def feed(
    catalog: LakeCatalog,
    offsets: Iterable[int],
    *,
    name: str = "t",
    partition: int = 0,
    end: int | None = None,
    log: UUID = LOG,
    checksum: str = "",
    lost: Ranges = NOTHING,
) -> int:
    """Commit rows with these offsets, as all that the log had up to `end`; the snapshot's id."""
    listed = list(offsets)
    table = catalog.load_table(name)
    position = committed_position(table, partition)
    start = position.offset if position else 0
    end = max(listed) + 1 if end is None else end
    rows = LogRange(partition, log, start, end, checksum, lost)
    files = data_files(table, topic_rows(listed, partition))
    operation = range_operation_id(rows)
    return commit_range(table, rows, Edit(added=files), operation_id=operation).position.snapshot_id


@contextmanager
def small_chunks() -> Iterator[None]:
    """Have the auditor settle what it has counted after few offsets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coverage, "CHUNK_OFFSETS", 64)
        patch.setattr(coverage, "_FULL", np.full(8, 0xFF, np.uint8))
        patch.setattr(coverage, "_RUN_OFFSETS_MIN", 4)
        yield
