"""A service with 1,000 topics and 1,000 connections on which nothing happens, beside an empty one.

    python -m benchmarks.ingest_idle                3,000 acknowledgements each
    python -m benchmarks.ingest_idle --quick        500

The service runs under its supervisor, in a process of its own. Half of the connections are
Flight's and half HTTP's, each used once. Acknowledgements are of single rows of 1 KiB: over one
stream of Flight, and over one connection of HTTP, there to one topic and to all in turn. The
figures are printed, not judged.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
from pyarrow import flight

from calve.service.orders import Order
from calve.service.supervisor import Supervisor
from calve.settings import load_settings

TOPICS = 1_000
CONNECTIONS = 1_000
ROW = {"id": 1, "pad": "x" * 1_000}
BATCH = pa.RecordBatch.from_pylist([ROW])
BODY = json.dumps(ROW).encode()
GIB = 1 << 30


@contextmanager
def service(data: Path) -> Iterator[Supervisor]:
    flags: dict[str, Any] = {
        "data": str(data),
        "ingest.http_port": 0,
        "ingest.flight_port": 0,
        "ingest.otlp_grpc_port": 0,
        "ingest.otlp_http_port": 0,
        "wal.free_bytes_min": 0,
    }
    settings = load_settings(flags=flags, environ={}).settings
    supervisor = Supervisor(
        settings, Order(flags=flags), say=lambda text: print(text, file=sys.stderr)
    )
    supervisor.start()
    running = threading.Thread(target=supervisor.run)
    running.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        running.join()
        supervisor.close()


def timed(count: int, send: Callable[[int], None]) -> list[float]:
    """Milliseconds of each, after some that do not count."""
    for number in range(count // 10):
        send(number)
    times = []
    for number in range(count):
        begun = time.perf_counter()
        send(number)
        times.append((time.perf_counter() - begun) * 1_000)
    return sorted(times)


def over_flight(url: str, topic: str, count: int) -> list[float]:
    with flight.connect(url) as client:
        descriptor = flight.FlightDescriptor.for_path(topic)
        writer, reader = client.do_put(descriptor, BATCH.schema)

        def send(_: int) -> None:
            writer.write_batch(BATCH)
            reader.read()

        times = timed(count, send)
        writer.close()
    return times


def over_http(url: str, topics: list[str], count: int) -> list[float]:
    connection = connect(url)
    times = timed(count, lambda number: post(connection, topics[number % len(topics)]))
    connection.close()
    return times


def connect(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    assert address.hostname is not None
    return http.client.HTTPConnection(address.hostname, address.port)


def post(connection: http.client.HTTPConnection, topic: str) -> None:
    headers = {"Content-Type": "application/x-ndjson"}
    connection.request("POST", f"/v1/topics/{topic}/rows", BODY, headers)
    response = connection.getresponse()
    assert response.read()
    assert response.status == http.HTTPStatus.OK


@contextmanager
def idle(flight_url: str, http_url: str) -> Iterator[None]:
    """Connections that were used once, and stay."""
    over_grpc = []
    for number in range(CONNECTIONS // 2):
        # Otherwise Arrow's clients of one process share one connection.
        options = [("grpc.channel_id", number), ("grpc.use_local_subchannel_pool", 1)]
        client = flight.FlightClient(flight_url, generic_options=options)
        list(client.list_actions())
        over_grpc.append(client)
    plain = [connect(http_url) for _ in range(CONNECTIONS // 2)]
    for connection in plain:
        connection.request("GET", "/health/live")
        connection.getresponse().read()
    yield
    for each in [*over_grpc, *plain]:
        each.close()


def line(what: str, times: list[float], beside: list[float] | None = None) -> None:
    p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
    ratio = (
        f"  p99 is {p99 / beside[int(len(beside) * 0.99)]:.2f} x that of the empty service"
        if beside
        else ""
    )
    print(f"{what:<44} p50 {p50:6.2f} ms  p99 {p99:6.2f} ms{ratio}", flush=True)


def memory(supervisor: Supervisor) -> tuple[float, int, int]:
    assert supervisor.pid is not None
    process = psutil.Process(supervisor.pid)
    connections = sum(each.status == "ESTABLISHED" for each in process.net_connections())
    return process.memory_info().rss / GIB, process.num_threads(), connections


def show(supervisor: Supervisor, what: str) -> None:
    gib, threads, connections = memory(supervisor)
    print(f"{what:<44} {gib:.2f} GiB, {threads} threads, {connections} connections", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    count = 500 if parser.parse_args().quick else 3_000
    names = [f"topic_{number:04d}" for number in range(TOPICS)]
    with tempfile.TemporaryDirectory() as directory, service(Path(directory) / "lake") as running:
        at = running.addresses
        alone = over_flight(at.flight, "alone", count), over_http(at.http, ["alone"], count)
        show(running, "empty: memory of the process")
        line("empty: Flight, one topic", alone[0])
        line("empty: HTTP, one topic", alone[1])
        begun = time.perf_counter()
        making = connect(at.http)
        for name in names:
            post(making, name)
        making.close()
        print(f"{TOPICS:,} topics made by their first row in {time.perf_counter() - begun:.1f} s")
        with idle(at.flight, at.http):
            show(running, f"{TOPICS:,} topics, idle connections: memory")
            line("the same: Flight, one topic", over_flight(at.flight, "alone", count), alone[0])
            line("the same: HTTP, one topic", over_http(at.http, ["alone"], count), alone[1])
            line("the same: HTTP, all topics in turn", over_http(at.http, names, count), alone[1])
            show(running, "after it: memory")


if __name__ == "__main__":
    main()
