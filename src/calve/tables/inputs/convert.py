"""Arrow arrays of one type as arrays of another, without losing anything.

`converter` decides once, from the two types, whether and how; the function it returns then works on
any number of arrays and raises Unfit for a value that does not fit. Widths, units, encodings and
time zones may differ; text becomes a number only where the source has nothing but text (CSV).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from calve.tables.inputs.origin import Unfit
from calve.tables.inputs.text import parse_text
from calve.tables.types import is_bytes, is_list_like, is_text

Convert: TypeAlias = Callable[[pa.Array], pa.Array]

_UNUSUAL: Final = ("NaN", "Infinity", "-Infinity")


class Text(Enum):
    """What text may stand for, by where it comes from."""

    TYPED = "dates, times, decimals and uuids: the source has its own numbers and bytes"
    JSON = "the same, bytes in base64, and the numbers that JSON has none for: NaN, infinities"
    CELLS = "everything: the source has nothing but text"


def converter(source: pa.DataType, target: pa.DataType, text: Text = Text.TYPED) -> Convert:
    """How to turn arrays of `source` into arrays of `target`; Unfit if there is no way."""
    if source.equals(target):
        return _same
    if pa.types.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if unwrap := _unwrapping(source):
        inner, unwrapped = unwrap
        then = converter(unwrapped, target, text)
        return lambda array: then(inner(array))
    if is_text(source):
        return _from_text(target, text)
    if pa.types.is_struct(target):
        return _structs(source, target, text)
    if pa.types.is_map(target):
        return _maps(source, target, text)
    if is_list_like(target):
        return _lists(source, target, text)
    return _plain(source, target)


def _same(array: pa.Array) -> pa.Array:
    return array


def _unwrapping(source: pa.DataType) -> tuple[Convert, pa.DataType] | None:
    if pa.types.is_dictionary(source):
        return (lambda array: array.dictionary_decode()), source.value_type
    if pa.types.is_run_end_encoded(source):
        return pc.run_end_decode, source.value_type
    if isinstance(source, pa.BaseExtensionType):
        return (lambda array: array.storage), source.storage_type
    return None


def _from_text(target: pa.DataType, text: Text) -> Convert:
    if text is Text.JSON and pa.types.is_floating(target):
        return lambda array: _unusual_number(array.cast(pa.large_string()), target)
    if text is not Text.CELLS and not _may_be_text(target, text):
        raise _mismatch(pa.string(), target)
    # Arrow's text functions know no views.
    return lambda array: parse_text(array.cast(pa.large_string()), target)


def _unusual_number(array: pa.Array, target: pa.DataType) -> pa.Array:
    """What answers in JSON have for numbers that JSON does not know."""
    # Made here: the first array that is made of objects loads pandas where it is installed.
    is_known = pc.is_in(array, value_set=pa.array(_UNUSUAL, pa.large_string()))
    if not pc.all(pc.or_(is_known, pc.is_null(array)), min_count=0).as_py():
        raise _mismatch(pa.string(), target)
    return array.cast(target)


def _may_be_text(target: pa.DataType, text: Text) -> bool:
    bytes_too = text is Text.JSON and (is_bytes(target) or pa.types.is_fixed_size_binary(target))
    return bool(
        bytes_too
        or is_text(target)
        or pa.types.is_temporal(target)
        or pa.types.is_decimal(target)
        or isinstance(target, pa.UuidType)
    )


def _plain(source: pa.DataType, target: pa.DataType) -> Convert:
    for from_kind, to_kind, convert in _PAIRS:
        if from_kind(source) and to_kind(target):
            return lambda array: convert(array, target)
    raise _mismatch(source, target)


def _mismatch(source: pa.DataType, target: pa.DataType) -> Unfit:
    return Unfit(
        f"the data has {type_word(source)}, the table {type_word(target)}",
        "convert the column first, or change the table's column",
    )


def type_word(source: pa.DataType) -> str:
    """An Arrow type in the words that people use for tables."""
    if pa.types.is_decimal(source):
        return f"decimal({source.precision},{source.scale})"
    return next((word for claim, word in _WORDS if claim(source)), str(source))


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise Unfit(f"does not fit {type_word(target)}") from error


def _narrow_float(array: pa.Array, target: pa.DataType) -> pa.Array:
    narrowed = array.cast(target)
    if pc.sum(pc.is_inf(narrowed)).as_py() != pc.sum(pc.is_inf(array)).as_py():
        raise Unfit(f"too big for {type_word(target)}")
    return narrowed


def _decimal_from_integer(array: pa.Array, target: pa.DataType) -> pa.Array:
    # Arrow wants room for every possible integer, which the widest decimal always has.
    return _cast(array.cast(pa.decimal256(76, target.scale)), target)


def _decimal_from_float(array: pa.Array, target: pa.DataType) -> pa.Array:
    rounded = _cast(array, target)
    if not rounded.cast(array.type).equals(array):
        raise Unfit(f"has more digits than {type_word(target)} keeps", "round the numbers first")
    return rounded


def _float_from_decimal(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(target)


def _date_from_timestamp(array: pa.Array, target: pa.DataType) -> pa.Array:
    days = array.cast(target)
    if not days.cast(array.type).equals(array):
        raise Unfit("has a time of day, which a date cannot keep")
    return days


def _timestamp(array: pa.Array, target: pa.DataType) -> pa.Array:
    # Values are instants in UTC, or are read as such, so a zone only changes how they are shown.
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise Unfit(
            "does not fit a timestamp of microseconds",
            "round to microseconds first; keep nanoseconds as a long beside it",
        ) from error


def _fixed(array: pa.Array, target: pa.DataType) -> pa.Array:
    return _cast(array.cast(pa.large_binary()), target)


def _uuid(array: pa.Array, target: pa.DataType) -> pa.Array:
    return pa.ExtensionArray.from_storage(target, _fixed(array, target.storage_type))


def _lists(source: pa.DataType, target: pa.DataType, text: Text) -> Convert:
    if not is_list_like(source):
        raise _mismatch(source, target)
    values = converter(source.value_type, target.value_type, text)
    required = not target.value_field.nullable

    def convert(array: pa.Array) -> pa.Array:
        inside = values(array.flatten())
        if required and inside.null_count:
            raise Unfit("an element is missing where the list requires one")
        return list_array(offsets_of(array), inside, target, mask=array.is_null())

    return convert


def offsets_of(array: pa.Array) -> pa.Array:
    """Where each list begins in the flattened values; a missing list takes no room."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])


