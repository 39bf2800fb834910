"""Rejected records read again, after somebody mended what they were rejected for."""

from __future__ import annotations

from typing import Final

from calve.errors import InvalidRequest
from calve.ingest.otlp.decoding import Decoded, decode, read_message
from calve.ingest.otlp.messages import REQUESTS
from calve.ingest.otlp.tables import REJECTED_TYPE

_SIGNALS: Final = {kind.DESCRIPTOR.full_name: signal for signal, kind in REQUESTS.items()}


def read_again(original: bytes, content_type: str) -> list[Decoded]:
    """What a record, kept as a request of its own, is now; InvalidRequest if it is none."""
    signal = _SIGNALS.get(content_type.removeprefix(REJECTED_TYPE))
    if signal is None:
        raise InvalidRequest(f"records of the type {content_type!r} cannot be read again")
    return decode(signal, read_message(signal, original))
