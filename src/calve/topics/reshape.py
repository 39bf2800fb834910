"""Columns as a topic knows them: dropped ones left out, renamed ones under their new name.

Inside of structs, lists and maps too. Decided once from the types; the functions that come of it
then work on any number of arrays. What has no values, because its type is null, is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from calve.tables.inputs.convert import list_array, map_parts, offsets_of
from calve.tables.types import is_list_like

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.tables.column_memory import Path
    from calve.tables.inputs.convert import Convert


class Shaped(NamedTuple):
    """A type as the topic is to see it; `convert` is None where arrays stay as they are."""

    type: pa.DataType
    convert: Convert | None = None

    def then(self, convert: Convert) -> Convert:
        """Both conversions as one."""
        first = self.convert
        return convert if first is None else lambda array: convert(first(array))


class Shaper:
    """Goes through the types of one schema, and notes what the topic does not have."""

    def __init__(self, place: Callable[[Path], Path | None], *, adds: bool) -> None:
        """`place` says where a column belongs, or None if it was dropped.

        With `adds`, what was never seen is kept: the topic will have it.
        """
        self._place = place
        self._adds = adds
        self.dropped: list[Path] = []
        self.unknown: list[Path] = []

    def name(
        self, path: Path, kind: pa.DataType, known: pa.DataType | pa.Schema | None
    ) -> str | None:
        """What the topic calls the field, or None if it is left out."""
        place = self._place(path)
        if place is None:
            self.dropped.append(path)
            return None
        name = place[-1]
        if known is None or known.get_field_index(name) >= 0:
            return None if pa.types.is_null(kind) and len(path) > 1 else name
        if pa.types.is_null(kind):
            return None
        if not self._adds:
            self.unknown.append(path)
            return None
        return name

    def shape(self, kind: pa.DataType, own: pa.DataType | None, path: Path) -> Shaped:
        if pa.types.is_struct(kind):
            return self._struct(kind, own if own and pa.types.is_struct(own) else None, path)
        if pa.types.is_map(kind):
            inner = own.item_type if own and pa.types.is_map(own) else None
            return self._map(kind, self.shape(kind.item_type, inner, (*path, "value")))
        if is_list_like(kind):
            inner = own.value_type if own and is_list_like(own) else None
            return self._list(kind, self.shape(kind.value_type, inner, (*path, "element")))
        return Shaped(kind)

    def _struct(self, kind: pa.DataType, own: pa.DataType | None, path: Path) -> Shaped:
        fields: list[pa.Field] = []
        parts: list[tuple[int, Convert | None]] = []
        for place, field in enumerate(kind.fields):
            inner = (*path, field.name)
            name = self.name(inner, field.type, own)
            if name is None:
                continue
            known = own.field(name).type if own and own.get_field_index(name) >= 0 else None
            shaped = self.shape(field.type, known, inner)
            fields.append(field.with_name(name).with_type(shaped.type))
            parts.append((place, shaped.convert))
        if fields == list(kind.fields) and not any(convert for _, convert in parts):
            return Shaped(kind)
        if not fields:
            return Shaped(pa.null(), lambda array: pa.nulls(len(array)))

        def convert(array: pa.Array) -> pa.Array:
            children = array.flatten()
            arrays = [each(children[at]) if each else children[at] for at, each in parts]
            return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())

        return Shaped(pa.struct(fields), convert)

    @staticmethod
    def _list(kind: pa.DataType, inside: Shaped) -> Shaped:
        if inside.convert is None:
            return Shaped(kind)
        values = inside.convert
        target = pa.large_list(kind.value_field.with_type(inside.type))

        def convert(array: pa.Array) -> pa.Array:
            shaped = values(array.flatten())
            return list_array(offsets_of(array), shaped, target, mask=array.is_null())

        return Shaped(target, convert)

    @staticmethod
    def _map(kind: pa.DataType, inside: Shaped) -> Shaped:
        if inside.convert is None:
            return Shaped(kind)
        items = inside.convert
        target = pa.map_(kind.key_field, kind.item_field.with_type(inside.type))

        def convert(array: pa.Array) -> pa.Array:
            offsets, keys, values = map_parts(array)
            both = pa.StructArray.from_arrays([keys, items(values)], names=["key", "value"])
            return list_array(offsets, both, target, mask=array.is_null())

        return Shaped(target, convert)


def declared(kind: pa.DataType, own: pa.DataType | None) -> pa.DataType:
    """The type with what the topic has wherever it is null: no value of that type can be wrong."""
    if own is None:
        return kind
    if pa.types.is_null(kind):
        return own
    if pa.types.is_struct(kind) and pa.types.is_struct(own):
        return pa.struct(
            [
                field.with_type(declared(field.type, own.field(field.name).type))
                if own.get_field_index(field.name) >= 0
                else field
                for field in kind.fields
            ]
        )
    if pa.types.is_map(kind) and pa.types.is_map(own):
        return pa.map_(kind.key_type, declared(kind.item_type, own.item_type))
    if is_list_like(kind) and is_list_like(own):
        return pa.list_(kind.value_field.with_type(declared(kind.value_type, own.value_type)))
    return kind


def is_stored_as(kind: pa.DataType, own: pa.DataType) -> bool:
    """Whether arrays of a type can stay as they are in the log of a topic that has another one.

    They can if the two differ in the width of offsets alone, or in optional fields left out.
    """
    if kind.equals(own):
        return True
    if pa.types.is_struct(kind) and pa.types.is_struct(own):
        return _is_part_of(kind, own)
    if _is_plain_list(kind) and _is_plain_list(own):
        return _is_field_stored_as(kind.value_field, own.value_field)
    if pa.types.is_map(kind) and pa.types.is_map(own):
        return is_stored_as(kind.key_type, own.key_type) and _is_field_stored_as(
            kind.item_field, own.item_field
        )
    return _is_plain_text(kind, own) or _is_plain_bytes(kind, own)


def _is_part_of(kind: pa.DataType, own: pa.DataType) -> bool:
    return all(
        own.get_field_index(field.name) >= 0 and _is_field_stored_as(field, own.field(field.name))
        for field in kind.fields
    )


def _is_field_stored_as(field: pa.Field, own: pa.Field) -> bool:
    return (own.nullable or not field.nullable) and is_stored_as(field.type, own.type)


def _is_plain_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_plain_text(kind: pa.DataType, own: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) and pa.types.is_large_string(own))


def _is_plain_bytes(kind: pa.DataType, own: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) and pa.types.is_large_binary(own))
