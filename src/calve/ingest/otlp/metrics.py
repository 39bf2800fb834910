"""Data points as rows of the five tables of metrics, one for each kind of metric."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from calve.ingest.otlp.attributes import attribute_maps
from calve.ingest.otlp.columns import Level, Places, as_longs, moments
from calve.ingest.otlp.tables import BOUNDS, COUNTS, EXEMPLARS, QUANTILES

_TEMPORALITY: Final = {0: "UNSPECIFIED", 1: "DELTA", 2: "CUMULATIVE"}


def metric_columns(metrics: Level) -> dict[str, pa.Array]:
    """What the points of a metric have in common; one row for each metric."""
    metadata = attribute_maps(metrics, "metadata")
    return {
        "name": metrics.text("name"),
        "description": metrics.text("description"),
        "unit": metrics.text("unit"),
        "metadata": metadata.texts,
        "metadata_types": metadata.kinds,
    }


def point_columns(kind: str, metrics: Level) -> tuple[Level, Places, dict[str, pa.Array]]:
    """The points of the metrics of one kind, in which metric each lies, and their columns."""
    whole = metrics.one(kind)
    points, metric_of = whole.below("data_points")
    columns = _OWN[kind](points) | _shared(points)
    owners = pa.array(metric_of)
    if "aggregation_temporality" in _fields(whole):
        temporality = whole.choice("aggregation_temporality", _TEMPORALITY)
        columns["aggregation_temporality"] = temporality.take(owners)
    if "is_monotonic" in _fields(whole):
        columns["is_monotonic"] = whole.field("is_monotonic").take(owners)
    return points, metric_of, columns


def _fields(level: Level) -> list[str]:
    return [field.name for field in level.kind]


def _shared(points: Level) -> dict[str, pa.Array]:
    attributes = attribute_maps(points, "attributes")
    nanos, start = points.nanos("time_unix_nano"), points.nanos("start_time_unix_nano")
    return {
        "time": moments(nanos),
        "time_unix_nano": nanos,
        "start_time": moments(start),
        "start_time_unix_nano": start,
        "attributes": attributes.texts,
        "attribute_types": attributes.kinds,
        "flags": points.count("flags"),
    }


def _number(points: Level) -> dict[str, pa.Array]:
    return {**_value(points), "exemplars": _exemplars(points)}


def _value(points: Level) -> dict[str, pa.Array]:
    """As a double, whatever it was; and exactly, if it was a whole number."""
    integers = points.field("as_int")
    doubles = pc.cast(integers, pa.float64(), safe=False)
    return {"value": pc.coalesce(points.field("as_double"), doubles), "value_int": integers}


def _histogram(points: Level) -> dict[str, pa.Array]:
    return {
        **_extent(points),
        "bucket_counts": as_longs(points.field("bucket_counts"), points, "bucket_counts", COUNTS),
        "explicit_bounds": points.field("explicit_bounds").cast(BOUNDS),
        "exemplars": _exemplars(points),
    }


def _exponential_histogram(points: Level) -> dict[str, pa.Array]:
    return {
        **_extent(points),
        "scale": points.field("scale"),
        "zero_count": points.count("zero_count"),
        "zero_threshold": points.field("zero_threshold"),
        **_buckets(points, "positive"),
        **_buckets(points, "negative"),
        "exemplars": _exemplars(points),
    }


def _buckets(points: Level, name: str) -> dict[str, pa.Array]:
    buckets = points.one(name)
    counts = as_longs(buckets.field("bucket_counts"), buckets, "bucket_counts", COUNTS)
    return {f"{name}_offset": buckets.field("offset"), f"{name}_bucket_counts": counts}


def _extent(points: Level) -> dict[str, pa.Array]:
    return {
        "count": points.count("count"),
        "sum": points.field("sum"),
        "min": points.field("min"),
        "max": points.field("max"),
    }


def _summary(points: Level) -> dict[str, pa.Array]:
    lists = points.many("quantile_values")
    values = lists.inner
    quantiles = {"quantile": values.field("quantile"), "value": values.field("value")}
    return {
        "count": points.count("count"),
        "sum": points.field("sum"),
        "quantiles": lists.array(QUANTILES, quantiles),
    }


def _exemplars(points: Level) -> pa.ListArray:
    lists = points.many("exemplars")
    if (empty := lists.without_any(EXEMPLARS)) is not None:
        return empty
    exemplars = lists.inner
    attributes = attribute_maps(exemplars, "filtered_attributes")
    nanos = exemplars.nanos("time_unix_nano")
    return lists.array(
        EXEMPLARS,
        {
            "time": moments(nanos),
            "time_unix_nano": nanos,
            **_value(exemplars),
            "trace_id": exemplars.hex("trace_id"),
            "span_id": exemplars.hex("span_id"),
            "filtered_attributes": attributes.texts,
            "filtered_attribute_types": attributes.kinds,
        },
    )


_OWN: Final = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential_histogram,
    "summary": _summary,
}
KINDS: Final = tuple(_OWN)
