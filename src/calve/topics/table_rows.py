"""What entries of a topic's log become in its table: decided here for whoever writes or reads them.

Entries that follow each other and have one schema are worked on together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from calve.tables.column_history import memory_of
from calve.tables.column_memory import ColumnMemory
from calve.tables.partitions import Room
from calve.tables.schemas import arrow_schema
from calve.tables.transforms import partition_spec
from calve.topics.log_rows import LogRows, Refused, placed
from calve.wal import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from calve.tables.column_memory import Path
    from calve.topics.topic import Topic
    from calve.wal import Entry

RUN_BYTES: Final = 8 * 1024 * 1024
_RUN_ENTRIES: Final = 4_096
# Below this, a copy costs less than what each batch costs by itself.
_SMALL_ROWS: Final = 2_048


def table_rows(topic: Topic, schema: Schema, table: Table | None) -> LogRows:
    """How rows of the topic's log go into its table with these columns, made already or not."""
    spec = partition_spec(topic.partition_by, schema) if table is None else table.spec()
    of_topic = topic.memory
    of_table = ColumnMemory() if table is None else memory_of(table)

    def place(column: Path) -> Path | None:
        inner = of_topic.place(column)
        return None if inner is None else of_table.place(inner)

    keeps_unknown = topic.on_unknown_column != "ignore"
    room = Room(spec, schema)
    return LogRows(arrow_schema(schema), place, keeps_unknown=keeps_unknown, room=room)


def placed_run(run: Sequence[Entry], partition: int) -> pa.Table:
    """The rows of a run with where and when each came, in batches that are worth their while."""
    rows = placed(run, partition)
    return rows.combine_chunks() if rows.num_rows < _SMALL_ROWS * len(run) else rows


def fitting_rows(rows: LogRows, run: Sequence[Entry], partition: int) -> Iterator[pa.RecordBatch]:
    """The rows of a run as the table has them, without those that go to the dead letters."""
    if run[0].kind != Kind.ROWS:
        return
    placed_rows = placed_run(run, partition)
    plan = rows.plan(placed_rows.schema)
    for batch in placed_rows.to_batches():
        yield from (part for part in plan.split(batch) if not isinstance(part, Refused))


def runs_of(entries: Iterable[Entry], bytes_max: int = RUN_BYTES) -> Iterator[list[Entry]]:
    """Entries that can be worked on together, about so many bytes; a hole is alone."""
    run: list[Entry] = []
    size = 0
    for entry in entries:
        if run and not _goes_with(run[0], entry):
            yield run
            run, size = [], 0
        run.append(entry)
        size += 0 if entry.batch is None else entry.batch.get_total_buffer_size()
        if size >= bytes_max or len(run) >= _RUN_ENTRIES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _goes_with(entry: Entry, other: Entry) -> bool:
    if entry.batch is None or other.batch is None:
        return False
    same_kind = entry.kind == other.kind
    return same_kind and bool(entry.batch.schema.equals(other.batch.schema))
