"""Rows that a topic's table could not take, committed as the pipeline commits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import pyarrow as pa
from pyiceberg.table import Table

from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.data_files import write_data_files
from calve.tables.dead_letters import (
    PendingDeadLetters,
    ensure_dead_letter_table,
    named_dead_letters,
    no_dead_letters,
)
from calve.tables.footers import described_files
from calve.tables.offsets import LogRange, commit_range, range_operation_id
from calve.tables.positions import committed_position
from calve.tables.schemas import arrow_schema
from calve.tables.staging import Edit
from tests.fakes.topic_table import LOG, data_files, topic_rows

NDJSON = "application/x-ndjson"
SEEN_AT = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Letter:
    """What was set aside."""

    original: bytes = b'{"id": "x"}'
    reason: str = "column 'id': 'x' is no number"
    content_type: str = NDJSON
    at: datetime = SEEN_AT


def letter_rows(
    table: Table, topic: TableName, letters: Mapping[int, Letter], partition: int = 0
) -> pa.Table:
    rows = [
        {
            "topic": str(topic),
            "reason": each.reason,
            "content_type": each.content_type,
            "original": each.original,
            "_calve_partition": partition,
            "_calve_offset": offset,
            "_calve_ingested_at": each.at,
        }
        for offset, each in sorted(letters.items())
    ]
    return pa.Table.from_pylist(rows, schema=arrow_schema(table.schema()))


def commit_main(
    catalog: LakeCatalog,
    topic: TableName,
    rows: Sequence[int],
    letters: Mapping[int, Letter],
    *,
    partition: int = 0,
    end: int | None = None,
    log: UUID = LOG,
) -> None:
    """The commit to the topic's table: its rows, and the names of the files of the others."""
    table = catalog.load_table(topic)
    position = committed_position(table, partition)
    end = max([*rows, *letters]) + 1 if end is None else end
    range_ = LogRange(partition, log, position.offset if position else 0, end, "")
    operation = range_operation_id(range_)
    properties = no_dead_letters(partition)
    if letters:
        dead = ensure_dead_letter_table(catalog, topic)
        batches = letter_rows(dead, topic, letters, partition).to_batches()
        files = write_data_files(dead, batches, operation_id=operation)
        paths = tuple(file.file_path for file in files)
        properties = PendingDeadLetters(
            start=range_.start, end=end, operation=operation, files=paths
        ).entry(partition)
    added = data_files(table, topic_rows(rows, partition)) if rows else []
    edit = Edit(added=added, properties=properties)
    commit_range(table, range_, edit, operation_id=operation)


def commit_pending(catalog: LakeCatalog, topic: TableName, partition: int = 0) -> None:
    """The commit to the dead-letter table that follows, as a new driver does it."""
    table = catalog.load_table(topic)
    pending = named_dead_letters(table.properties, partition)
    position = committed_position(table, partition)
    if pending is None or position is None:
        return
    dead = ensure_dead_letter_table(catalog, topic)
    reached = committed_position(dead, partition)
    start = reached.offset if reached else 0
    if start >= pending.end:
        return
    files = described_files(dead, pending.files)
    range_ = LogRange(partition, position.log, start, pending.end, "")
    commit_range(dead, range_, Edit(added=files), operation_id=pending.operation)


def set_aside(
    catalog: LakeCatalog,
    topic: TableName,
    letters: Mapping[int, Letter],
    *,
    rows: Sequence[int] = (),
    partition: int = 0,
    end: int | None = None,
    log: UUID = LOG,
) -> None:
    """Both commits of one range."""
    commit_main(catalog, topic, rows, letters, partition=partition, end=end, log=log)
    commit_pending(catalog, topic, partition)
