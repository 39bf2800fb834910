"""Entries of the log as rows of the topic's table, and as dead letters where they cannot be.

Entries that follow each other and have one schema are worked on together. A row that does not go
into the table is set aside alone; the others of its batch go in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from calve.tables.column_memory import ColumnMemory
from calve.tables.letter_columns import DEAD_LETTER_COLUMNS
from calve.tables.schemas import arrow_schema
from calve.topics.fit import ARROW_CONTENT_TYPE, arrow_stream
from calve.topics.log_rows import PLACE_FIELDS, LogRows, Refused, placed
from calve.wal import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyiceberg.schema import Schema

    from calve.tables.column_memory import Path
    from calve.topics.topic import Topic
    from calve.wal import Entry

_RUN_BYTES: Final = 8 * 1024 * 1024
_RUN_ENTRIES: Final = 4_096
_LETTERS_MAX: Final = 1_000
# Below this, a copy costs less than what each batch costs by itself.
_SMALL_ROWS: Final = 2_048
_LETTER_FIELDS: Final = pa.schema([*DEAD_LETTER_COLUMNS, *PLACE_FIELDS])


class DeadLetters(NamedTuple):
    """Rows of the table of dead letters."""

    rows: pa.Table


class TableRows:
    """What entries of one partition become in a table with these columns and properties."""

    def __init__(
        self, topic: Topic, partition: int, schema: Schema, properties: Mapping[str, str]
    ) -> None:
        self._topic = str(topic.name)
        self._partition = partition
        of_topic, of_table = topic.memory, ColumnMemory.parse(properties)

        def place(column: Path) -> Path | None:
            inner = of_topic.place(column)
            return None if inner is None else of_table.place(inner)

        keeps_unknown = topic.on_unknown_column != "ignore"
        self._rows = LogRows(arrow_schema(schema), place, keeps_unknown=keeps_unknown)

    def of(self, run: list[Entry], set_aside: str = "") -> Iterator[pa.Table | DeadLetters]:
        """The rows of a run, each in the one or the other; with a reason to, all set aside."""
        rows = placed(run, self._partition)
        if rows.num_rows < _SMALL_ROWS * len(run):
            rows = rows.combine_chunks()
        if run[0].kind == Kind.REJECTED:
            yield self._letters(rows)
            return
        plan = None if set_aside else self._rows.plan(rows.schema)
        for batch in rows.to_batches():
            if plan is None:
                yield from self._refused(Refused(batch, set_aside))
                continue
            for part in plan.split(batch):
                if isinstance(part, Refused):
                    yield from self._refused(part)
                else:
                    yield pa.Table.from_batches([part])

    def _refused(self, refused: Refused) -> Iterator[DeadLetters]:
        count = refused.rows.num_rows
        for start in range(0, count, _LETTERS_MAX):
            part = refused.rows.slice(start, _LETTERS_MAX)
            own = part.drop_columns([field.name for field in PLACE_FIELDS])
            originals = [arrow_stream(own.slice(row, 1)) for row in range(part.num_rows)]
            letters = pa.table(
                {
                    "original": pa.array(originals, pa.binary()),
                    "content_type": pa.repeat(ARROW_CONTENT_TYPE, part.num_rows),
                    "reason": pa.repeat(refused.reason, part.num_rows),
                }
            )
            for field in PLACE_FIELDS:
                letters = letters.append_column(field, part.column(field.name))
            yield self._letters(letters)

    def _letters(self, rows: pa.Table) -> DeadLetters:
        """Rows that have everything but the topic."""
        named = rows.append_column("topic", pa.repeat(self._topic, rows.num_rows))
        return DeadLetters(named.select(_LETTER_FIELDS.names).cast(_LETTER_FIELDS))


def runs_of(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Entries that can be worked on together; a hole is alone."""
    run: list[Entry] = []
    size = 0
    for entry in entries:
        if run and not _goes_with(run[0], entry):
            yield run
            run, size = [], 0
        run.append(entry)
        size += 0 if entry.batch is None else entry.batch.get_total_buffer_size()
        if size >= _RUN_BYTES or len(run) >= _RUN_ENTRIES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _goes_with(entry: Entry, other: Entry) -> bool:
    if entry.batch is None or other.batch is None:
        return False
    same_kind = entry.kind == other.kind
    return same_kind and bool(entry.batch.schema.equals(other.batch.schema))
