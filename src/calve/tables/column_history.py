"""What became of columns of a table that a topic feeds, whoever dropped or renamed them.

Calve's own commands record it in the table's properties (`column_memory`); what others do, with
PyIceberg or Spark, is told from the schemas that the table has had, by the ids of its columns, and
recorded by the next commit of rows: a schema that was removed from the metadata tells nothing any
more. Those from before a topic fed the table do not count.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pyiceberg.types import ListType, MapType, StructType

from calve.tables.column_memory import DROPPED, RENAMED, ColumnMemory
from calve.tables.columns import OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType, NestedField

    from calve.tables.column_memory import Path


def memory_of(table: Table) -> ColumnMemory:
    """What is recorded, and what the schemas of before tell. A column that is there is itself."""
    recorded = ColumnMemory.parse(table.properties)
    metadata = table.metadata
    current = metadata.schema()
    earlier = [
        schema
        for schema in reversed(metadata.schemas)
        if schema.schema_id != current.schema_id and _is_fed(schema)
    ]
    if not earlier and not recorded.dropped and not recorded.renamed:
        return recorded
    history = _History(current)
    for schema in earlier:
        history.look_at(schema.as_struct(), ())
    return history.memory(recorded)


def unrecorded_memory(table: Table) -> dict[str, str]:
    """What became of columns, as properties, where only the schemas of before tell it."""
    memory = memory_of(table)
    return {} if memory == ColumnMemory.parse(table.properties) else memory.entries()


def memory_marks(table: Table) -> object:
    """Cheap to have, and another one whenever what `memory_of` says of a schema is another."""
    metadata = table.metadata
    ids = [schema.schema_id for schema in metadata.schemas]
    return metadata.table_uuid, ids, table.properties.get(DROPPED), table.properties.get(RENAMED)


class _History:
    """Collects what became of each name, from the newest schema to the oldest."""

    def __init__(self, current: Schema) -> None:
        self._paths = dict(_numbered(current.as_struct(), ()))
        self._present = frozenset(self._paths.values())
        self._dropped: set[Path] = set()
        self._renamed: dict[Path, Path] = {}

    def look_at(self, kind: IcebergType, parent: Path) -> None:
        """`parent` is where the fields lie now, so that a path is followed name by name."""
        for name, field in _fields(kind):
            column = (*parent, name)
            now = self._paths.get(field.field_id)
            is_told = column in self._present or column in self._dropped or column in self._renamed
            if not is_told and now is None:
                self._dropped.add(column)
            elif not is_told and now is not None:
                self._renamed[column] = now
            if now is not None:
                self.look_at(field.field_type, now)

    def memory(self, recorded: ColumnMemory) -> ColumnMemory:
        """With what is recorded of names of which no schema tells."""
        told = self._present | self._dropped | self._renamed.keys()
        before = {old: new for old, new in recorded.renamed.items() if old not in told}
        return ColumnMemory(
            frozenset(self._dropped | (recorded.dropped - told)),
            MappingProxyType({**before, **self._renamed}),
        )


def _is_fed(schema: Schema) -> bool:
    return any(field.name == OFFSET for field in schema.fields)


def _numbered(kind: IcebergType, parent: Path) -> Iterator[tuple[int, Path]]:
    for name, field in _fields(kind):
        column = (*parent, name)
        yield field.field_id, column
        yield from _numbered(field.field_type, column)


def _fields(kind: IcebergType) -> Iterator[tuple[str, NestedField]]:
    """Those inside of a type whose names may change; the keys of a map never do."""
    match kind:
        case StructType():
            yield from ((field.name, field) for field in kind.fields)
        case ListType():
            yield "element", kind.element_field
        case MapType():
            yield "value", kind.value_field
