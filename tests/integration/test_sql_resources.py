"""What a query holds is free when it ends, however it ends; and queries share what there is."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from calve.client import Client
from calve.ingest.flight import FlightServer
from tests.conftest import MakeSettings
from tests.integration.serving import Serving, serving
from tests.services import environment

HELD_BYTES = 80_000_000
# Takes more memory than that, and then works for hours.
LONG = (
    "WITH held AS MATERIALIZED (SELECT i, repeat('x', 500) || i AS s FROM range(300000) t(i)) "
    "SELECT sum(length(a.s) * b.i % 7) FROM held a, range(1000000000) b(i)"
)
# Needs more than there is, whatever it may use.
HUGE = "SELECT i, s FROM (SELECT i, repeat('x', 500) || i AS s FROM range(4000000) t(i)) ORDER BY s"
COMMAND = "from calve.cli.main import calve; calve()"
SMALL = "SELECT count(*) AS orders FROM orders"


@pytest.fixture
def service(make_settings: MakeSettings, request: pytest.FixtureRequest) -> Iterator[Serving]:
    settings = make_settings(
        ingest__http_port=0,
        ingest__flight_port=0,
        wal__free_bytes_min=0,
        query__memory_bytes_max=512 << 20,
        query__concurrent_max=2,
        query__time_ms_max=getattr(request, "param", 60_000),
    )
    with serving(settings) as made:
        made.send("orders", b'{"id": 1}\n').raise_for_status()
        assert ask(made, SMALL).json() == [{"orders": 1}]
        yield made


@pytest.fixture
def flight(service: Serving) -> Iterator[str]:
    with FlightServer(service.intake) as server:
        with Client(server.url) as client:
            client.sql(SMALL).to_arrow()
        yield server.url


def ask(service: Serving, sql: str) -> httpx.Response:
    return service.client.post("/v1/query", json={"sql": sql})


class Held:
    """What this process holds: memory, threads, open and temporary files."""

    def __init__(self, service: Serving) -> None:
        self._service = service
        self._process = psutil.Process()
        gc.collect()
        self.memory_bytes = self._process.memory_info().rss
        self._threads = self._process.num_threads()
        self._files = self._listed()

    def _listed(self) -> set[Path]:
        data = Path(self._service.intake.settings.data)
        return {path for place in (data, Path.cwd() / ".tmp") for path in place.rglob("*")}

    def wait_for_work(self) -> None:
        """Until a query has taken its memory."""
        eventually(lambda: self._process.memory_info().rss > self.memory_bytes + HELD_BYTES)

    def require_free(self) -> None:
        queries = self._service.intake.queries
        eventually(lambda: not queries.list())
        eventually(lambda: self._process.num_threads() <= self._threads + 2)
        most = self.memory_bytes + HELD_BYTES // 2
        eventually(lambda: self._process.memory_info().rss < most)
        assert self._listed() <= self._files


def eventually(claim: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def cancelled(service: Serving, held: Held, _: str) -> None:
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask, service, LONG)
        held.wait_for_work()
        (running,) = service.client.get("/v1/queries").json()["queries"]
        assert running["sql"] == LONG
        service.client.delete(f"/v1/queries/{running['id']}").raise_for_status()
        assert "was cancelled" in asked.result().text


def left_over_http(service: Serving, held: Held, _: str) -> None:
    body = f'{{"sql": "{LONG}"}}'
    with service.connect() as connection:
        connection.sendall(
            b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        held.wait_for_work()


def left_over_flight(_: Serving, held: Held, flight: str) -> None:
    asking = "import sys, calve; calve.Client(sys.argv[1]).sql(sys.argv[2])"
    with running([asking, flight, LONG]) as process:
        held.wait_for_work()
        process.kill()


def interrupted(_: Serving, held: Held, flight: str) -> None:
    with running([COMMAND, "sql", LONG, "--server", flight]) as process:
        held.wait_for_work()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


@contextmanager
def running(program: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", *program],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("end", [cancelled, left_over_http, left_over_flight, interrupted])
def test_what_a_query_held_is_free_when_it_is_ended(
    service: Serving, flight: str, end: Callable[[Serving, Held, str], None]
) -> None:
    held = Held(service)
    end(service, held, flight)
    held.require_free()
    assert ask(service, SMALL).json() == [{"orders": 1}]


@pytest.mark.parametrize("service", [1_500], indirect=True)
def test_what_a_query_held_is_free_when_its_time_is_over(service: Serving) -> None:
    held = Held(service)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask, service, LONG)
        held.wait_for_work()
        assert "took longer than 1,500 ms" in asked.result().text
    held.require_free()


def test_ctrl_c_ends_a_query_of_the_command_at_once(service: Serving) -> None:
    before = Held(service)
    data = str(service.intake.settings.data)
    with running([COMMAND, "sql", LONG, "--data", data]) as process:
        working = psutil.Process(process.pid)
        eventually(lambda: working.cpu_times().user > 2, 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    before.require_free()


def test_a_query_that_needs_too_much_memory_is_refused_and_the_others_are_answered(
    service: Serving,
) -> None:
    held = Held(service)
    with ThreadPoolExecutor() as pool:
        refused = [pool.submit(ask, service, HUGE) for _ in range(2)]
        found = []
        while not all(each.done() for each in refused):
            found.append(ask(service, SMALL).json())
    for each in refused:
        problem = each.result().json()
        assert each.result().status_code == 400
        assert "needs more memory than it may use" in problem["detail"]
        assert "query.memory_bytes_max" in problem["hint"]
    assert found
    assert all(each == [{"orders": 1}] for each in found)
    service.send("orders", b'{"id": 2}\n').raise_for_status()
    assert ask(service, SMALL).json() == [{"orders": 2}]
    held.require_free()
