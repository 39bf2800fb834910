"""Tables as a job carries them to its tasks, and back again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.pipeline.work import TableShape
from calve.tables.detached import detached_table, slim_metadata, store_properties
from calve.tables.schemas import schema_to_json

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


def shape_of(table: Table, schema: Schema | None = None) -> TableShape:
    """What a task has to know of a table; `schema` is the one that its commit will bring."""
    return TableShape(
        name=".".join(table.name()),
        location=table.location(),
        metadata=slim_metadata(table),
        schema=schema_to_json(schema or table.schema()),
        io=store_properties(table),
    )


def table_of(shape: TableShape) -> Table:
    """A table without a catalog, good for writing data files."""
    name = tuple(shape.name.split("."))
    return detached_table(name, shape.metadata, shape.io, shape.location)
