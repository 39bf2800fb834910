"""What the pipeline does with one topic, without Spark: its rows and its dead letters, committed."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

from calve.errors import NotFound
from calve.ingest import Intake
from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.data_files import write_data_files
from calve.tables.dead_letters import (
    PendingDeadLetters,
    ensure_dead_letter_table,
    no_dead_letters,
)
from calve.tables.offsets import LogRange, commit_range, range_operation_id
from calve.tables.positions import committed_position
from calve.tables.schema_growth import grown
from calve.tables.schemas import arrow_schema
from calve.tables.staging import Edit
from calve.wal import Entry, Kind
from tests.fakes.dead_letters import Letter, commit_pending, letter_rows


def drain(intake: Intake, catalog: LakeCatalog, topic: TableName) -> int:
    """Bring what the log has into both tables; the offset that they have come to."""
    table = _table(intake, catalog, topic)
    commit_pending(catalog, topic, intake.partition)
    position = committed_position(table, intake.partition)
    start = position.offset if position else 0
    intake.log.flush()
    end = intake.offsets(topic).durable
    if start == end:
        return end
    known = intake.topics.topic(topic)
    log = known.partitions[intake.partition].stream_id
    range_ = LogRange(intake.partition, log, start, end, "")
    operation = range_operation_id(range_)
    batches: list[pa.RecordBatch] = []
    letters: dict[int, Letter] = {}
    schema = grown(table.schema(), known.schema, last_column_id=table.metadata.last_column_id)
    for entry in intake.read(topic, start, end):
        if entry.kind == Kind.REJECTED:
            for offset, each in enumerate(entry.rejected, entry.first_offset):
                letters[offset] = Letter(
                    original=each.original,
                    reason=each.reason,
                    content_type=each.content_type,
                    at=entry.ingested_at,
                )
        elif entry.kind == Kind.ROWS:
            batches.append(_numbered(entry, arrow_schema(schema), intake.partition))
    properties = no_dead_letters(intake.partition)
    if letters:
        dead = ensure_dead_letter_table(catalog, topic)
        rows = letter_rows(dead, topic, letters, intake.partition)
        files = write_data_files(dead, rows.to_batches(), operation_id=operation)
        named = tuple(file.file_path for file in files)
        pending = PendingDeadLetters(start=start, end=end, operation=operation, files=named)
        properties = pending.entry(intake.partition)
    added = write_data_files(table, batches, operation_id=operation, schema=schema)
    edit = Edit(added=added, properties=properties, schema=schema)
    commit_range(table, range_, edit, operation_id=operation)
    commit_pending(catalog, topic, intake.partition)
    return end


def _table(intake: Intake, catalog: LakeCatalog, topic: TableName) -> Table:
    try:
        return catalog.load_table(topic)
    except NotFound:
        own = intake.topics.topic(topic).schema.fields
        last = max(field.field_id for field in own)
        schema = Schema(
            *own,
            NestedField(last + 101, "_calve_partition", IntegerType()),
            NestedField(last + 102, "_calve_offset", LongType()),
            NestedField(last + 103, "_calve_ingested_at", TimestamptzType()),
        )
        properties = {
            "calve.topic": str(topic),
            "write.metadata.metrics.column._calve_offset": "full",
        }
        return catalog.create_table(topic, schema, properties=properties)


def _numbered(entry: Entry, schema: pa.Schema, partition: int) -> pa.RecordBatch:
    assert entry.batch is not None
    count = entry.batch.num_rows
    given = {
        **{name: entry.batch.column(name) for name in entry.batch.schema.names},
        "_calve_partition": pa.array([partition] * count),
        "_calve_offset": pa.array(range(entry.first_offset, entry.end_offset)),
        "_calve_ingested_at": pa.array([entry.ingested_at] * count),
    }
    columns = [
        given[field.name].cast(field.type) if field.name in given else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
