"""What decoding a request takes of memory, about: two bytes can become a row of many columns.

Asked twice: of the bytes, because parsing alone makes ninety times as many of empty records; and of
the message, in which everything can be counted.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from calve.ingest.otlp.messages import LEVELS

_TIMES: Final = 6  # of the bytes, for what is in them
_RECORD_BYTES: Final = 1_024  # of a row, also of an empty record
_ENTRY_BYTES: Final = 128  # of an attribute or a number in a list, also of an empty one
# Entries are counted one by one in large requests only: the others take little, whatever they hold.
_SMALL_BYTES: Final = 1 << 20
_UNSEEN_BYTES: Final = 256 << 10  # so much is parsed without a look at the bytes
_TINY_BYTES: Final = 12
_MESSAGE_BYTES: Final = 200  # of a parsed message of any kind
_LENGTH_FOLLOWS: Final = 2  # in the last bits of a tag


def weight_to_parse(body: bytes) -> int:
    """In bytes, for what is short: the rest becomes a few times its size.

    Counted are places that look like a tag and a small length, whatever they are, and lengths that
    are written with more digits than they need.
    """
    if len(body) <= _UNSEEN_BYTES:
        return 0
    content = np.frombuffer(body, np.uint8)
    first, second = content[:-1], content[1:]
    is_tiny = (first & 7 == _LENGTH_FOLLOWS) & (second <= _TINY_BYTES)
    is_stretched = (first > 127) & (second == 0)
    return _MESSAGE_BYTES * int(np.count_nonzero(is_tiny) + np.count_nonzero(is_stretched))


def weight(signal: str, message: Any, body_bytes: int) -> int:
    """In bytes, at least what it may become."""
    outer, middle, inner = LEVELS[signal]
    is_large = body_bytes > _SMALL_BYTES
    total = _TIMES * body_bytes
    for resource in getattr(message, outer):
        scopes = getattr(resource, middle)
        total += _ENTRY_BYTES * (len(resource.resource.attributes) + len(scopes))
        for scope in scopes:
            records = getattr(scope, inner)
            total += _ENTRY_BYTES * len(scope.scope.attributes)
            total += _RECORD_BYTES * len(records)
            if signal == "metrics":
                total += _RECORD_BYTES * sum(map(_point_count, records))
            if is_large:
                total += _ENTRY_BYTES * sum(map(_ENTRIES[signal], records))
    return total


def _point_count(metric: Any) -> int:
    kind = metric.WhichOneof("data")
    return len(getattr(metric, kind).data_points) if kind else 0


def _in_span(span: Any) -> int:
    events, links = span.events, span.links
    inside = sum(len(each.attributes) for each in events) + sum(len(e.attributes) for e in links)
    return len(span.attributes) + len(events) + len(links) + inside


def _in_record(record: Any) -> int:
    return len(record.attributes)


def _in_metric(metric: Any) -> int:
    kind = metric.WhichOneof("data")
    points = getattr(metric, kind).data_points if kind else ()
    return len(metric.metadata) + sum(_in_point(point, str(kind)) for point in points)


def _in_point(point: Any, kind: str) -> int:
    total = len(point.attributes)
    if kind == "summary":
        return total + len(point.quantile_values)
    if kind == "histogram":
        total += len(point.bucket_counts)
    elif kind == "exponential_histogram":
        total += len(point.positive.bucket_counts) + len(point.negative.bucket_counts)
    exemplars = point.exemplars
    return total + len(exemplars) + sum(len(each.filtered_attributes) for each in exemplars)


_ENTRIES: Final = {"traces": _in_span, "logs": _in_record, "metrics": _in_metric}
