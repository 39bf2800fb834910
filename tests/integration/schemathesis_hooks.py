"""How Schemathesis writes bodies that are not JSON: as they are, or as a row that holds them."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import schemathesis


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _is_wrapped(value: Any) -> bool:
    return len(_bytes(value)) % 2 == 0


@schemathesis.serializer("application/x-ndjson")
def lines(context: object, value: Any) -> bytes:
    return json.dumps({"name": str(value)}).encode() if _is_wrapped(value) else _bytes(value)


@schemathesis.serializer("text/csv")
def cells(context: object, value: Any) -> bytes:
    if not _is_wrapped(value):
        return _bytes(value)
    text = io.StringIO()
    csv.writer(text).writerows([["name"], [str(value)]])
    return text.getvalue().encode("utf-8", "surrogatepass")


@schemathesis.serializer("application/vnd.apache.arrow.stream")
def stream(context: object, value: Any) -> bytes:
    return _bytes(value)
