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
_DIGITS: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")
_TIMES: Final = 32  # of its bytes that a text takes as objects: three are enough for an empty one
_HINT: Final = "send an export request in OTLP's JSON, with ids as hexadecimal digits"


def weight_of(body: bytes) -> int:
    """What it takes of memory to read a text, about, in bytes."""
    return _TIMES * len(body)


def protobuf_of(signal: str, body: bytes) -> bytes:
    """The same request in protobuf; InvalidRequest if it is none."""
    try:
        document = json.loads(body, object_hook=_with_ids)
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


def _with_ids(fields: dict[str, Any]) -> dict[str, Any]:
    """An object of the text, with its ids as protobuf's JSON has bytes. In place: no second one."""
    for name in _IDS & fields.keys():
        digits = fields[name]
        if isinstance(digits, str):
            fields[name] = _base64(name, digits)
    return fields


def _base64(name: str, digits: str) -> str:
    if not _DIGITS.fullmatch(digits):
        raise ValueError(f"{name} is {digits[:40]!r}, which is not in hexadecimal digits")
    return base64.b64encode(bytes.fromhex(digits)).decode()
