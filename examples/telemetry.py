"""An hour in the life of a shop, sent with the OpenTelemetry SDK: spans, log records and metrics.

    python examples/telemetry.py http://127.0.0.1:4317

The hour ends with the last full ten minutes. What happens in it is always the same, so that the
answers in docs/guides/telemetry-queries.md are everybody's.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

ORDERS = 240  # one every 15 seconds
MS = 1_000_000
SECOND = 1_000 * MS
BOUNDS = (50.0, 100.0, 250.0, 500.0, 1_000.0)
SHOP = Resource({"service.name": "shop", "service.version": "1.2"})
PAYMENTS = Resource({"service.name": "payments"})
RESTART = 40  # the minute in which the shop began again, and its counters with it


def send(url: str) -> int:
    """Send the hour to an endpoint of OTLP over gRPC; how many orders there were in it."""
    ten_minutes = 600 * SECOND
    begin = time.time_ns() // ten_minutes * ten_minutes - 3_600 * SECOND
    send_orders(url, begin)
    exporter = OTLPMetricExporter(url, insecure=True)
    for minute in range(1, 61):
        exporter.export(points(begin, minute))
    exporter.shutdown()
    return ORDERS


def checkout_ms(order: int) -> int:
    return 1_500 if order % 40 == 7 else 60 + order * 37 % 90


def is_declined(order: int) -> bool:
    """One in twenty; one in four while the bank had its bad ten minutes."""
    return order % (4 if 80 <= order < 120 else 20) == 3


def send_orders(url: str, begin: int) -> None:
    """A span of the shop for each order, in it one of the payments, and a line in a log."""
    tracing = {each: TracerProvider(resource=each) for each in (SHOP, PAYMENTS)}
    logging = {each: LoggerProvider(resource=each) for each in (SHOP, PAYMENTS)}
    for tracers, loggers in zip(tracing.values(), logging.values(), strict=True):
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url, insecure=True)))
        exporter = OTLPLogExporter(url, insecure=True)
        loggers.add_log_record_processor(BatchLogRecordProcessor(exporter))
    shop, payments = (tracing[each].get_tracer("shop.orders") for each in (SHOP, PAYMENTS))
    for order in range(ORDERS):
        start = begin + 15 * order * SECOND
        country = "fr" if order % 4 == 0 else "de"
        checkout = shop.start_span(
            "POST /checkout",
            kind=SpanKind.SERVER,
            start_time=start,
            attributes={"http.route": "/checkout", "shop.country": country, "shop.order": order},
        )
        context = set_span_in_context(checkout)
        charge = payments.start_span("charge card", context, start_time=start + 5 * MS)
        if is_declined(order):
            charge.set_status(StatusCode.ERROR, "card declined")
            checkout.set_status(StatusCode.ERROR)
        charge.end(start + (25 + order * 13 % 20) * MS)
        checkout.end(start + checkout_ms(order) * MS)
        speaker = PAYMENTS if is_declined(order) else SHOP
        logging[speaker].get_logger("shop.orders").emit(
            LogRecord(
                timestamp=start + 30 * MS,
                context=context,
                severity_number=SeverityNumber.WARN if is_declined(order) else SeverityNumber.INFO,
                body=f"order {order}: {'card declined' if is_declined(order) else 'placed'}",
                attributes={"shop.country": country},
            )
        )
    for tracers, loggers in zip(tracing.values(), logging.values(), strict=True):
        tracers.shutdown()
        loggers.shutdown()


def points(begin: int, minute: int) -> MetricsData:
    """What the shop's meters say at the end of a minute, since it began, or began again."""
    first = RESTART if minute > RESTART else 0
    start, now = begin + 60 * first * SECOND, begin + 60 * minute * SECOND
    orders = range(4 * first, 4 * minute)
    french = sum(order % 4 == 0 for order in orders)
    counts = {"fr": french, "de": len(orders) - french}
    durations = [checkout_ms(order) for order in orders]
    edges = (float("-inf"), *BOUNDS, float("inf"))
    buckets = [sum(low < each <= high for each in durations) for low, high in pairwise(edges)]
    taken = Sum(
        [NumberDataPoint({"shop.country": name}, start, now, n) for name, n in counts.items()],
        AggregationTemporality.CUMULATIVE,
        is_monotonic=True,
    )
    lasted = HistogramDataPoint(
        {}, start, now, len(orders), sum(durations), buckets, BOUNDS, min(durations), max(durations)
    )
    metrics = [
        Metric("shop.orders", "orders taken", "{order}", taken),
        Metric(
            "shop.checkout.duration",
            "how long a checkout took",
            "ms",
            Histogram([lasted], AggregationTemporality.CUMULATIVE),
        ),
    ]
    scope = ScopeMetrics(InstrumentationScope("shop.orders"), metrics, "")
    return MetricsData([ResourceMetrics(SHOP, [scope], "")])


if __name__ == "__main__":
    send(sys.argv[1])
