"""Values of every kind as text, with the kind beside it: nothing that a sender wrote is lost.

A string is itself; numbers and booleans are as JSON writes them; bytes are base64; lists and maps
are JSON. What plain JSON cannot tell, such as bytes in a list, is OTLP's own JSON (`otlp_json`).
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

from calve.ingest.otlp.columns import Level, as_text, is_there
from calve.ingest.otlp.tables import TEXT

KINDS: Final = ("empty", "string", "bool", "int", "double", "bytes", "list", "map", "otlp_json")
EMPTY, STRING, BOOL, INT, DOUBLE, BYTES, LIST, MAP, OTLP_JSON = range(len(KINDS))
_KIND_TEXTS: Final = pa.array(KINDS, TEXT)
_FIELDS: Final = {
    "string_value": STRING,
    "bool_value": BOOL,
    "int_value": INT,
    "double_value": DOUBLE,
    "bytes_value": BYTES,
    "array_value": LIST,
    "kvlist_value": MAP,
}
_INDEX: Final = "string_value_strindex"
# OTLP wants them taken for missing outside of profiles, and somebody told.
TEXT_BY_INDEX: Final = (
    "a text is named by its place in a dictionary, which only profiles have: it is stored as empty"
)

Kinds = npt.NDArray[np.uint8]


def value_texts(values: Level) -> tuple[pa.StringArray, Kinds]:
    """The texts of values, null for empty ones, and the place of each one's kind in `KINDS`."""
    count = len(values)
    if values.field(_INDEX).null_count < count:
        values.faults.remarks.add(TEXT_BY_INDEX)
    strings = values.field("string_value")
    if strings.null_count == 0:
        return as_text(strings, values, "a text"), np.full(count, STRING, np.uint8)
    kinds = np.zeros(count, np.uint8)
    found = []
    for name, kind in _FIELDS.items():
        field = values.field(name)
        if field.null_count == count:
            continue
        kinds[is_there(field)] = kind
        if kind == STRING:
            found.append(as_text(field, values, "a text"))
        elif kind in {BOOL, INT, DOUBLE}:
            found.append(field.cast(TEXT))
        else:
            found.append(_rare_texts(values, name, kinds))
    return (pc.coalesce(*found) if found else pa.nulls(count, TEXT)), kinds


def kind_texts(kinds: Kinds) -> pa.StringArray:
    """The names of kinds, null for empty values."""
    return _KIND_TEXTS.take(pa.array(kinds, mask=kinds == EMPTY))


def kind_names(kinds: Kinds) -> pa.StringArray:
    return _KIND_TEXTS.take(pa.array(kinds))


def any_value(fields: dict[str, Any]) -> AnyValue:
    """A value as OTLP has it, from the fields that are set; DecodeError if it cannot be read."""
    value = AnyValue()
    for name, field in fields.items():
        if field is None or name == _INDEX:
            continue
        if name in {"array_value", "kvlist_value"}:
            getattr(value, name).SetInParent()
            getattr(value, name).MergeFromString(field)
            _clear_indexes(getattr(value, name))
        else:
            setattr(value, name, field.decode() if name == "string_value" else field)
    return value


def otlp_json(value: AnyValue) -> str:
    text: str = MessageToJson(value, indent=None, ensure_ascii=False)
    return text


def _rare_texts(values: Level, name: str, kinds: Kinds) -> pa.StringArray:
    """Those of bytes, lists and maps, one by one; null for all others."""
    field = values.field(name)
    places = np.flatnonzero(is_there(field))
    texts = []
    for place in places:
        raw = field[int(place)].as_py()
        try:
            text, kinds[place] = _rare_text(name, raw, values.faults.remarks)
        except DecodeError as error:
            values.faults.note([values.records[place]], f"a value cannot be read: {error}")
            text = ""
        texts.append(text)
    order = np.full(len(values), -1, np.int64)
    order[places] = np.arange(len(places))
    return pa.array(texts, TEXT).take(pa.array(order, mask=order < 0))


def _rare_text(name: str, raw: bytes, remarks: set[str]) -> tuple[str, int]:
    if name == "bytes_value":
        return base64.b64encode(raw).decode(), BYTES
    whole = ArrayValue if name == "array_value" else KeyValueList
    message: Any = whole.FromString(raw)
    plain = _plain_or_none(message)
    if plain is None and _clear_indexes(message):
        remarks.add(TEXT_BY_INDEX)
        plain = _plain_or_none(message)
    if plain is None:
        return MessageToJson(message, indent=None, ensure_ascii=False), OTLP_JSON
    return msgspec.json.encode(plain).decode(), LIST if whole is ArrayValue else MAP


def _clear_indexes(message: ArrayValue | KeyValueList) -> bool:
    """Empty the texts inside that are named by a place in a dictionary; whether there were any."""
    is_any = False
    for each in message.values:
        value = each if isinstance(each, AnyValue) else each.value
        match value.WhichOneof("value"):
            case "string_value_strindex":
                value.ClearField(_INDEX)
                is_any = True
            case "array_value":
                is_any |= _clear_indexes(value.array_value)
            case "kvlist_value":
                is_any |= _clear_indexes(value.kvlist_value)
    return is_any


class _NotPlain(Exception):
    """Plain JSON would not tell this value from another."""


def _plain_or_none(message: ArrayValue | KeyValueList) -> list[Any] | dict[str, Any] | None:
    try:
        return _plain_list(message) if isinstance(message, ArrayValue) else _plain_map(message)
    except _NotPlain:
        return None


def _plain_list(message: ArrayValue) -> list[Any]:
    return [_plain(each) for each in message.values]


def _plain_map(message: KeyValueList) -> dict[str, Any]:
    found = {each.key: _plain(each.value) for each in message.values}
    if len(found) < len(message.values):
        raise _NotPlain
    return found


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return None
        case "array_value":
            return _plain_list(value.array_value)
        case "kvlist_value":
            return _plain_map(value.kvlist_value)
        case "double_value" if not math.isfinite(value.double_value):
            raise _NotPlain
        case "bytes_value" | "string_value_strindex":
            raise _NotPlain
        case _:
            return getattr(value, kind)
