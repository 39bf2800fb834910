"""Ids of traces and spans: where they must be right, and what becomes of those that are not."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calve.ingest.otlp.columns import Level, as_hex, lengths_of
from calve.ingest.otlp.tables import TEXT

TRACE_BYTES: Final = 16
SPAN_BYTES: Final = 8


def required_id(level: Level, name: str, size: int) -> pa.StringArray:
    """A span without its ids is none: a fault."""
    texts, is_valid, _ = _looked_at(level, name, size)
    if not is_valid.all():
        bad = np.flatnonzero(~is_valid)
        level.faults.note(level.records[bad], f"{name} is not {size} bytes that are not all zero")
    return texts


def parent_id(level: Level, name: str, size: int) -> pa.StringArray:
    """None, or all zero, for the first span of a trace; of another length it is a fault."""
    texts, is_valid, has_length = _looked_at(level, name, size)
    if not has_length.all():
        bad = np.flatnonzero(~has_length)
        level.faults.note(level.records[bad], f"{name} has neither 0 nor {size} bytes")
    return _null_unless(texts, is_valid)


def optional_id(level: Level, name: str, size: int) -> pa.StringArray:
    """Null if it is not valid: OTLP says that the record then belongs to no trace."""
    texts, is_valid, _ = _looked_at(level, name, size)
    return _null_unless(texts, is_valid)


def _looked_at(
    level: Level, name: str, size: int
) -> tuple[pa.StringArray, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """The texts; whether each is an id; and whether it has the length of one, or none at all."""
    raw = level.field(name)
    lengths = lengths_of(raw)
    texts = as_hex(raw)
    is_zero: Any = np.zeros(len(raw), np.bool_)
    content = np.frombuffer(raw.buffers()[2] or b"", np.uint8)
    if (lengths == size).all() and len(raw):
        words = content[: len(raw) * size].view(np.uint64).reshape(len(raw), -1)
        is_zero = np.bitwise_or.reduce(words, axis=1) == 0
    elif lengths.any():
        zero = "0" * (2 * size)
        is_zero = np.array([each == zero for each in texts.to_pylist()], np.bool_)
    return texts, (lengths == size) & ~is_zero, (lengths == size) | (lengths == 0)


def _null_unless(texts: pa.StringArray, is_there: npt.NDArray[np.bool_]) -> pa.StringArray:
    if is_there.all():
        return texts
    if not is_there.any():
        return pa.nulls(len(texts), TEXT)
    order = np.arange(len(texts))
    return texts.take(pa.array(order, mask=~is_there))
