"""A request as rows of its tables, and the records of it that cannot be stored."""

from __future__ import annotations

from typing import Any, NamedTuple

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
    request = Request(reader(signal), message)
    if not len(request.records):
        return []
    if signal == "metrics":
        return _metrics(request)
    if signal == "traces":
        table, columns = TRACES, span_columns(request.records)
    else:
        table, columns = LOGS, log_columns(request.records)
    every = np.arange(len(request.records))
    columns |= request.origin(every)
    excerpts = Excerpts(request)
    return [_decoded(table, columns, request.records.faults, excerpts.record)]


def _metrics(request: Request) -> list[Decoded]:
    metrics = request.records
    of_metrics = metric_columns(metrics)
    excerpts = Excerpts(request)
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
        found.append(_decoded(table, columns, points.faults, excerpts.points(kind, metric_of)))
    return found


def _decoded(
    table: SignalTable, columns: dict[str, pa.Array], faults: Faults, excerpt: Any
) -> Decoded:
    rows = pa.record_batch([columns[name] for name in table.schema.names], schema=table.schema)
    remarks = frozenset(faults.remarks)
    if not faults.reasons:
        return Decoded(table, rows, [], remarks)
    rejected = [excerpt(place, reason) for place, reason in sorted(faults.reasons.items())]
    kept = _others(rows.num_rows, faults)
    return Decoded(table, rows.take(pa.array(kept)) if kept.size else None, rejected, remarks)


def _others(count: int, faults: Faults) -> Places:
    is_kept = np.ones(count, np.bool_)
    is_kept[list(faults.reasons)] = False
    return np.flatnonzero(is_kept)
