"""One value of an answer, as text for people and as JSON for programs.

| type | JSON |
|---|---|
| whole numbers | number; beyond ±2^53 too, as JSON has no bound |
| decimal | string, so that no digit is lost |
| float, double | number; NaN and the infinities as "NaN", "Infinity", "-Infinity" |
| date, time, timestamp | ISO 8601; with zone in UTC, ending in Z; nanoseconds kept |
| uuid | string |
| binary, fixed | base64 |
| list, struct | array, object |
| map | object if its keys are text, else an array of {"key", "value"} |
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

Convert: TypeAlias = Callable[[Any], Any]

_NULL: Final = "∅"
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def column_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values as Python has them; dates and times beyond its calendar as text."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if isinstance(scalar, pa.StructScalar):
            return {name: _value(part) for name, part in scalar.items()}
        if isinstance(scalar, pa.MapScalar):
            return [(_value(pair["key"]), _value(pair["value"])) for pair in scalar.values]
        if isinstance(scalar, pa.ListScalar | pa.LargeListScalar):
            return [_value(each) for each in scalar.values]
        return _beyond(scalar)


def _beyond(scalar: pa.Scalar) -> str:
    """A moment beyond Python's calendar; Arrow's own text has years of 16 bits."""
    if pa.types.is_date32(scalar.type):
        return str(np.datetime64(scalar.value, "D"))
    if not pa.types.is_timestamp(scalar.type):
        return str(scalar.cast(pa.string()))
    digits = _DIGITS[scalar.type.unit]
    seconds, part = divmod(scalar.value, 10**digits)
    days, second = divmod(seconds, 86_400)
    text = f"{np.datetime64(days, 'D')}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    fraction = f".{part:0{digits}}" if digits else ""
    return f"{text}{fraction}{'Z' if scalar.type.tz else ''}"


def cell_text(value: object) -> str:
    """A value for people, on one line."""
    match value:
        case None:
            return _NULL
        case bool():
            return str(value).lower()
        case bytes():
            return value.hex()
        case datetime() | date() | time():
            return _moment(value)
        case dict() | list() | tuple():
            return _nested_text(value)
    return _one_line(str(value))


def _nested_text(value: dict[str, Any] | list[Any] | tuple[Any, ...]) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_one_line(k)}: {cell_text(v)}" for k, v in value.items()) + "}"
    # Arrow gives a map as a list of pairs.
    inner = (": " if isinstance(value, tuple) else ", ").join(cell_text(each) for each in value)
    return inner if isinstance(value, tuple) else f"[{inner}]"


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii")
        for sign in text
    )


def json_rows(batch: pa.RecordBatch, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows as values for JSON, under the columns' names or others."""
    if not batch.num_columns:
        return [{} for _ in range(batch.num_rows)]
    columns = [map(json_converter(each.type), column_values(each)) for each in batch.columns]
    names = names or batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_converter(kind: pa.DataType) -> Convert:
    """A function from a value of this type, as Arrow gives it to Python, to one for JSON."""
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        each = json_converter(kind.value_type)
        return _or_null(lambda values: [each(value) for value in values])
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_floating(kind):
        return _or_null(_number)
    return _or_null(_scalar)


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _struct(kind: pa.DataType) -> Convert:
    parts = {field.name: json_converter(field.type) for field in kind}
    return _or_null(lambda value: {name: part(value[name]) for name, part in parts.items()})


def _map(kind: pa.DataType) -> Convert:
    key, item = json_converter(kind.key_type), json_converter(kind.item_type)
    if pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type):
        return _or_null(lambda pairs: {k: item(v) for k, v in pairs})
    return _or_null(lambda pairs: [{"key": key(k), "value": item(v)} for k, v in pairs])


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _scalar(value: Any) -> Any:
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | time):
        return _moment(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)


def _moment(value: datetime | date | time) -> str:
    # The timestamps of pandas, which Arrow gives for nanoseconds, are datetimes too.
    text = value.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
