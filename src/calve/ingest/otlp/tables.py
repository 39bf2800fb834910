"""The seven tables of telemetry: their columns, and how they are partitioned and sorted.

What OTLP leaves empty or zero to say that it is not known is null: text, times and ids. Unsigned
numbers are `long`, because Iceberg has none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

TEXT: Final = pa.string()
MOMENT: Final = pa.timestamp("us", tz="UTC")
NANOS: Final = pa.int64()
COUNT: Final = pa.int64()
MAP: Final = pa.map_(TEXT, TEXT)
REJECTED_TYPE: Final = "application/x-protobuf; message="  # and the name of the request's message


class SignalTable(NamedTuple):
    """A table that OTLP fills."""

    name: str
    schema: pa.Schema
    sort_by: tuple[str, ...]
    partition_by: tuple[str, ...] = ("day(time)",)


def _attributes(prefix: str = "") -> list[tuple[str, pa.DataType]]:
    return [
        (f"{prefix}attributes", MAP),
        (f"{prefix}attribute_types", MAP),
        (f"{prefix}dropped_attributes_count", COUNT),
    ]


def _structs(fields: list[tuple[str, pa.DataType]]) -> pa.ListType:
    return pa.list_(pa.field("element", pa.struct(fields)))


ENTITY_REFS: Final = _structs(
    [
        ("schema_url", TEXT),
        ("type", TEXT),
        ("id_keys", pa.list_(pa.field("element", TEXT))),
        ("description_keys", pa.list_(pa.field("element", TEXT))),
    ]
)
EVENTS: Final = _structs(
    [("time", MOMENT), ("time_unix_nano", NANOS), ("name", TEXT), *_attributes()]
)
LINKS: Final = _structs(
    [
        ("trace_id", TEXT),
        ("span_id", TEXT),
        ("trace_state", TEXT),
        ("flags", COUNT),
        *_attributes(),
    ]
)
EXEMPLARS: Final = _structs(
    [
        ("time", MOMENT),
        ("time_unix_nano", NANOS),
        ("value", pa.float64()),
        ("value_int", pa.int64()),
        ("trace_id", TEXT),
        ("span_id", TEXT),
        ("filtered_attributes", MAP),
        ("filtered_attribute_types", MAP),
    ]
)
QUANTILES: Final = _structs([("quantile", pa.float64()), ("value", pa.float64())])
COUNTS: Final = pa.list_(pa.field("element", COUNT))
BOUNDS: Final = pa.list_(pa.field("element", pa.float64()))

_ORIGIN: Final = [
    *_attributes("resource_"),
    ("resource_entity_refs", ENTITY_REFS),
    ("resource_schema_url", TEXT),
    ("scope_name", TEXT),
    ("scope_version", TEXT),
    *_attributes("scope_"),
    ("scope_schema_url", TEXT),
]
_POINT: Final = [
    ("time", MOMENT),
    ("service_name", TEXT),
    ("name", TEXT),
    ("description", TEXT),
    ("unit", TEXT),
    ("metadata", MAP),
    ("metadata_types", MAP),
    ("attributes", MAP),
    ("attribute_types", MAP),
    ("time_unix_nano", NANOS),
    ("start_time", MOMENT),
    ("start_time_unix_nano", NANOS),
    ("flags", COUNT),
]
_NUMBER: Final = [("value", pa.float64()), ("value_int", pa.int64()), ("exemplars", EXEMPLARS)]
_TEMPORALITY: Final = ("aggregation_temporality", TEXT)
_EXTENT: Final = [
    ("count", COUNT),
    ("sum", pa.float64()),
    ("min", pa.float64()),
    ("max", pa.float64()),
]


def _metric(kind: str, fields: list[tuple[str, pa.DataType]]) -> SignalTable:
    schema = pa.schema([*_POINT, *fields, *_ORIGIN])
    return SignalTable(f"metrics_{kind}", schema, ("name", "service_name", "time"))


TRACES: Final = SignalTable(
    "traces",
    pa.schema(
        [
            ("time", MOMENT),
            ("service_name", TEXT),
            ("trace_id", TEXT),
            ("span_id", TEXT),
            ("parent_span_id", TEXT),
            ("trace_state", TEXT),
            ("flags", COUNT),
            ("name", TEXT),
            ("kind", TEXT),
            ("start_time_unix_nano", NANOS),
            ("end_time_unix_nano", NANOS),
            ("duration_nano", NANOS),
            ("status_code", TEXT),
            ("status_message", TEXT),
            *_attributes(),
            ("events", EVENTS),
            ("dropped_events_count", COUNT),
            ("links", LINKS),
            ("dropped_links_count", COUNT),
            *_ORIGIN,
        ]
    ),
    # By name too: what a route says of itself repeats from span to span.
    ("service_name", "name", "time"),
)
LOGS: Final = SignalTable(
    "logs",
    pa.schema(
        [
            ("time", MOMENT),
            ("service_name", TEXT),
            ("severity_number", pa.int32()),
            ("severity_text", TEXT),
            ("event_name", TEXT),
            ("body", TEXT),
            ("body_type", TEXT),
            ("trace_id", TEXT),
            ("span_id", TEXT),
            ("flags", COUNT),
            ("time_unix_nano", NANOS),
            ("observed_time_unix_nano", NANOS),
            *_attributes(),
            *_ORIGIN,
        ]
    ),
    ("service_name", "time"),
)
GAUGE: Final = _metric("gauge", _NUMBER)
SUM: Final = _metric("sum", [*_NUMBER, _TEMPORALITY, ("is_monotonic", pa.bool_())])
HISTOGRAM: Final = _metric(
    "histogram",
    [
        *_EXTENT,
        ("bucket_counts", COUNTS),
        ("explicit_bounds", BOUNDS),
        ("exemplars", EXEMPLARS),
        _TEMPORALITY,
    ],
)
EXPONENTIAL_HISTOGRAM: Final = _metric(
    "exponential_histogram",
    [
        *_EXTENT,
        ("scale", pa.int32()),
        ("zero_count", COUNT),
        ("zero_threshold", pa.float64()),
        ("positive_offset", pa.int32()),
        ("positive_bucket_counts", COUNTS),
        ("negative_offset", pa.int32()),
        ("negative_bucket_counts", COUNTS),
        ("exemplars", EXEMPLARS),
        _TEMPORALITY,
    ],
)
SUMMARY: Final = _metric(
    "summary", [("count", COUNT), ("sum", pa.float64()), ("quantiles", QUANTILES)]
)
METRICS: Final = (GAUGE, SUM, HISTOGRAM, EXPONENTIAL_HISTOGRAM, SUMMARY)
TABLES: Final = {table.name: table for table in (TRACES, LOGS, *METRICS)}
