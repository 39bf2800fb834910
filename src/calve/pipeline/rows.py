"""Entries of the log as rows of the topic's table, and as dead letters where they cannot be.

A row that does not go into the table is set aside alone; the others of its batch go in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from calve.tables.letter_columns import DEAD_LETTER_COLUMNS
from calve.topics.fit import ARROW_CONTENT_TYPE, arrow_stream
from calve.topics.log_rows import PLACE_FIELDS, Refused
from calve.topics.table_rows import placed_run, table_rows
from calve.wal import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from calve.topics.topic import Topic
    from calve.wal import Entry

_LETTERS_MAX: Final = 1_000
_LETTER_FIELDS: Final = pa.schema([*DEAD_LETTER_COLUMNS, *PLACE_FIELDS])


class DeadLetters(NamedTuple):
    """Rows of the table of dead letters."""

    rows: pa.Table


class TableRows:
    """What entries of one partition become in a table that has or gets these columns."""

    def __init__(self, topic: Topic, partition: int, schema: Schema, table: Table) -> None:
        self._topic = str(topic.name)
        self._partition = partition
        self._rows = table_rows(topic, schema, table)

    def of(self, run: list[Entry], set_aside: str = "") -> Iterator[pa.Table | DeadLetters]:
        """The rows of a run, each in the one or the other; with a reason to, all set aside."""
        rows = placed_run(run, self._partition)
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
