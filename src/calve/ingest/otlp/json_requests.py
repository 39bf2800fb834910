"""Requests in OTLP's JSON: protobuf's, but with ids in hexadecimal digits."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError

from calve.errors import InvalidRequest
from calve.ingest.otlp.messages import REQUESTS

_IDS: Final = frozenset(
    {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}
)
_DIGITS: Final = re.compile(r"[0-9a-fA-F]*")
_BYTES: Final = frozenset({"bytesValue", "bytes_value"})
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_TIMES: Final = 32  # of its bytes that a text takes as objects: three are enough for an empty one
_HINT: Final = "send an export request in OTLP's JSON, with ids as hexadecimal digits"


def weight_of(body: bytes) -> int:
    """What it takes of memory to read a text, about, in bytes."""
    return _TIMES * len(body)


def protobuf_of(signal: str, body: bytes) -> bytes:
    """The same request in protobuf; InvalidRequest if it is none."""
    try:
        document = json.loads(body, object_hook=_checked)
        if not isinstance(document, dict):
            raise InvalidRequest("the body is no JSON object", hint=_HINT)
        request = ParseDict(document, REQUESTS[signal](), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidRequest(
            f"the body is no request for {signal} in JSON: {first}", hint=_HINT
        ) from error
    content: bytes = request.SerializeToString()
    return content


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    """An object of the text, with its ids as protobuf's JSON has bytes. In place: no second one.

    ValueError for what protobuf's reader would change without a word: bytes that are not base64,
    and names that an enumeration does not have.
    """
    for name in _IDS & fields.keys():
        digits = fields[name]
        if isinstance(digits, str):
            fields[name] = _base64(name, digits)
    for name in _BYTES & fields.keys():
        text = fields[name]
        if isinstance(text, str) and not _BASE64.fullmatch(text):
            raise ValueError(f"{name} is {text[:40]!r}, which is not base64")
    for name in _ENUMERATIONS.keys() & fields.keys():
        value = fields[name]
        if isinstance(value, str) and value not in _ENUMERATIONS[name] and not _is_number(value):
            raise ValueError(f"{name} is {value[:40]!r}, which is none of its names")
    return fields


def _base64(name: str, digits: str) -> str:
    if not _DIGITS.fullmatch(digits):
        raise ValueError(f"{name} is {digits[:40]!r}, which is not in hexadecimal digits")
    if len(digits) % 2:
        raise ValueError(f"{name} is {digits[:40]!r}: {len(digits)} digits are no whole bytes")
    return base64.b64encode(bytes.fromhex(digits)).decode()


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def _enumerations() -> dict[str, frozenset[str]]:
    """The names that fields of enumerations may have, by the fields' names in both spellings."""
    found: dict[str, frozenset[str]] = {}
    waiting: list[Any] = [kind.DESCRIPTOR for kind in REQUESTS.values()]
    seen = set()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            if field.enum_type is not None:
                names = frozenset(field.enum_type.values_by_name)
                found |= {field.name: names, field.json_name: names}
            elif field.message_type is not None:
                waiting.append(field.message_type)
    return found


_ENUMERATIONS: Final = _enumerations()
