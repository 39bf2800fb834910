"""Rows of Python values, such as dicts or decoded JSON, as batches for a table.

Each column is sorted by the Python types in it, so that a column may hold whole numbers beside
floats, or datetimes beside their text, and each follows the one set of rules for its kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from calve.tables.inputs.conform import listed, value_error
from calve.tables.inputs.convert import Text, converter, list_array, struct_array
from calve.tables.inputs.origin import NO_UNICODE, Origin, Unfit, first_unfit, require_values, shown
from calve.tables.nearest import meant
from calve.tables.types import is_list_like

BATCH_ROWS: Final = 16_384

Row = Mapping[str, Any]
Note: TypeAlias = Callable[[Sequence[Row]], None]


def row_batches(
    rows: Iterable[object], target: pa.Schema, origin: Origin, note: Note | None = None
) -> Iterator[pa.RecordBatch]:
    """Dicts as batches; numbered from 1 in messages. `note` is told of each batch's rows."""
    iterator = iter(rows)
    done = 0
    while piece := list(islice(iterator, BATCH_ROWS)):
        places = range(done + 1, done + 1 + len(piece))
        yield row_batch(piece, target, origin, places)
        if note:
            note(cast("list[Row]", piece))
        done += len(piece)


def row_batch(
    rows: Sequence[Any],
    target: pa.Schema,
    origin: Origin,
    places: Sequence[int],
    text: Text = Text.TYPED,
) -> pa.RecordBatch:
    known = set(target.names)
    for place, row in zip(places, rows, strict=True):
        check_row(row, origin, place)
        if not row.keys() <= known:
            _refuse_unknown(row, target, origin, place)
    arrays = [
        column_array([row.get(field.name) for row in rows], field, origin, places, text)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def check_row(row: object, origin: Origin, place: int) -> None:
    if not isinstance(row, Mapping):
        raise origin.error(
            f"{shown(row)} is not a row",
            place=place,
            hint="a row maps the names of columns to their values",
        )


def _refuse_unknown(row: Row, target: pa.Schema, origin: Origin, place: int) -> None:
    known = set(target.names)
    name = next(name for name in row if name not in known)
    raise origin.error(
        f"the table has no column {shown(name)}"
        f"{meant(str(name), [other for other in target.names if other not in row])}",
        place=place,
        hint=f"its columns are {listed(target.names)}; add one with `calve table add-column`",
    )


def column_array(
    values: list[Any],
    field: pa.Field,
    origin: Origin,
    places: Sequence[int],
    text: Text = Text.TYPED,
) -> pa.Array:
    """One column's values as an array of the field's type."""
    try:
        array = build_array(values, field.type, text)
    except Unfit:
        attempt = partial(_build_beginning, values, field.type, text)
        row, problem = first_unfit(len(values), attempt)
        raise value_error(values[row], field, problem, origin, places[row]) from None
    require_values(array, field, origin, places)
    return array


def _build_beginning(values: list[Any], target: pa.DataType, text: Text, length: int) -> pa.Array:
    return build_array(values[:length], target, text)


def build_array(values: list[Any], target: pa.DataType, text: Text) -> pa.Array:
    """Python values as an array; raises Unfit if one does not fit."""
    if pa.types.is_struct(target):
        return _build_structs(values, target, text)
    if pa.types.is_map(target):
        return _build_maps(values, target, text)
    if is_list_like(target):
        return _build_lists(values, target, text)
    return _build_plain(values, target, text)


def _build_plain(values: list[Any], target: pa.DataType, text: Text) -> pa.Array:
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) <= 1:
        return _of_one_kind(values, next(iter(kinds), type(None)), target, text)
    parts = (
        _of_one_kind([v if type(v) is kind else None for v in values], kind, target, text)
        for kind in kinds
    )
    merged = next(parts)
    for part in parts:
        # Arrow's coalesce knows no extension types; their storage is what holds the values.
        merged = _merged(merged, part)
    return merged


def _merged(first: pa.Array, second: pa.Array) -> pa.Array:
    if isinstance(first, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(first.type, _merged(first.storage, second.storage))
    return pc.coalesce(first, second)


def _of_one_kind(values: list[Any], kind: type, target: pa.DataType, text: Text) -> pa.Array:
    if issubclass(kind, Decimal) and pa.types.is_floating(target):
        # Arrow's widest decimal is far smaller than a double.
        values = [None if value is None else _as_float(value) for value in values]
    try:
        natural = pa.array(values, _natural_type(kind, target))
    except OverflowError as error:
        raise Unfit("the number is too big") from error
    except UnicodeEncodeError as error:
        raise Unfit(*NO_UNICODE) from error
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise Unfit("the value cannot be read", "see the guide for what a column takes") from error
    if isinstance(natural, pa.ChunkedArray):
        natural = natural.combine_chunks()
    return converter(natural.type, target, text)(natural)


def _as_float(value: Decimal) -> float:
    number = float(value)
    if math.isinf(number) and value.is_finite():
        raise Unfit("the number is too big")
    return number


def _natural_type(kind: type, target: pa.DataType) -> pa.DataType | None:
    if issubclass(kind, str):
        return pa.large_string()
    if issubclass(kind, UUID):
        return pa.uuid()
    if issubclass(kind, int) and kind is not bool and pa.types.is_decimal(target):
        return pa.decimal128(38, 0)
    return None


def _build_lists(values: list[Any], target: pa.DataType, text: Text) -> pa.Array:
    for value in values:
        if value is not None and (isinstance(value, str | bytes | Mapping) or not _is_many(value)):
            raise Unfit("not a list")
    inside = build_array(
        [item for value in values if value is not None for item in value],
        target.value_type,
        text,
    )
    if inside.null_count and not target.value_field.nullable:
        raise Unfit("an element is missing where the list requires one")
    return list_array(_offsets(values), inside, target, mask=_absent(values))


def _is_many(value: object) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__iter__")


def _build_maps(values: list[Any], target: pa.DataType, text: Text) -> pa.Array:
    pairs = [None if value is None else _pairs(value) for value in values]
    flat = [pair for each in pairs if each is not None for pair in each]
    keys = build_array([key for key, _ in flat], target.key_type, text)
    items = build_array([item for _, item in flat], target.item_type, text)
    if keys.null_count or (items.null_count and not target.item_field.nullable):
        raise Unfit("a key or a required value of the map is missing")
    entries = pa.StructArray.from_arrays([keys, items], names=["key", "value"])
    return list_array(_offsets(pairs), entries, target, mask=_absent(pairs))


def _pairs(value: object) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in value
    ):
        return [(key, item) for key, item in value]
    raise Unfit("not a map")


def _build_structs(values: list[Any], target: pa.DataType, text: Text) -> pa.Array:
    fields = list(target.fields)
    known = {field.name for field in fields}
    for value in values:
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise Unfit("not a struct")
        if not value.keys() <= known:
            name = next(name for name in value if name not in known)
            raise Unfit(
                f"there is no field {shown(name)}{meant(str(name), known)}",
                f"fields are {', '.join(sorted(known))}",
            )
    children = [
        build_array(
            [None if value is None else value.get(field.name) for value in values],
            field.type,
            text,
        )
        for field in fields
    ]
    return struct_array(children, target, absent=_absent(values))


def _offsets(values: Sequence[Any]) -> pa.Array:
    total = 0
    offsets = [0]
    for value in values:
        total += 0 if value is None else len(value)
        offsets.append(total)
    return pa.array(offsets, pa.int64())


def _absent(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())
