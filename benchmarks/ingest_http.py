"""Rows over HTTP, durable, beside reading them alone and beside the disk alone in the same run.

    python benchmarks/ingest_http.py            10 rounds of 2 seconds
    python benchmarks/ingest_http.py --quick    3 rounds of 1 second

The service runs in a process of its own. NDJSON of 200-byte rows in bodies of 1 MB, from some
connections at once; a row counts when its request was answered with 200. The figures are printed,
not judged.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from calve.ingest import Intake
from calve.ingest.formats import KnownTypes, decode
from calve.ingest.http import HttpServer
from calve.model import TableName
from calve.settings import Settings, load_settings
from calve.topics import TopicSpec

BODY_BYTES = 1_000_000
ROW_BYTES = 200
NDJSON = "application/x-ndjson"
TOPIC = TableName.parse("bench")
COLUMNS = {
    "id": "long", "user": "string", "event": "string", "amount": "double", "ok": "boolean",
    "at": "timestamptz", "text": "string",
}  # fmt: skip


def one_row(number: int) -> bytes:
    row = {
        "id": number,
        "user": f"user-{number % 1000:05d}",
        "event": "page_view",
        "amount": number * 0.25,
        "ok": number % 2 == 0,
        "at": f"2026-01-01T10:00:00.{number % 1_000_000:06d}Z",
        "text": "",
    }
    short = len(json.dumps(row, separators=(",", ":"))) + 1
    row["text"] = "x" * (ROW_BYTES - short)
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def one_body() -> tuple[bytes, int]:
    rows = [one_row(number) for number in range(BODY_BYTES // ROW_BYTES)]
    return b"".join(rows), len(rows)


def settings_in(directory: Path) -> Settings:
    flags = {"data": str(directory), "ingest.http_port": 0, "wal.free_bytes_min": 0}
    return load_settings(flags=flags, environ={}).settings


def serve(directory: Path) -> None:
    """The child: serves until its standard input ends."""
    with Intake(settings_in(directory)) as intake, HttpServer(intake) as server:
        intake.create_topic(TOPIC, TopicSpec(schema=COLUMNS))
        print(server.url, flush=True)
        sys.stdin.read()


@contextmanager
def service(directory: Path) -> Iterator[str]:
    command = [sys.executable, __file__, "--serve", str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.stdin.close()
            child.wait(30)


def per_second(work: Callable[[], int], seconds: float) -> float:
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() - begin < seconds:
        count += work()
    return count / (time.perf_counter() - begin)


class Clients:
    """Connections that send the same body over and over."""

    def __init__(self, url: str, body: bytes, rows: int, count: int) -> None:
        self._host = urlsplit(url).netloc
        self._body = body
        self._rows = rows
        self._count = count

    def rate(self, seconds: float) -> float:
        done = [0] * self._count
        begin = time.perf_counter()
        threads = [
            threading.Thread(target=self._send, args=(place, done, begin + seconds))
            for place in range(self._count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done) / (time.perf_counter() - begin)

    def _send(self, place: int, done: list[int], until: float) -> None:
        connection = http.client.HTTPConnection(self._host)
        while time.perf_counter() < until:
            connection.request(
                "POST", f"/v1/topics/{TOPIC}/rows", self._body, {"Content-Type": NDJSON}
            )
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            done[place] += json.loads(content)["rows"]
        connection.close()


def reading_alone(body: bytes, directory: Path) -> Callable[[], int]:
    with Intake(settings_in(directory)) as intake:
        types = KnownTypes.of(intake.create_topic(TOPIC, TopicSpec(schema=COLUMNS)))

    def work() -> int:
        found = decode(body, NDJSON, types, sets_aside=False, bytes_max=1 << 30)
        return found.row_count

    return work


def bare_disk(file: int, body: bytes, rows: int) -> Callable[[], int]:
    def work() -> int:
        os.write(file, body)
        os.fdatasync(file)
        return rows

    return work


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--connections", type=int, default=4)
    options.add_argument("--serve", type=Path)
    given = options.parse_args()
    if given.serve:
        serve(given.serve)
        return
    body, rows = one_body()
    rounds, seconds = (3, 1.0) if given.quick else (10, 2.0)
    found: dict[str, list[float]] = {"over HTTP, durable": [], "reading alone": [], "disk": []}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        read = reading_alone(body, Path(name) / "reading")
        file = os.open(Path(name) / "bare", os.O_CREAT | os.O_WRONLY)
        with service(Path(name) / "service") as url:
            clients = Clients(url, body, rows, given.connections)
            clients.rate(0.5)
            for _ in range(rounds):
                found["over HTTP, durable"].append(clients.rate(seconds))
                found["reading alone"].append(per_second(read, seconds / 4))
                found["disk"].append(per_second(bare_disk(file, body, rows), seconds / 4))
        os.close(file)
    print(f"{rows} rows of {ROW_BYTES} bytes per request, {given.connections} connections")
    for what, rates in found.items():
        middle = statistics.median(rates)
        print(f"{what:20} {middle:12,.0f} rows/s {middle * ROW_BYTES / 1e6:10,.1f} MB/s")


if __name__ == "__main__":
    main()
