"""Requests in OTLP's JSON: protobuf's, but with ids in hexadecimal digits."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError

from calve.errors import InvalidRequest
from calve.ingest.otlp.messages import REQUESTS

_IDS: Final = frozenset(
    {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}
)
_HINT: Final = "send an export request in OTLP's JSON, with ids as hexadecimal digits"


def protobuf_of(signal: str, body: bytes) -> bytes:
    """The same request in protobuf; InvalidRequest if it is none."""
    try:
        document = json.loads(body)
        if not isinstance(document, dict):
            raise InvalidRequest("the body is no JSON object", hint=_HINT)
        request = ParseDict(_with_ids(document), REQUESTS[signal](), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidRequest(
            f"the body is no request for {signal} in JSON: {first}", hint=_HINT
        ) from error
    content: bytes = request.SerializeToString()
    return content


def _with_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _base64(each) if name in _IDS and isinstance(each, str) else _with_ids(each)
        for name, each in value.items()
    }


def _base64(digits: str) -> str:
    return base64.b64encode(bytes.fromhex(digits)).decode()
