"""What was set aside, shown so that a person can read it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa

from calve.errors import InvalidRequest
from calve.ingest.formats.arrow_rows import ARROW, arrow_batches

SHOWN_BYTES_MAX: Final = 64 * 1024
_TEXT: Final = ("text/", "application/json", "application/x-ndjson")


def shown(original: bytes, content_type: str) -> dict[str, Any]:
    """The fields that show it: as text, as values, or else as its bytes."""
    if content_type == ARROW and len(original) <= SHOWN_BYTES_MAX:
        values = _values(original)
        if values is not None:
            return {"values": values, "is_whole": True}
    part = original[:SHOWN_BYTES_MAX]
    is_whole = len(part) == len(original)
    if content_type.startswith(_TEXT):
        # Whatever is no UTF-8, which may be the reason, is shown by its number.
        return {"text": part.decode("utf-8", "backslashreplace"), "is_whole": is_whole}
    return {"base64": part, "is_whole": is_whole}


def _values(original: bytes) -> list[dict[str, Any]] | None:
    try:
        batches = list(arrow_batches(original, bytes_max=16 * SHOWN_BYTES_MAX))
        rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="lossy")]
        # As JSON knows them; what it does not, as text.
        values: list[dict[str, Any]] = msgspec.json.decode(
            msgspec.json.encode(rows, enc_hook=str, order=None)
        )
    except (InvalidRequest, pa.ArrowException, ValueError, TypeError):
        return None
    return values
