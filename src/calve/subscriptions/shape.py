"""The rows that a reader wants, alike from both halves: which columns, and for which condition.

Columns are those that the table has, or gets with the next commit: both halves give a row the same
columns. When topic or table change, the shape is made anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from calve.condition import parse_condition
from calve.errors import InvalidRequest
from calve.query.row_filter import RowFilter
from calve.tables.column_history import memory_marks
from calve.tables.condition_columns import condition_columns
from calve.tables.nearest import meant
from calve.tables.schemas import arrow_schema
from calve.tables.topic_tables import grown_for, with_system_columns
from calve.topics.log_rows import PLACE_FIELDS
from calve.topics.table_rows import fitting_rows, table_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from calve.condition import Condition
    from calve.topics.log_rows import LogRows
    from calve.topics.topic import Topic
    from calve.wal import Entry

_PLACES: Final = tuple(field.name for field in PLACE_FIELDS)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is read of files and of the log, and what is handed out of it."""

    schema: Schema
    columns: tuple[str, ...]  # that are handed out
    needed: tuple[str, ...]  # that are read
    condition: Condition | None
    _log_rows: LogRows
    _rows: RowFilter | None
    _target: pa.Schema

    @property
    def handed_schema(self) -> pa.Schema:
        """That of the rows which are handed out."""
        return self._target

    def of_log(self, run: list[Entry], partition: int) -> pa.Table:
        """The wanted rows of a run, without those that go to the dead letters."""
        return self.chosen(fitting_rows(self._log_rows, run, partition))

    def chosen(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Those rows that the condition means, with the columns that are handed out."""
        found = [
            (batch if self._rows is None else self._rows.chosen(batch)).select(list(self.columns))
            for batch in batches
        ]
        return pa.Table.from_batches([batch for batch in found if batch.num_rows], self._target)


class Shaper:
    """Makes the shape for a topic and its table, and keeps it until they change. For one thread."""

    def __init__(self, where: str | None, columns: Sequence[str] | None) -> None:
        if isinstance(columns, str):
            raise InvalidRequest("columns is one text", hint=f"write columns=[{columns!r}]")
        self._where = where
        self._columns = None if columns is None else tuple(columns)
        self._made: tuple[object, Shape] | None = None
        self._filter: RowFilter | None = None

    def shape(self, topic: Topic, table: Table | None) -> Shape:
        """InvalidRequest if the filter, or a column, is none of theirs."""
        of_table = table and (table.schema(), table.spec(), memory_marks(table))
        key = (topic.id, topic.version, of_table)
        if self._made is not None and self._made[0] == key:
            return self._made[1]
        made = self._make(topic, table)
        self._made = key, made
        return made

    def close(self) -> None:
        if self._filter is not None:
            self._filter.close()
            self._filter = None

    def _make(self, topic: Topic, table: Table | None) -> Shape:
        if table is None:
            schema = with_system_columns(topic.schema, topic.last_column_id)
        else:
            schema = grown_for(table, topic.schema)
        known = [field.name for field in schema.fields]
        columns = known if self._columns is None else [*_found(self._columns, known), *_PLACES]
        condition = None
        if self._where is not None:
            condition = parse_condition(self._where, condition_columns(schema))
        used = set(columns) | set(condition.columns if condition else ())
        whole = arrow_schema(schema)
        handed = tuple(name for name in known if name in set(columns))
        self.close()
        if condition is not None:
            self._filter = RowFilter(condition)
        return Shape(
            schema,
            handed,
            tuple(name for name in known if name in used),
            condition,
            table_rows(topic, schema, table),
            self._filter,
            pa.schema([whole.field(name) for name in handed]),
        )


def _found(names: Sequence[str], known: Sequence[str]) -> list[str]:
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"there is no column {name!r}{meant(name, list(known))}",
                hint=f"the columns are {', '.join(known[:20])}",
                context={"column": name},
            )
    return list(names)
