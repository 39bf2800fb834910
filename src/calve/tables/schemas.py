"""What a table is made from: schema, partitioning, sort order and properties.

`define_table` reads a PyIceberg schema, an Arrow schema, a mapping of names to types or a JSON
file, and refuses what would make a table that cannot be written or that Spark cannot read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from calve.errors import InvalidRequest
from calve.tables.columns import check_columns, check_names
from calve.tables.parquet_options import check_parquet_property
from calve.tables.schema_file import (
    STANDARD_INPUT,
    SchemaFile,
    read_schema_file,
    read_standard_input,
    schema_of,
    schema_with,
)
from calve.tables.transforms import partition_spec, sort_order
from calve.tables.types import parse_type, type_name

ColumnTypes: TypeAlias = Mapping[str, str | IcebergType | pa.DataType]
SchemaSource: TypeAlias = Schema | pa.Schema | ColumnTypes | str | PathLike[str]

_FORMAT_VERSION: Final = 2
_CODECS: Final = ("zstd", "gzip", "snappy", "lz4", "brotli", "uncompressed")


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """Everything that `create_table` needs besides a name."""

    schema: Schema
    partition_spec: PartitionSpec
    sort_order: SortOrder
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    partition_by: Sequence[str] = ()  # the two of them as they were written
    sort_by: Sequence[str] = ()


def define_table(
    source: SchemaSource | TableDefinition,
    *,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> TableDefinition:
    """Check a schema and all that goes with it.

    A path names a JSON file, `-` standard input. What is given here comes before what the file
    says: `partition_by` and `sort_by` replace the file's, `properties` are added to it. A
    definition is complete.
    """
    if isinstance(source, TableDefinition):
        _refuse_more(partition_by, sort_by, properties)
        return source
    written = _read(source)
    check_schema(written.schema)
    # Ids of its own; those that name the identifier fields go along.
    schema = assign_fresh_schema_ids(written.schema)
    partitions = _expressions(partition_by, "partition_by") or written.partition_by
    order = _expressions(sort_by, "sort_by") or written.sort_by
    return TableDefinition(
        schema=schema,
        partition_spec=partition_spec(partitions, schema),
        sort_order=sort_order(order, schema),
        partition_by=tuple(partitions),
        sort_by=tuple(order),
        properties=MappingProxyType(_properties({**written.properties, **(properties or {})})),
    )


def _refuse_more(*given: object) -> None:
    if any(given):
        raise InvalidRequest(
            "a table's definition has its partitioning, sort order and properties already",
            hint="name them where it is made",
        )


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema in which rows for this table are handed over."""
    # Loading it waits until there are rows.
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    converted: pa.Schema = schema_to_pyarrow(schema, include_field_ids=False)
    return converted


def schema_to_json(schema: Schema) -> str:
    """Iceberg's own form, with the ids of all columns."""
    return schema.model_dump_json()


def schema_from_json(text: str) -> Schema:
    """What `schema_to_json` wrote; ValueError if it did not."""
    return Schema.model_validate_json(text)


def without(schema: Schema, name: str) -> Schema:
    """The schema without one of its columns."""
    left = [field for field in schema.fields if field.name != name]
    return schema_with(schema, left, schema.schema_id)


def with_renamed(schema: Schema, name: str, new_name: str) -> Schema:
    """The schema with another name for one of its columns."""
    fields = [
        field.model_copy(update={"name": new_name}) if field.name == name else field
        for field in schema.fields
    ]
    check_columns([field.name for field in fields])
    return schema_with(schema, fields, schema.schema_id)


def _read(source: SchemaSource) -> SchemaFile:
    if isinstance(source, str | PathLike):
        # Only the bare text: `./-` is a file, and a Path no longer tells.
        return read_standard_input() if source == STANDARD_INPUT else read_schema_file(Path(source))
    return SchemaFile(_schema(source))


def _schema(source: object) -> Schema:
    if isinstance(source, Schema):
        return source
    if isinstance(source, pa.Schema):
        return schema_from_arrow(source)
    if isinstance(source, Mapping):
        return _from_mapping(source)
    raise InvalidRequest(
        f"a schema cannot be made from {type(source).__name__}",
        hint="give a PyIceberg schema, an Arrow schema, {name: type}, or the path of a JSON file",
    )


