"""A table of a statement as DuckDB is told of it: a snapshot, and what the log has beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calve.query.engine import quoted
from calve.query.scan import iceberg_source
from calve.tables.answer_types import result_schema
from calve.tables.columns import OFFSET, OWN_PREFIX
from calve.tables.condition_columns import condition_columns
from calve.tables.engine_choice import Engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyiceberg.schema import Schema

    from calve.query.tail import Tail
    from calve.query.tail_rows import StreamedRows
    from calve.tables.engine_choice import Choice
    from calve.tables.lookup import OffsetRange
    from calve.tables.views import TableView

_FLOATING: Final = ("FLOAT", "DOUBLE")


@dataclass(frozen=True, slots=True)
class TableSource:
    """What of a table, and who reads it; `number` tells it apart in its statement."""

    number: int
    view: TableView
    choice: Choice
    ranges: Sequence[OffsetRange] | None = None  # outside of which nothing is asked for

    @property
    def stream_name(self) -> str:
        """What DuckDB knows it by if somebody else reads it."""
        return f"stream_{self.number}"

    def is_stream(self) -> bool:
        return self.view.snapshot is None or self.choice.engine is not Engine.DUCKDB


@dataclass(frozen=True, slots=True)
class Source:
    """A table, the tail of its topic, or both."""

    number: int
    table: TableSource | None
    tail: Tail | None = None

    @property
    def schema(self) -> Schema:
        """The columns: with a tail, also those that the table gets with the next commit."""
        if self.tail is not None:
            return self.tail.schema
        assert self.table is not None
        return self.table.view.schema

    @property
    def tail_name(self) -> str:
        return f"tail_{self.number}"

    def tail_rows(self) -> pa.Table | StreamedRows | None:
        """What DuckDB is to know by that name, if anything."""
        if self.tail is None or (self.tail.rows is None and self.table is not None):
            return None
        rows = self.tail.rows
        return result_schema(self.schema).empty_table() if rows is None else rows

    def own_columns(self) -> list[str]:
        return [name for name in self._names() if name.startswith(OWN_PREFIX)]

    def sql(self, *, with_own: bool, guarding_null: bool) -> str:
        hidden = () if with_own else self.own_columns()
        names = [name for name in self._names() if name not in hidden]
        parts: list[str] = []
        if self.table is not None:
            parts.append(self._table_sql(self.table, names, guarding_null=guarding_null))
        if self.tail_rows() is not None:
            # Guarded, so that it is not Arrow that chooses among the rows.
            listed = ", ".join(f"{_guarded(name)} AS {quoted(name)}" for name in names)
            parts.append(f"SELECT {listed} FROM {quoted(self.tail_name)}")  # noqa: S608
        return " UNION ALL ".join(parts)

    def _names(self) -> list[str]:
        return [field.name for field in self.schema.fields]

    def _table_sql(self, table: TableSource, names: list[str], *, guarding_null: bool) -> str:
        known = {field.name: field.field_type for field in table.view.schema.fields}
        wanted = {field.name: field.field_type for field in self.schema.fields}
        kinds = {column.name: column.type for column in condition_columns(self.schema)}

        def column(name: str) -> str:
            kind = kinds.get(name, "")
            if name not in known:
                return f"CAST(NULL AS {kind})" if kind else "NULL"
            is_guarded = guarding_null or any(word in kind for word in _FLOATING)
            text = _guarded(name) if is_guarded else quoted(name)
            return text if known[name] == wanted[name] else f"CAST({text} AS {kind})"

        listed = ", ".join(f"{column(name)} AS {quoted(name)}" for name in names)
        place = quoted(table.stream_name) if table.is_stream() else iceberg_source(table.view)
        whole = f"SELECT {listed} FROM {place}"  # noqa: S608
        if table.ranges is None or table.is_stream():
            return whole
        # One by one: by a condition with several ranges DuckDB leaves out no file.
        parts = [
            f"{whole} WHERE {quoted(OFFSET)} BETWEEN {each.first} AND {each.last}"
            for each in table.ranges
        ]
        return " UNION ALL ".join(parts) or f"{whole} WHERE false"


def _guarded(name: str) -> str:
    """The column, in a form from which DuckDB makes no filter of its own.

    Its filters skip files by bounds, which say nothing of NaN; and with `k IS DISTINCT FROM 1 OR
    k = 2` they skip files in which k is nothing but null.
    """
    column = quoted(name)
    return f"CASE WHEN {column} IS NULL THEN NULL ELSE {column} END"
