"""Log records as rows of the table `logs`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from calve.ingest.otlp.attributes import attribute_maps
from calve.ingest.otlp.columns import Level, moments
from calve.ingest.otlp.ids import SPAN_BYTES, TRACE_BYTES, optional_id
from calve.ingest.otlp.values import kind_texts, value_texts


def log_columns(logs: Level) -> dict[str, pa.Array]:
    """`time` is when it happened; if that is not known, when it was observed, as OTLP advises."""
    attributes = attribute_maps(logs, "attributes")
    body, kinds = value_texts(logs.one("body"))
    nanos = logs.nanos("time_unix_nano")
    observed = logs.nanos("observed_time_unix_nano")
    return {
        "time": moments(pc.coalesce(nanos, observed)),
        "severity_number": logs.field("severity_number"),
        "severity_text": logs.text("severity_text"),
        "event_name": logs.text("event_name"),
        "body": body,
        "body_type": kind_texts(kinds),
        "trace_id": optional_id(logs, "trace_id", TRACE_BYTES),
        "span_id": optional_id(logs, "span_id", SPAN_BYTES),
        "flags": logs.count("flags"),
        "time_unix_nano": nanos,
        "observed_time_unix_nano": observed,
        "attributes": attributes.texts,
        "attribute_types": attributes.kinds,
        "dropped_attributes_count": logs.count("dropped_attributes_count"),
    }
