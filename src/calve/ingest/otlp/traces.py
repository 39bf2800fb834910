"""Spans as rows of the table `traces`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from calve.ingest.otlp.attributes import attribute_maps
from calve.ingest.otlp.columns import Level, moments
from calve.ingest.otlp.ids import SPAN_BYTES, TRACE_BYTES, parent_id, required_id
from calve.ingest.otlp.tables import EVENTS, LINKS

_KINDS: Final = {
    0: "UNSPECIFIED",
    1: "INTERNAL",
    2: "SERVER",
    3: "CLIENT",
    4: "PRODUCER",
    5: "CONSUMER",
}
_STATUS: Final = {0: "UNSET", 1: "OK", 2: "ERROR"}


def span_columns(spans: Level) -> dict[str, pa.Array]:
    attributes = attribute_maps(spans, "attributes")
    status = spans.one("status")
    start, end = spans.nanos("start_time_unix_nano"), spans.nanos("end_time_unix_nano")
    return {
        "time": moments(start),
        "trace_id": required_id(spans, "trace_id", TRACE_BYTES),
        "span_id": required_id(spans, "span_id", SPAN_BYTES),
        "parent_span_id": parent_id(spans, "parent_span_id", SPAN_BYTES),
        "trace_state": spans.text("trace_state"),
        "flags": spans.count("flags"),
        "name": spans.text("name"),
        "kind": spans.choice("kind", _KINDS),
        "start_time_unix_nano": start,
        "end_time_unix_nano": end,
        "duration_nano": pc.subtract(end, start),
        "status_code": status.choice("code", _STATUS),
        "status_message": status.text("message"),
        "attributes": attributes.texts,
        "attribute_types": attributes.kinds,
        "dropped_attributes_count": spans.count("dropped_attributes_count"),
        "events": _events(spans),
        "dropped_events_count": spans.count("dropped_events_count"),
        "links": _links(spans),
        "dropped_links_count": spans.count("dropped_links_count"),
    }


def _events(spans: Level) -> pa.ListArray:
    lists = spans.many("events")
    if (empty := lists.without_any(EVENTS)) is not None:
        return empty
    events = lists.inner
    attributes = attribute_maps(events, "attributes")
    nanos = events.nanos("time_unix_nano")
    return lists.array(
        EVENTS,
        {
            "time": moments(nanos),
            "time_unix_nano": nanos,
            "name": events.text("name"),
            "attributes": attributes.texts,
            "attribute_types": attributes.kinds,
            "dropped_attributes_count": events.count("dropped_attributes_count"),
        },
    )


def _links(spans: Level) -> pa.ListArray:
    lists = spans.many("links")
    if (empty := lists.without_any(LINKS)) is not None:
        return empty
    links = lists.inner
    attributes = attribute_maps(links, "attributes")
    return lists.array(
        LINKS,
        {
            "trace_id": links.hex("trace_id"),
            "span_id": links.hex("span_id"),
            "trace_state": links.text("trace_state"),
            "flags": links.count("flags"),
            "attributes": attributes.texts,
            "attribute_types": attributes.kinds,
            "dropped_attributes_count": links.count("dropped_attributes_count"),
        },
    )
