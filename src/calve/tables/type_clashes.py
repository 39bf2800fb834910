"""Which columns of rows that come in cannot go into a schema, told by their types alone.

Only what no value can prevent is let through: an int goes into a long, a decimal into one with
more digits, and so on. Whatever would depend on the values is a clash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pyiceberg.schema import Schema
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

from calve.tables.types import type_name

_DIGITS: Final = {IntegerType: 10, LongType: 19}


class Clash(NamedTuple):
    """A column, or a field inside one, with what each side has there; None is nothing at all."""

    path: str
    own: str
    incoming: str | None

    def __str__(self) -> str:
        if self.incoming is None:
            return f"{self.path!r} is required and missing"
        return f"{self.path!r} is {self.own}, and {self.incoming} was sent"


def clashes(own: Schema, incoming: Schema) -> list[Clash]:
    """Every clash; columns that `own` lacks are none of its business."""
    return list(_fields(own.fields, incoming.fields, ""))


def _fields(
    own: Sequence[NestedField], incoming: Sequence[NestedField], parent: str
) -> Iterator[Clash]:
    sent = {field.name: field for field in incoming}
    for field in own:
        path = parent + field.name
        found = sent.get(field.name)
        if found is not None:
            yield from _types(field.field_type, found.field_type, path)
        elif field.required:
            yield Clash(path, type_name(field.field_type), None)


def _types(own: IcebergType, incoming: IcebergType, path: str) -> Iterator[Clash]:
    match own, incoming:
        case StructType(), StructType():
            yield from _fields(own.fields, incoming.fields, f"{path}.")
        case ListType(), ListType():
            yield from _types(own.element_type, incoming.element_type, f"{path}.element")
        case MapType(), MapType():
            yield from _types(own.key_type, incoming.key_type, f"{path}.key")
            yield from _types(own.value_type, incoming.value_type, f"{path}.value")
        case _ if not holds_all(own, incoming):
            yield Clash(path, type_name(own), type_name(incoming))


def holds_all(own: IcebergType, incoming: IcebergType) -> bool:
    """Whether a column of one type can hold every value of another, unchanged."""
    if own == incoming:
        return True
    match own, incoming:
        case LongType(), IntegerType():
            return True
        case DoubleType(), FloatType() | IntegerType():
            return True
        case DecimalType(), DecimalType():
            whole = own.precision - own.scale
            return own.scale >= incoming.scale and whole >= incoming.precision - incoming.scale
        case DecimalType(), IntegerType() | LongType():
            return own.precision - own.scale >= _DIGITS[type(incoming)]
    return False
