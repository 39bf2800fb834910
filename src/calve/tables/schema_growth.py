"""Schemas that grow with the rows written to a table: columns are added and types made wider.

`grown` goes by names, for rows that come in, and gives new columns ids that the table has never
used. `regrown` goes by ids, for files that were written with such a schema while others changed the
table: it says which schema holds both, or that the ids now stand for something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from calve.errors import InvalidRequest, SchemaConflict
from calve.tables.columns import check_names
from calve.tables.schema_file import schema_with
from calve.tables.schemas import check_schema
from calve.tables.types import type_name

_DIGITS_MAX: Final = 38


def grown(schema: Schema, incoming: Schema, *, last_column_id: int, widens: bool = True) -> Schema:
    """The schema with room for rows of another one; itself if it has that already.

    Unknown columns and fields are added, as optional ones. With `widens`, types become wider where
    Iceberg allows it. Whatever else differs stays as it is, for a conversion to try or refuse.
    """
    ids = count(max(last_column_id, schema.highest_field_id) + 1)
    fields = _ByName(ids, widens=widens).fields(schema.fields, incoming.fields)
    if fields == schema.fields:
        return schema
    made = schema_with(schema, fields, schema.schema_id)
    check_schema(made, kept=[field.name for field in schema.fields])
    return made


def regrown(metadata: TableMetadata, written: Schema) -> Schema:
    """The table's schema, with what files written with another one need besides.

    SchemaConflict if an id of theirs stands for another column now, or if the table has come to
    require what they lack.
    """
    current = metadata.schema()
    if written.fields == current.fields:
        return current
    fields = _ById(metadata).fields(current.fields, written.fields, "")
    if fields == current.fields:
        return current
    try:
        check_names([field.name for field in fields], what="column")
    except InvalidRequest as error:
        raise _conflict(error.message) from error
    return schema_with(current, fields, 1 + max(each.schema_id for each in metadata.schemas))


def widened(source: IcebergType, target: IcebergType) -> IcebergType | None:
    """The wider type that Iceberg lets a column of `source` take to hold `target`, if any."""
    match source, target:
        case IntegerType(), LongType():
            return target
        case FloatType(), DoubleType():
            return target
        case DecimalType(), DecimalType() if target.scale <= source.scale:
            digits = target.precision - target.scale + source.scale
            if source.precision < digits <= _DIGITS_MAX:
                return DecimalType(digits, source.scale)
    return None


def _retyped(field: NestedField, kind: IcebergType) -> NestedField:
    return field if kind == field.field_type else field.model_copy(update={"field_type": kind})


class _ByName:
    def __init__(self, ids: Iterator[int], *, widens: bool) -> None:
        self._ids = ids
        self._widens = widens

    def fields(
        self, own: Sequence[NestedField], incoming: Sequence[NestedField]
    ) -> tuple[NestedField, ...]:
        wanted = {field.name: field for field in incoming}
        known = {field.name for field in own}
        kept = [
            _retyped(field, self._type(field.field_type, wanted[field.name].field_type))
            if field.name in wanted
            else field
            for field in own
        ]
        return (*kept, *(self._new(field) for field in incoming if field.name not in known))

    def _new(self, field: NestedField) -> NestedField:
        optional = field.model_copy(update={"required": False})
        return assign_fresh_schema_ids(Schema(optional), lambda: next(self._ids)).fields[0]

    def _type(self, own: IcebergType, incoming: IcebergType) -> IcebergType:
        match own, incoming:
            case StructType(), StructType():
                return StructType(*self.fields(own.fields, incoming.fields))
            case ListType(), ListType():
                inside = self._type(own.element_type, incoming.element_type)
                return ListType(own.element_id, inside, own.element_required)
            case MapType(), MapType():
                # The keys of a map never change.
                value = self._type(own.value_type, incoming.value_type)
                return MapType(own.key_id, own.key_type, own.value_id, value, own.value_required)
        return (widened(own, incoming) if self._widens else None) or own


class _ById:
    def __init__(self, metadata: TableMetadata) -> None:
        self._last_id = metadata.last_column_id
        self._history = (metadata.schema(), *metadata.schemas)

    def fields(
        self, own: Sequence[NestedField], written: Sequence[NestedField], parent: str
    ) -> tuple[NestedField, ...]:
        found = {field.field_id: field for field in written}
        present = {field.field_id for field in own}
        return (
            *(self._merged(field, found.get(field.field_id), parent) for field in own),
            *(
                field
                for field in written
                if field.field_id not in present and self._is_new(field, parent)
            ),
        )

    def _merged(self, own: NestedField, written: NestedField | None, parent: str) -> NestedField:
        if own.required and (written is None or not written.required):
            raise _conflict(f"the column {parent + own.name!r} has come to be required")
        if written is None:
            return own
        path = parent + written.name
        if not self._has_known(written.field_id, path):
            raise _conflict(f"the id that {path!r} was to have is now that of {own.name!r}")
        return _retyped(own, self._type(own.field_type, written.field_type, path))

    def _is_new(self, field: NestedField, parent: str) -> bool:
        """Whether the table still has to get the field; one that somebody dropped stays so."""
        if field.field_id > self._last_id:
            return True
        if self._has_known(field.field_id, parent + field.name):
            return False
        raise _conflict(f"the id that {parent + field.name!r} was to have is taken")

    def _has_known(self, field_id: int, path: str) -> bool:
        return any(schema.find_column_name(field_id) == path for schema in self._history)

    def _type(self, own: IcebergType, written: IcebergType, path: str) -> IcebergType:
        match own, written:
            case StructType(), StructType():
                return StructType(*self.fields(own.fields, written.fields, f"{path}."))
            case ListType(), ListType():
                element = self._merged(own.element_field, written.element_field, f"{path}.")
                return ListType(own.element_id, element.field_type, own.element_required)
            case MapType(), MapType():
                key = self._merged(own.key_field, written.key_field, f"{path}.")
                value = self._merged(own.value_field, written.value_field, f"{path}.")
                return MapType(
                    own.key_id, key.field_type, own.value_id, value.field_type, own.value_required
                )
        if own == written or widened(written, own) == own:
            return own
        if widened(own, written) == written:
            return written
        raise _conflict(
            f"the column {path!r} is now {type_name(own)}, and was to be {type_name(written)}"
        )


def _conflict(what: str) -> SchemaConflict:
    return SchemaConflict(
        f"somebody else has changed the table's columns: {what}",
        hint="write the rows again for the columns that the table has now",
    )
