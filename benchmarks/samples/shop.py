"""Telemetry of a shop with twelve services, as its exporters would send it: for benchmarks.

Traces go through several services, and each of three instances of a service sends its own spans,
log records and points, 512 in a request. Spans have the attributes that OpenTelemetry's own
instrumentation gives them, half of them with those of threads, which its agent for Java adds;
statements are as long as an object mapper writes them, and what fails has a stack trace. Ids are
random, times have nanoseconds, durations a long tail; routes, customers, browsers, ports and lines
of logs repeat as they do in a shop. The same seed gives the same requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

RECORDS: Final = 512  # in a request, as the SDKs' batches have
BEGIN_NANO: Final = 1_772_000_000_000_000_000
TRACES_PER_SECOND: Final = 400
CUSTOMERS: Final = 20_000
PRODUCTS: Final = 5_000
BROWSERS: Final = 150
PORTS: Final = range(32_768, 61_000)
JAVA: Final = frozenset({"gateway", "catalog", "checkout", "payment", "inventory", "account"})
Attributes = Mapping[str, str | int | float | bool]

ROUTES: Final = {
    "gateway": ("GET /", "GET /products/{id}", "GET /search", "GET /cart", "POST /cart/items"),
    "catalog": ("GET /products/{id}", "GET /products", "GET /categories/{name}"),
    "search": ("GET /search", "GET /suggest"),
    "cart": ("GET /carts/{id}", "POST /carts/{id}/items", "DELETE /carts/{id}/items/{item}"),
    "checkout": ("POST /orders", "GET /orders/{id}"),
    "payment": ("POST /charges", "POST /refunds"),
    "inventory": ("GET /stock/{id}", "POST /reservations"),
    "shipping": ("POST /quotes", "POST /shipments", "GET /shipments/{id}"),
    "account": ("GET /customers/{id}", "POST /sessions"),
    "recommendation": ("GET /recommendations/{id}",),
    "price": ("GET /prices/{id}", "POST /quotes"),
    "mail": ("POST /mails",),
}
CALLS: Final = {
    "gateway": ("catalog", "search", "cart", "checkout", "account", "recommendation"),
    "catalog": ("price", "inventory"),
    "search": ("catalog",),
    "cart": ("price", "inventory"),
    "checkout": ("cart", "payment", "shipping", "account", "mail"),
    "recommendation": ("catalog",),
}
WORDS: Final = (
    "red",
    "blue",
    "wool",
    "coat",
    "shoes",
    "size",
    "lamp",
    "oak",
    "desk",
    "chair",
    "vase",
)
LINES: Final = (
    ("INFO", 9, "{thing} {order} of customer {customer} {done}, total {total:.2f} EUR"),
    ("INFO", 9, "{done} {count} of {thing} {product} in warehouse {place}"),
    ("INFO", 9, "{thing} {product} {done} in {ms} ms"),
    ("INFO", 9, "session of customer {customer} {done} until {until}"),
    ("DEBUG", 5, "no {thing}:{product} in the cache, asking the database"),
    ("DEBUG", 5, "query of {thing} took {ms} ms and gave {count} rows, {done}"),
    ("WARN", 13, "{thing} {order} was not {done}: insufficient funds"),
    ("WARN", 13, "slow answer for {thing} {product}: {ms} ms, {done} anyway"),
    ("ERROR", 17, "{thing} {order} could not be {done}: connection reset by peer"),
)
THINGS: Final = ("order", "cart", "product", "parcel", "invoice", "price", "account", "voucher")
DONE: Final = (
    "accepted",
    "reserved",
    "updated",
    "renewed",
    "sent",
    "computed",
    "checked",
    "stored",
)
TABLES: Final = (
    "orders",
    "carts",
    "products",
    "stock",
    "customers",
    "prices",
    "vouchers",
    "parcels",
)
FIELDS: Final = (
    *("id", "name", "state", "created_at", "updated_at", "customer_id", "product_id", "quantity"),
    *("total", "currency", "email", "street", "city", "country", "discount", "weight", "version"),
)
STATEMENTS: Final = 30  # that a service has
GAUGES: Final = (
    ("system.cpu.utilization", "1", "cpu.mode", ("user", "system", "idle", "iowait")),
    ("system.memory.usage", "By", "system.memory.state", ("used", "free", "cached", "buffers")),
    ("system.filesystem.utilization", "1", "system.device", ("sda1", "sda2", "sdb1")),
    ("process.open_file_descriptors", "{count}", "process.name", ("shop", "sidecar")),
    ("db.client.connection.count", "{connection}", "state", ("idle", "used")),
)


@dataclass(slots=True)
class Instance:
    """One process of a service, which has its own exporter."""

    service: str
    number: int
    ports: tuple[int, ...]  # of its connections to others, which stay open
    spans: list[Span] = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)

    def address(self) -> str:
        return f"10.1.{self.number % 9}.{self.number}"

    def resource(self) -> Attributes:
        name = f"{self.service}-7d9f8b6c4-{self.number:05x}"
        return {
            "service.name": self.service,
            "service.namespace": "shop",
            "service.version": "1.14.2",
            "service.instance.id": f"{name}.{self.number}",
            "host.name": f"node-{self.number % 9}",
            "k8s.pod.name": name,
            "k8s.namespace.name": "production",
            "cloud.region": "eu-central-1",
            "container.id": random.Random(self.number).randbytes(32).hex(),
            "os.type": "linux",
            "os.description": "Linux 6.8.0-1021-aws",
            "process.pid": 1,
            "process.executable.path": "/opt/java/openjdk/bin/java",
            "process.command_line": "/opt/java/openjdk/bin/java -Xmx1g -javaagent:/opt/agent.jar"
            f" -Dserver.port=8080 -Dspring.profiles.active=production -jar /srv/{self.service}.jar",
            "process.runtime.name": "OpenJDK Runtime Environment",
            "process.runtime.version": "21.0.5+11-LTS",
            "telemetry.distro.name": "opentelemetry-java-instrumentation",
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.sdk.language": "java",
            "telemetry.sdk.version": "1.45.0",
        }


class Shop:
    """Makes requests of one signal, as many as are asked for."""

    def __init__(self, *, seed: int = 0, instances: int = 3) -> None:
        self._random = random.Random(seed)
        self._instances = {
            service: [
                Instance(service, 17 * at + each, tuple(self._random.choices(PORTS, k=16)))
                for each in range(instances)
            ]
            for at, service in enumerate(ROUTES)
        }
        self._statements = {
            service: [_statement(self._random) for _ in range(STATEMENTS)] for service in ROUTES
        }
        self._browsers = [_browser(self._random) for _ in range(BROWSERS)]
        self._now = BEGIN_NANO

    def traces(self) -> Iterator[bytes]:
        """Requests with spans, without end."""
        for _ in self._requests_of_customers():
            for instance in self._all():
                while len(instance.spans) >= RECORDS:
                    yield _spans_request(instance)

    def logs(self) -> Iterator[bytes]:
        """Requests with log records, without end."""
        for _ in self._requests_of_customers():
            for instance in self._all():
                instance.spans.clear()
                while len(instance.records) >= RECORDS:
                    yield _records_request(instance)

    def gauges(self) -> Iterator[bytes]:
        """Requests with points of gauges, one of each instance every ten seconds, without end."""
        values: dict[tuple[int, str, str, int], float] = {}
        while True:
            for instance in self._all():
                self._now += self._random.randrange(200_000_000, 300_000_000)
                yield _points_request(instance, self._now, values, self._random)

    def _all(self) -> Iterator[Instance]:
        for instances in self._instances.values():
            yield from instances

    def _requests_of_customers(self) -> Iterator[None]:
        """A trace at a time, in which spans and log records come up at the instances."""
        chance = self._random
        while True:
            self._now += int(chance.expovariate(TRACES_PER_SECOND) * 1e9)
            trace = chance.randbytes(16)
            route = chance.choice(ROUTES["gateway"])
            self._serve("gateway", trace, None, self._now, f"{route}|{self._path(route)}")
            yield

    def _serve(
        self,
        service: str,
        trace: bytes,
        called_by: tuple[bytes, str, int] | None,
        at: int,
        target: str,
    ) -> int:
        """A span of a server with what it does inside; when it ends."""
        chance = self._random
        instance = chance.choice(self._instances[service])
        route, path = target.split("|")
        parent, peer, port = called_by or (b"", "10.0.0.7", chance.choice(PORTS))
        span = Span(trace_id=trace, span_id=chance.randbytes(8), parent_span_id=parent, flags=0x101)
        span.name, span.kind, span.start_time_unix_nano = route, Span.SPAN_KIND_SERVER, at
        thread = _thread(service, chance)
        end = at + int(chance.lognormvariate(0, 1) * 1e6)
        if chance.random() < 0.6:
            end = self._ask_database(instance, span, end, thread)
        for called in CALLS.get(service, ()):
            if chance.random() < 1.3 / len(CALLS[service]):
                end = self._call(instance, span, called, end, thread)
        if chance.random() < 0.5:
            self._log(instance, span, end)
        status = 500 if chance.random() < 0.01 else 200
        end += int(chance.lognormvariate(-1, 1) * 1e6)
        method, _, template = route.partition(" ")
        attributes: dict[str, str | int | float | bool] = {
            "client.address": peer if called_by else self._customer_address(),
            "http.request.method": method,
            "http.response.status_code": status,
            "http.route": template,
            "network.peer.address": peer,
            "network.peer.port": port,
            "network.protocol.version": "1.1",
            "server.address": f"{service}.production.svc",
            "server.port": 8080,
            "url.path": path.partition("?")[0],
            "url.scheme": "http",
            "user_agent.original": "okhttp/4.12.0" if called_by else chance.choice(self._browsers),
            **thread,
        }
        if "?" in path:
            attributes["url.query"] = path.partition("?")[2]
        _finish(span, end, attributes)
        if status == 500:
            _fail(span, service, end)
        instance.spans.append(span)
        return end

    def _call(
        self, instance: Instance, parent: Span, called: str, at: int, thread: Attributes
    ) -> int:
        chance = self._random
        span = _child(parent, chance, at + chance.randrange(20_000, 90_000))
        route = chance.choice(ROUTES[called])
        span.name, span.kind = route.partition(" ")[0], Span.SPAN_KIND_CLIENT
        reached = span.start_time_unix_nano + chance.randrange(150_000, 900_000)
        path = self._path(route)
        caller = (span.span_id, instance.address(), chance.choice(instance.ports))
        end = self._serve(called, parent.trace_id, caller, reached, f"{route}|{path}")
        end += chance.randrange(150_000, 900_000)
        attributes = {
            "http.request.method": span.name,
            "http.response.status_code": 200,
            "network.protocol.version": "1.1",
            "server.address": f"{called}.production.svc",
            "server.port": 8080,
            "url.full": f"http://{called}.production.svc:8080{path}",
            **thread,
        }
        _finish(span, end, attributes)
        instance.spans.append(span)
        return end

    def _ask_database(self, instance: Instance, parent: Span, at: int, thread: Attributes) -> int:
        chance = self._random
        span = _child(parent, chance, at + chance.randrange(10_000, 60_000))
        query = chance.choice(self._statements[instance.service])
        operation = query.partition(" ")[0]
        span.name, span.kind = f"{operation} shop", Span.SPAN_KIND_CLIENT
        end = span.start_time_unix_nano + int(chance.lognormvariate(-0.5, 1) * 1e6)
        attributes = {
            "db.system.name": "postgresql",
            "db.namespace": "shop",
            "db.query.text": query,
            "db.operation.name": operation,
            "server.address": "postgres.production.svc",
            "server.port": 5432,
            **thread,
        }
        _finish(span, end, attributes)
        instance.spans.append(span)
        return end

    def _customer_address(self) -> str:
        """Of somebody outside; who was there lately comes again."""
        number = int(self._random.paretovariate(0.3)) * 2_654_435_761 % 2**32
        return ".".join(str(each) for each in number.to_bytes(4, "big"))

    def _path(self, route: str) -> str:
        chance = self._random
        path = route.partition(" ")[2]
        path = path.replace("{id}", str(chance.randrange(PRODUCTS)))
        path = path.replace("{item}", str(chance.randrange(20)))
        if path in {"/search", "/suggest"}:
            return f"{path}?q={'+'.join(chance.choices(WORDS, k=2))}&page={chance.randrange(1, 5)}"
        return path

    def _log(self, instance: Instance, span: Span, at: int) -> None:
        chance = self._random
        for _ in range(chance.randrange(1, 4)):
            at += chance.randrange(5_000, 400_000)
            level, number, line = chance.choice(LINES)
            record = LogRecord(
                time_unix_nano=at,
                observed_time_unix_nano=at + chance.randrange(20_000, 200_000),
                severity_text=level,
                severity_number=number,  # type: ignore[arg-type]
                trace_id=span.trace_id,
                span_id=span.span_id,
                flags=1,
            )
            record.body.string_value = line.format(
                thing=chance.choice(THINGS),
                done=chance.choice(DONE),
                order=chance.randrange(10**6, 10**7),
                customer=f"c{chance.randrange(CUSTOMERS)}",
                total=chance.lognormvariate(3, 1),
                count=chance.randrange(1, 5),
                product=chance.randrange(PRODUCTS),
                place=chance.randrange(7),
                ms=int(chance.lognormvariate(1, 1)),
                until=at // 10**9 + 1800,
            )
            attributes: dict[str, str | int | float | bool] = {
                "code.function.name": f"com.example.shop.{instance.service}.{line.split()[0]}",
                "code.line.number": 10 + 7 * LINES.index((level, number, line)),
                "thread.name": f"http-nio-8080-exec-{chance.randrange(1, 41)}",
            }
            if level == "ERROR":
                attributes |= _exception(instance.service)
            _put(record.attributes, attributes)
            instance.records.append(record)


def taken(requests: Iterator[bytes], records: int) -> list[bytes]:
    """As many requests as hold so many records."""
    return [next(requests) for _ in range(-(-records // RECORDS))]


def _child(parent: Span, chance: random.Random, at: int) -> Span:
    return Span(
        trace_id=parent.trace_id,
        span_id=chance.randbytes(8),
        parent_span_id=parent.span_id,
        start_time_unix_nano=at,
        flags=0x101,
    )


def _browser(chance: random.Random) -> str:
    version = f"{chance.randrange(110, 142)}.0.{chance.randrange(8)}.0"
    system = chance.choice(("Windows NT 10.0; Win64; x64", "Macintosh; Intel Mac OS X 10_15_7"))
    return (
        f"Mozilla/5.0 ({system}) AppleWebKit/537.36 (KHTML, like Gecko) "
        f"Chrome/{version} Safari/537.36"
    )


def _thread(service: str, chance: random.Random) -> Attributes:
    if service not in JAVA:
        return {}
    number = chance.randrange(1, 41)
    return {"thread.id": 30 + number, "thread.name": f"http-nio-8080-exec-{number}"}


def _statement(chance: random.Random) -> str:
    """As a mapper of objects writes it."""
    table = chance.choice(TABLES)
    fields = chance.sample(FIELDS, chance.randrange(4, 14))
    if chance.random() < 0.3:
        changed = ",".join(f"{each}=?" for each in fields)
        return f"update {table} set {changed} where id=? and version=?"
    listed = ",".join(f"{table[0]}1_0.{each}" for each in fields)
    joined = chance.choice(TABLES)
    return (
        f"select {listed} from {table} {table[0]}1_0 left join {joined} {joined[0]}2_0 on "
        f"{joined[0]}2_0.id={table[0]}1_0.{joined[:-1]}_id where {table[0]}1_0.{fields[0]}=?"
    )


def _exception(service: str) -> dict[str, str | int | float | bool]:
    frames = (
        f"\n\tat com.example.shop.{service}.Step{each}.run(Step{each}.java:{7 * each})"
        for each in range(25)
    )
    return {
        "exception.type": "java.net.SocketException",
        "exception.message": "connection reset by peer",
        "exception.stacktrace": "java.net.SocketException: connection reset" + "".join(frames),
    }


def _fail(span: Span, service: str, end: int) -> None:
    span.status.code = Status.STATUS_CODE_ERROR
    event = span.events.add(name="exception", time_unix_nano=end - 20_000)
    _put(event.attributes, _exception(service))


def _finish(span: Span, end: int, attributes: Attributes) -> None:
    span.end_time_unix_nano = end
    _put(span.attributes, attributes)


def _put(place: Any, attributes: Attributes) -> None:
    for key, value in attributes.items():
        made: KeyValue = place.add(key=key)
        match value:
            case bool():
                made.value.bool_value = value
            case int():
                made.value.int_value = value
            case float():
                made.value.double_value = value
            case str():
                made.value.string_value = value


def _first(records: list[Any]) -> Sequence[Any]:
    """Takes the oldest from the list, in the order of their ends, as an exporter is given them."""
    found = records[:RECORDS]
    del records[:RECORDS]
    return found


def _spans_request(instance: Instance) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    _put(resource.resource.attributes, instance.resource())
    scope = resource.scope_spans.add()
    scope.scope.name, scope.scope.version = "opentelemetry.instrumentation.flask", "0.61b0"
    scope.spans.extend(_first(instance.spans))
    content: bytes = request.SerializeToString()
    return content


def _records_request(instance: Instance) -> bytes:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    _put(resource.resource.attributes, instance.resource())
    scope = resource.scope_logs.add()
    scope.scope.name = f"shop.{instance.service}"
    scope.log_records.extend(_first(instance.records))
    content: bytes = request.SerializeToString()
    return content


def _points_request(
    instance: Instance,
    now: int,
    values: dict[tuple[int, str, str, int], float],
    chance: random.Random,
) -> bytes:
    """Every series of an instance once, as a reader of metrics collects them."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    _put(resource.resource.attributes, instance.resource())
    scope = resource.scope_metrics.add()
    scope.scope.name, scope.scope.version = "opentelemetry.instrumentation.system_metrics", "0.61b0"
    series = [(gauge, state) for gauge in GAUGES for state in gauge[3]]
    metrics: dict[str, Metric] = {}
    for number in range(RECORDS):
        (name, unit, key, _), state = series[number % len(series)]
        if name not in metrics:
            metrics[name] = scope.metrics.add(name=name, unit=unit, description=f"The {name}")
        at = (instance.number, name, state, number // len(series))
        before = values.get(at, chance.random())
        values[at] = value = min(max(before + chance.gauss(0, 0.02), 0), 1)
        point = metrics[name].gauge.data_points.add(time_unix_nano=now)
        _put(point.attributes, {key: state, "cpu.logical_number": number // len(series)})
        if unit == "1":
            point.as_double = value
        else:
            point.as_int = int(value * (1 << 34 if unit == "By" else 1000))
    content: bytes = request.SerializeToString()
    return content
