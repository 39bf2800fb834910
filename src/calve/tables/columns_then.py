"""A view's columns as its snapshot has them, and its rows as the columns are called now.

Whoever reads a snapshot by its id gets the columns of its time. A table, and a branch, may have got
others since: columns that came are null in such rows, and those that were renamed or widened are
found by their ids.
"""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from calve.tables.answer_types import result_schema
from calve.tables.inputs.convert import converter
from calve.tables.views import TableView


class ColumnsThen:
    """The columns to be read for a view, in its snapshot's own names and types."""

    def __init__(self, view: TableView) -> None:
        self._now = view.schema
        fields = {field.field_id: field for field in _schema_then(view).fields}
        found = [fields[each.field_id] for each in self._now.fields if each.field_id in fields]
        # How many rows there are must be known, also if no column is as old as they are.
        self.schema = Schema(*(found or list(fields.values())[:1]))

    @cached_property
    def is_now(self) -> bool:
        """Whether they are the view's columns, one by one."""
        return list(map(_meaning, self.schema.fields)) == list(map(_meaning, self._now.fields))

    def has(self, names: tuple[str, ...]) -> bool:
        """Whether columns of these names are what the view means by them."""
        then = {field.name: _meaning(field) for field in self.schema.fields}
        now = {field.name: _meaning(field) for field in self._now.fields}
        return all(name in then and then[name] == now[name] for name in names)

    def as_now(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with these columns, under the view's."""
        typed = self._typed(batch)
        if self.is_now:
            return typed
        # Loading it waits until a table needs it.
        from pyiceberg.io.pyarrow import _to_requested_schema

        from calve.tables.projection import mend_projection

        mend_projection()
        return _to_requested_schema(self._now, self.schema, typed)

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """As Iceberg has the types: an engine that has no uuids gives their text."""
        columns = [
            converter(column.type, field.type)(column)
            for column, field in zip(batch.columns, self._arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    @cached_property
    def _arrow(self) -> pa.Schema:
        return result_schema(self.schema)


def _meaning(field: NestedField) -> tuple[int, str, IcebergType]:
    return field.field_id, field.name, field.field_type


def _schema_then(view: TableView) -> Schema:
    at = view.snapshot.schema_id if view.snapshot else None
    schemas = view.table.schemas()
    return schemas[at] if at in schemas else view.table.schema()
