"""Text as values of a type: what a cell of CSV or a string of JSON means.

One column at a time, vectorised where Arrow can do it. Timestamps without a zone are UTC. Binary is
base64, or hexadecimal behind `\\x`. Nothing is rounded: digits that do not fit are refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from calve.tables.inputs.origin import Unfit

# A zone can only follow a time of day: the end of 2024-01-01 is not one.
ZONED: Final = r"[Tt ]\d{2}.*(?:[zZ]|[+-]\d{2}(?::?\d{2})?)$"
_INTEGER_HINT: Final = "write a whole number within the type's range"
_TRUE_FALSE: Final = "write true or false"
_TIMESTAMP_HINT: Final = (
    "write 2024-01-31 10:00:00 or 2024-01-31T10:00:00.123456+01:00; without a zone it is UTC, and "
    "more than microseconds are not kept"
)


def parse_text(array: pa.Array, target: pa.DataType) -> pa.Array:
    """An array of text as an array of `target`; raises Unfit if any value does not fit."""
    for claim, parse in _PARSERS:
        if claim(target):
            return parse(array, target)
    raise Unfit(f"text cannot become {target}")


def _parse_boolean(array: pa.Array, target: pa.DataType) -> pa.Array:
    return _cast(_trimmed(array), target, hint=_TRUE_FALSE)


def _parse_integer(array: pa.Array, target: pa.DataType) -> pa.Array:
    # Arrow takes 0xff for a number, and 0xffffffff for -1.
    if any(pc.any(pc.match_substring(array, sign)).as_py() for sign in "xX"):
        raise Unfit("", _INTEGER_HINT)
    try:
        return array.cast(target)
    except pa.ArrowInvalid:
        # Spaces and signs; and 12.0, which is how pandas writes a whole number beside a gap.
        unsigned = pc.replace_substring_regex(_trimmed(array), r"^\+(\d)", r"\1")
        text = pc.replace_substring_regex(unsigned, r"\.0*$", "")
        return _cast(text, target, hint=_INTEGER_HINT)


def _parse_float(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        parsed = array.cast(target)
    except pa.ArrowInvalid:
        text = pc.replace_substring_regex(_trimmed(array), r"^\+([\d.a-zA-Z])", r"\1")
        parsed = _cast(text, target, hint="write a number with a point, such as 1.5 or 1e-3")
    infinite = pc.is_inf(parsed)
    if pc.any(infinite).as_py():
        said = pc.match_substring(array.filter(infinite), "inf", ignore_case=True)
        if not pc.all(said).as_py():
            raise Unfit("the number is too big")
    return parsed


def _parse_decimal(array: pa.Array, target: pa.DataType) -> pa.Array:
    return _cast(
        _trimmed(array),
        target,
        hint=f"at most {target.precision} digits, {target.scale} of them after the point",
    )


def _parse_date(array: pa.Array, target: pa.DataType) -> pa.Array:
    return _cast(_trimmed(array), target, hint="write 2024-01-31")


def _parse_time(array: pa.Array, target: pa.DataType) -> pa.Array:
    text = _trimmed(array)
    day, nothing = pa.scalar("1970-01-01T", text.type), pa.scalar("", text.type)
    dated = pc.binary_join_element_wise(day, text, nothing)
    hint = "write 10:30:00 or 10:30:00.123456"
    return _timestamps(dated, pa.timestamp("us"), hint).cast(target)


def _parse_timestamp(array: pa.Array, target: pa.DataType) -> pa.Array:
    text = _trimmed(array)
    zoned = pc.match_substring_regex(text, ZONED)
    nothing = pa.scalar(None, text.type)
    utc = pa.timestamp(target.unit, "UTC")
    with_zone = pc.any(zoned).as_py()
    if not with_zone:
        return _timestamps(text, pa.timestamp(target.unit), _TIMESTAMP_HINT).cast(target)
    aware = _timestamps(pc.if_else(zoned, text, nothing), utc, _TIMESTAMP_HINT)
    plain = _timestamps(
        pc.if_else(zoned, nothing, text), pa.timestamp(target.unit), _TIMESTAMP_HINT
    )
    return pc.coalesce(aware, plain.cast(utc)).cast(target)


def _timestamps(text: pa.Array, target: pa.DataType, hint: str) -> pa.Array:
    try:
        return text.cast(target)
    except pa.ArrowInvalid:
        # More digits than microseconds are fine as long as they are zeros.
        return _cast(_cast(text, pa.timestamp("ns", target.tz), hint=hint), target, hint=hint)


def _parse_string(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(target)


def _parse_bytes(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return pa.array([_bytes(text) for text in array.to_pylist()], target)
    except (ValueError, binascii.Error, pa.ArrowInvalid) as error:
        raise Unfit("", "write base64, or hexadecimal as \\x00ff") from error


def _bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    if text.startswith("\\x"):
        return bytes.fromhex(text[2:])
    return base64.b64decode(text, validate=True)


def _parse_uuid(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return pa.array(
            [None if text is None else UUID(text).bytes for text in array.to_pylist()], target
        )
    except ValueError as error:
        raise Unfit("", "write 123e4567-e89b-12d3-a456-426614174000") from error


def _trimmed(array: pa.Array) -> pa.Array:
    return pc.utf8_trim_whitespace(array)


def _cast(array: pa.Array, target: pa.DataType, hint: str) -> pa.Array:
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise Unfit("", hint) from error


def _is_text(target: pa.DataType) -> bool:
    return bool(pa.types.is_string(target) or pa.types.is_large_string(target))


def _is_binary(target: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(target)
        or pa.types.is_large_binary(target)
        or pa.types.is_fixed_size_binary(target)
    )


def _is_uuid(target: pa.DataType) -> bool:
    return isinstance(target, pa.UuidType)


_PARSERS: Final[
    list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, pa.DataType], pa.Array]]]
] = [
    (_is_text, _parse_string),
    (pa.types.is_integer, _parse_integer),
    (pa.types.is_floating, _parse_float),
    (pa.types.is_timestamp, _parse_timestamp),
    (pa.types.is_date, _parse_date),
    (pa.types.is_boolean, _parse_boolean),
    (pa.types.is_decimal, _parse_decimal),
    (pa.types.is_time, _parse_time),
    (_is_uuid, _parse_uuid),
    (_is_binary, _parse_bytes),
]
