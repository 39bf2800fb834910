"""Requests in OTLP's JSON: protobuf's, but with ids in hexadecimal digits."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError

from calve.errors import InvalidRequest
from calve.ingest.otlp.messages import REQUESTS

_IDS: Final = frozenset({"trace_id", "span_id", "parent_span_id"})
_DIGITS: Final = re.compile(r"[0-9a-fA-F]*")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_TIMES: Final = 32  # of its bytes that a text takes as objects: three are enough for an empty one
_HINT: Final = "send an export request in OTLP's JSON, with ids as hexadecimal digits"


def weight_of(body: bytes) -> int:
    """What it takes of memory to read a text, about, in bytes."""
    return _TIMES * len(body)


def protobuf_of(signal: str, body: bytes) -> bytes:
    """The same request in protobuf; InvalidRequest if it is none."""
    try:
        document = json.loads(body)
        if not isinstance(document, dict):
            raise InvalidRequest("the body is no JSON object", hint=_HINT)
        _check(document, _SHAPES[signal])
        request = ParseDict(document, REQUESTS[signal](), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidRequest(
            f"the body is no request for {signal} in JSON: {first}", hint=_HINT
        ) from error
    content: bytes = request.SerializeToString()
    return content


@dataclass(slots=True)
class _Shape:
    """What a message has that is not read as protobuf's JSON reads it, by both spellings."""

    ids: set[str] = field(default_factory=set)
    binary: set[str] = field(default_factory=set)
    names: dict[str, frozenset[str]] = field(default_factory=dict)  # of an enumeration
    messages: dict[str, _Shape] = field(default_factory=dict)


def _check(document: dict[str, Any], shape: _Shape) -> None:
    """Write ids as protobuf's JSON has bytes, in place: no second document.

    Fields that a message does not have are passed over, whatever they hold. ValueError for what
    protobuf's reader would change without a word: bytes that are not base64, and names that an
    enumeration does not have.
    """
    waiting = [(document, shape)]
    while waiting:
        fields, shape = waiting.pop()
        _check_texts(fields, shape)
        for name in shape.messages.keys() & fields.keys():
            held, inner = fields[name], shape.messages[name]
            several = held if isinstance(held, list) else (held,)
            waiting += [(each, inner) for each in several if isinstance(each, dict)]


def _check_texts(fields: dict[str, Any], shape: _Shape) -> None:
    for name in shape.ids & fields.keys():
        if isinstance(fields[name], str):
            fields[name] = _base64(name, fields[name])
    for name in shape.binary & fields.keys():
        text = fields[name]
        if isinstance(text, str) and not _BASE64.fullmatch(text):
            raise ValueError(f"{name} is {text[:40]!r}, which is not base64")
    for name in shape.names.keys() & fields.keys():
        value = fields[name]
        if isinstance(value, str) and value not in shape.names[name] and not _is_number(value):
            raise ValueError(f"{name} is {value[:40]!r}, which is none of its names")


def _base64(name: str, digits: str) -> str:
    if not _DIGITS.fullmatch(digits):
        raise ValueError(f"{name} is {digits[:40]!r}, which is not in hexadecimal digits")
    if len(digits) % 2:
        raise ValueError(f"{name} is {digits[:40]!r}: {len(digits)} digits are no whole bytes")
    return base64.b64encode(bytes.fromhex(digits)).decode()


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def _shape_of(message: Any, known: dict[str, _Shape]) -> _Shape:
    """Values hold values: what is `known` already is not looked at again."""
    if message.full_name in known:
        return known[message.full_name]
    shape = known[message.full_name] = _Shape()
    for each in message.fields:
        spellings = {each.name, each.json_name}
        if each.enum_type is not None:
            shape.names |= dict.fromkeys(spellings, frozenset(each.enum_type.values_by_name))
        elif each.message_type is not None:
            shape.messages |= dict.fromkeys(spellings, _shape_of(each.message_type, known))
        elif each.type == each.TYPE_BYTES:
            (shape.ids if each.name in _IDS else shape.binary).update(spellings)
    return shape


_known: Final[dict[str, _Shape]] = {}
_SHAPES: Final = {signal: _shape_of(kind.DESCRIPTOR, _known) for signal, kind in REQUESTS.items()}
