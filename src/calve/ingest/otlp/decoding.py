"""Requests as rows of their tables, and the records of them that cannot be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from calve.ingest.otlp.columns import Faults, Places
from calve.ingest.otlp.excerpts import Excerpts
from calve.ingest.otlp.logs import log_columns
from calve.ingest.otlp.messages import reader
from calve.ingest.otlp.metrics import KINDS, metric_columns, point_columns
from calve.ingest.otlp.request import Request
from calve.ingest.otlp.tables import LOGS, TABLES, TRACES, SignalTable
from calve.ingest.otlp.traces import span_columns
from calve.wal import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Decoded(NamedTuple):
    """What of a request goes into one table."""

    table: SignalTable
    rows: pa.RecordBatch | None
    rejected: list[Rejected]
    remarks: frozenset[str] = frozenset()  # about what is stored


def read_message(signal: str, body: bytes) -> Any:
    """A request of `traces`, `logs` or `metrics` in protobuf; InvalidRequest if it is none."""
    return reader(signal).message(body)


def decode(signal: str, message: Any) -> list[Decoded]:
    """The rows of a request by table; none if it holds no records."""
    request = Request(reader(signal), [message])
    return _parts(signal, request, Excerpts(request))


def decode_together(signal: str, messages: Sequence[Any]) -> list[Decoded] | None:
    """The rows of several requests, as if they were one.

    None if there is something to say of one of them, which the others must not be told: then each
    is to be decoded alone.
    """
    try:
        return _parts(signal, Request(reader(signal), messages), None)
    except _SomethingToSay:
        return None


class _SomethingToSay(Exception):
    """One request of several has records that cannot be stored, or not as they are."""


def _parts(signal: str, request: Request, excerpts: Excerpts | None) -> list[Decoded]:
    if not len(request.records):
        return []
    if signal == "metrics":
        return _metrics(request, excerpts)
    if signal == "traces":
        table, columns = TRACES, span_columns(request.records)
    else:
        table, columns = LOGS, log_columns(request.records)
    every = np.arange(len(request.records))
    columns |= request.origin(every)
    excerpt = None if excerpts is None else excerpts.record
    return [_decoded(table, columns, request.records.faults, excerpt)]


def _metrics(request: Request, excerpts: Excerpts | None) -> list[Decoded]:
    metrics = request.records
    of_metrics = metric_columns(metrics)
    found = []
    for kind in KINDS:
        if metrics.field(kind).null_count == len(metrics):
            continue
        points, metric_of, columns = point_columns(kind, metrics)
        if not len(points):
            continue
        metrics.faults.spread(metric_of, points.faults)
        owners = pa.array(metric_of)
        columns |= {name: column.take(owners) for name, column in of_metrics.items()}
        columns |= request.origin(metric_of)
        table = TABLES[f"metrics_{kind}"]
        excerpt = None if excerpts is None else excerpts.points(kind, metric_of)
        found.append(_decoded(table, columns, points.faults, excerpt))
    return found


def _decoded(
    table: SignalTable,
    columns: dict[str, pa.Array],
    faults: Faults,
    excerpt: Callable[[int, str], Rejected] | None,
) -> Decoded:
    if excerpt is None and (faults.reasons or faults.remarks):
        raise _SomethingToSay
    rows = pa.record_batch([columns[name] for name in table.schema.names], schema=table.schema)
    remarks = frozenset(faults.remarks)
    if excerpt is None or not faults.reasons:
        return Decoded(table, rows, [], remarks)
    rejected = [excerpt(place, reason) for place, reason in sorted(faults.reasons.items())]
    kept = _others(rows.num_rows, faults)
    return Decoded(table, rows.take(pa.array(kept)) if kept.size else None, rejected, remarks)


def _others(count: int, faults: Faults) -> Places:
    is_kept = np.ones(count, np.bool_)
    is_kept[list(faults.reasons)] = False
    return np.flatnonzero(is_kept)