def list_array(
    offsets: pa.Array, values: pa.Array, target: pa.DataType, *, mask: pa.Array
) -> pa.Array:
    if pa.types.is_map(target):
        return pa.MapArray.from_arrays(
            offsets.cast(pa.int32()), values.field(0), values.field(1), type=target, mask=mask
        )
    if pa.types.is_large_list(target):
        return pa.LargeListArray.from_arrays(offsets, values, type=target, mask=mask)
    built = pa.ListArray.from_arrays(
        offsets.cast(pa.int32()), values, type=pa.list_(target.value_field), mask=mask
    )
    return _cast(built, target)


def _maps(source: pa.DataType, target: pa.DataType, text: Text) -> Convert:
    if not pa.types.is_map(source):
        raise _mismatch(source, target)
    keys = converter(source.key_type, target.key_type, text)
    items = converter(source.item_type, target.item_type, text)
    required = not target.item_field.nullable

    def convert(array: pa.Array) -> pa.Array:
        offsets, key_values, item_values = map_parts(array)
        key_values, item_values = keys(key_values), items(item_values)
        if required and item_values.null_count:
            raise Unfit("a value is missing where the map requires one")
        struct = pa.StructArray.from_arrays([key_values, item_values], names=["key", "value"])
        return list_array(offsets, struct, target, mask=array.is_null())

    return convert


