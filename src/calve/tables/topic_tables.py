"""Tables that topics feed: made from a topic's columns, grown with them, and held against a topic.

Columns go by name, through what the table remembers of dropped and renamed ones. Every such table
has the system columns at its end, where readers find which offset a row had, and says whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.types import (
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
    TimestamptzType,
)
from pyiceberg.utils.properties import property_as_int

from calve.errors import Conflict, InvalidRequest
from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.column_history import memory_of
from calve.tables.column_memory import ColumnMemory, Path
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.feeding import TOPIC, feeding_topic
from calve.tables.schema_file import schema_with
from calve.tables.schema_growth import grown
from calve.tables.schemas import define_table
from calve.tables.staging import require_writable
from calve.tables.types import type_name

INGESTED_AT: Final = "_calve_ingested_at"
_SYSTEM_TYPES: Final[Mapping[str, IcebergType]] = {
    PARTITION: IntegerType(),
    OFFSET: LongType(),
    INGESTED_AT: TimestamptzType(),
}


def topic_properties(topic: TableName) -> dict[str, str]:
    """What says whose table it is, and lets readers prune by offset."""
    return {TOPIC: str(topic), f"write.metadata.metrics.column.{OFFSET}": "full"}


def create_topic_table(
    catalog: LakeCatalog,
    topic: TableName,
    schema: Schema,
    *,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    properties: Mapping[str, str],
) -> Table:
    """The topic's table, empty; or the one that somebody else has made for it just now."""
    definition = define_table(
        schema, partition_by=partition_by, sort_by=sort_by, properties=properties
    )
    columns = with_system_columns(definition.schema, definition.schema.highest_field_id)
    try:
        return catalog.create_table(
            topic,
            columns,
            partition_spec=definition.partition_spec,
            sort_order=definition.sort_order,
            properties={**definition.properties, **topic_properties(topic)},
        )
    except Conflict:
        return catalog.load_table(topic)


def require_topic_table(table: Table, topic: TableName, *, is_bound: bool) -> None:
    """Refuse a table that is not the topic's, or that its rows cannot go into."""
    require_writable(table)
    owner = feeding_topic(table)
    if owner != topic and not (is_bound and owner is None):
        whose = f"topic {owner} feeds it" if owner else "no topic feeds it"
        raise Conflict(
            f"the table {topic} is not that of topic {topic}: {whose}",
            hint=f"rename or drop that table; or `calve topic delete {topic}`, then `calve topic "
            f"create {topic} --table` has a topic's rows go into it",
            context={"table": str(topic), "topic": str(topic)},
        )
    for name, kind in _SYSTEM_TYPES.items():
        found = [field.field_type for field in table.schema().fields if field.name == name]
        if found and found[0] != kind:
            raise InvalidRequest(
                f"the column {name} of table {topic} is {type_name(found[0])}, and Calve's own "
                f"column of that name is {type_name(kind)}",
                hint=f"`calve table rename-column {topic}` gives yours another name",
                context={"column": name},
            )


def lacking_properties(table: Table, topic: TableName) -> dict[str, str]:
    """Those that a topic's table has to get with the next commit."""
    wanted = topic_properties(topic)
    return {name: value for name, value in wanted.items() if name not in table.properties}


def grown_for(table: Table, topic_schema: Schema) -> Schema:
    """The table's schema with room for a topic's rows; itself if it has that already."""
    memory = memory_of(table)
    last_id = table.metadata.last_column_id
    columns = with_system_columns(table.schema(), last_id)
    last_id = max(last_id, columns.highest_field_id)
    incoming = Schema(*_placed(topic_schema.fields, memory, ()))
    return grown(columns, incoming, last_column_id=last_id)


def with_system_columns(schema: Schema, last_column_id: int) -> Schema:
    """The schema with those of Calve's columns that it lacks; itself if it has them."""
    known = {field.name for field in schema.fields}
    ids = count(max(last_column_id, schema.highest_field_id) + 1)
    missing = [
        NestedField(next(ids), name, kind, required=False)
        for name, kind in _SYSTEM_TYPES.items()
        if name not in known
    ]
    if not missing:
        return schema
    return schema_with(schema, (*schema.fields, *missing), schema.schema_id)


def target_file_bytes(table: Table) -> int:
    """How large a data file of the table is meant to become."""
    found = property_as_int(
        table.properties,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
    )
    return found or TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT


def _placed(
    fields: Sequence[NestedField], memory: ColumnMemory, path: Path
) -> Iterable[NestedField]:
    """The fields under the names that the table has for them, without those that it dropped."""
    found: dict[str, NestedField] = {}
    for field in fields:
        here = (*path, field.name)
        place = memory.place(here)
        if place is not None:
            kind = _placed_type(field.field_type, memory, here)
            new = field.model_copy(update={"name": place[-1], "field_type": kind})
            found[new.name] = _joined(found[new.name], new) if new.name in found else new
    return found.values()


def _joined(field: NestedField, other: NestedField) -> NestedField:
    """Both as one: some producers send a column under its old name, and some under its new one."""
    known = Schema(field)
    return grown(known, Schema(other), last_column_id=known.highest_field_id).fields[0]


def _placed_type(kind: IcebergType, memory: ColumnMemory, path: Path) -> IcebergType:
    match kind:
        case StructType():
            return StructType(*_placed(kind.fields, memory, path))
        case ListType():
            inside = _placed_type(kind.element_type, memory, (*path, "element"))
            return ListType(kind.element_id, inside, kind.element_required)
        case MapType():
            value = _placed_type(kind.value_type, memory, (*path, "value"))
            return MapType(kind.key_id, kind.key_type, kind.value_id, value, kind.value_required)
    return kind