def schema_from_arrow(source: pa.Schema) -> Schema:
    """The Iceberg schema for an Arrow schema, with ids of its own."""
    fields = [
        NestedField(
            number,
            column.name,
            _column_type(column.name, column.type),
            required=not column.nullable,
            doc=_doc(column),
        )
        for number, column in enumerate(source, 1)
    ]
    return schema_of(fields)


def _doc(column: pa.Field) -> str | None:
    doc = (column.metadata or {}).get(b"doc")
    return doc.decode("utf-8", "replace") if doc else None


def _from_mapping(source: Mapping[object, object]) -> Schema:
    fields = []
    for number, (name, kind) in enumerate(source.items(), 1):
        if not isinstance(name, str):
            raise InvalidRequest(f"column name {name!r} is not text", hint="write {name: type}")
        fields.append(NestedField(number, name, _column_type(name, kind), required=False))
    return schema_of(fields)


def _column_type(name: str, kind: Any) -> IcebergType:
    try:
        return parse_type(kind)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"column {name!r}: {error.message}", hint=error.hint, context={"column": name}
        ) from error


def check_schema(schema: Schema, *, kept: Collection[str] = ()) -> None:
    """Refuse what would make a table that cannot be written, or that Spark cannot read."""
    if not schema.fields:
        raise InvalidRequest("a table needs at least one column", hint="name one in the schema")
    check_columns([column.name for column in schema.fields], kept=kept)
    for column in schema.fields:
        _check_type(column.field_type, column.name)


def _check_type(source: IcebergType, column: str) -> None:
    if source.minimum_format_version() > _FORMAT_VERSION:
        raise InvalidRequest(
            f"column {column!r}: {type_name(source)} needs a table of format "
            f"{source.minimum_format_version()}, and tables are written in {_FORMAT_VERSION}",
            hint="use timestamp or timestamptz, which keep microseconds; "
            "nanoseconds fit a long beside them",
            context={"column": column},
        )
    if isinstance(source, StructType):
        if not source.fields:
            raise InvalidRequest(
                f"column {column!r}: a struct needs at least one field",
                hint="name its fields, or leave the column out",
                context={"column": column},
            )
        check_names([part.name for part in source.fields], what="field")
        for part in source.fields:
            _check_type(part.field_type, column)
    elif isinstance(source, ListType):
        _check_type(source.element_type, column)
    elif isinstance(source, MapType):
        _check_type(source.key_type, column)
        _check_type(source.value_type, column)


def _expressions(given: Sequence[str], what: str) -> Sequence[str]:
    if isinstance(given, str):
        raise InvalidRequest(f"{what} is one text", hint=f"write {what}=[{given!r}]")
    return tuple(given)


def _properties(given: Mapping[Any, Any]) -> dict[str, str]:
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidRequest(
                f"property {key!r} is not text", hint="properties map text to text"
            )
        if not _is_unicode(key + value):
            raise InvalidRequest(
                f"property {key!r} is not valid Unicode",
                hint="write it in UTF-8; the terminal or the script may use another encoding",
            )
        _check_property(key, value)
    return dict(given)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_property(key: str, value: str) -> None:
    """Refuse what would keep everybody from writing to the table."""
    if key == "format-version" and value not in {"1", str(_FORMAT_VERSION)}:
        raise InvalidRequest(
            f"property {key!r} is {value!r}", hint=f"tables are written in format {_FORMAT_VERSION}"
        )
    if key == "write.target-file-size-bytes" and not (value.isdecimal() and int(value) > 0):
        raise InvalidRequest(f"property {key!r} is {value!r}", hint="write a whole number of bytes")
    if key == "write.parquet.compression-codec" and value.lower() not in _CODECS:
        raise InvalidRequest(
            f"property {key!r} is {value!r}", hint=f"it can be {', '.join(_CODECS)}"
        )
    check_parquet_property(key, value)