def map_parts(array: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Where each map begins, and the keys and values of all; a missing map takes no room.

    Not by a cast to a list of pairs: Arrow makes an invalid one where lists of nulls are inside.
    """
    present = array.drop_null() if array.null_count else array
    ends = present.offsets.cast(pa.int64())
    first, count = ends[0].as_py(), ends[-1].as_py() - ends[0].as_py()
    lengths = pc.subtract(ends.slice(1), ends.slice(0, len(present)))
    nothing = pa.array([0], pa.int64())
    every = pc.replace_with_mask(pa.repeat(nothing[0], len(array)), array.is_valid(), lengths)
    offsets = pa.concat_arrays([nothing, pc.cumulative_sum(every)])
    return offsets, present.keys.slice(first, count), present.items.slice(first, count)


def _structs(source: pa.DataType, target: pa.DataType, text: Text) -> Convert:
    if not pa.types.is_struct(source):
        raise _mismatch(source, target)
    names = [field.name for field in source.fields]
    known = [field.name for field in target.fields]
    for name in names:
        if name not in known:
            raise Unfit(f"there is no field {name!r}", f"fields are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise Unfit("a field is there twice")
    plans = [
        (names.index(field.name), converter(source.field(field.name).type, field.type, text))
        if field.name in names
        else (None, _missing(field))
        for field in target.fields
    ]

    def convert(array: pa.Array) -> pa.Array:
        children = array.flatten()
        absent = array.is_null()
        arrays = [plan(array if place is None else children[place]) for place, plan in plans]
        return struct_array(arrays, target, absent=absent)

    return convert


def _missing(field: pa.Field) -> Convert:
    if not field.nullable:
        raise Unfit(f"the required field {field.name!r} is missing")
    return lambda array: pa.nulls(len(array), field.type)


def struct_array(children: list[pa.Array], target: pa.DataType, *, absent: pa.Array) -> pa.Array:
    """A struct from its fields; a required one may be missing only where the whole struct is."""
    for child, field in zip(children, target.fields, strict=True):
        if not field.nullable and child.null_count:
            lost = pc.and_not(child.is_null(), absent)
            if pc.any(lost).as_py():
                raise Unfit(f"the required field {field.name!r} is missing")
    return pa.StructArray.from_arrays(children, fields=list(target.fields), mask=absent)


def _is_any_bytes(source: pa.DataType) -> bool:
    return is_bytes(source) or bool(pa.types.is_fixed_size_binary(source))


def _is_uuid(source: pa.DataType) -> bool:
    return isinstance(source, pa.UuidType)


_Claim: TypeAlias = Callable[[pa.DataType], bool]

_PAIRS: Final[list[tuple[_Claim, _Claim, Callable[[pa.Array, pa.DataType], pa.Array]]]] = [
    (pa.types.is_integer, pa.types.is_integer, _cast),
    (pa.types.is_integer, pa.types.is_floating, _cast),
    (pa.types.is_integer, pa.types.is_decimal, _decimal_from_integer),
    (pa.types.is_floating, pa.types.is_floating, _narrow_float),
    (pa.types.is_floating, pa.types.is_integer, _cast),
    (pa.types.is_floating, pa.types.is_decimal, _decimal_from_float),
    (pa.types.is_decimal, pa.types.is_decimal, _cast),
    (pa.types.is_decimal, pa.types.is_integer, _cast),
    (pa.types.is_decimal, pa.types.is_floating, _float_from_decimal),
    (pa.types.is_date, pa.types.is_date, _cast),
    (pa.types.is_date, pa.types.is_timestamp, _cast),
    (pa.types.is_timestamp, pa.types.is_date, _date_from_timestamp),
    (pa.types.is_timestamp, pa.types.is_timestamp, _timestamp),
    (pa.types.is_time, pa.types.is_time, _cast),
    (_is_any_bytes, is_bytes, _cast),
    (_is_any_bytes, pa.types.is_fixed_size_binary, _fixed),
    (_is_any_bytes, _is_uuid, _uuid),
]

_WORDS: Final[list[tuple[_Claim, str]]] = [
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (is_text, "text"),
    (is_bytes, "binary"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (_is_uuid, "uuid"),
    (lambda t: pa.types.is_timestamp(t) and t.tz is not None, "timestamptz"),
    (pa.types.is_timestamp, "timestamp"),
    (is_list_like, "a list"),
    (pa.types.is_map, "a map"),
    (pa.types.is_struct, "a struct"),
]
