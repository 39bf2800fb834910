"""Connections that never come to the point: each door ends them, and others do not notice."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from pyarrow import flight

from calve.ingest.connections import Connections
from calve.lake import Lake
from calve.service.serving import Serving
from tests.conftest import MakeSettings
from tests.servers.tls import Authority
from tests.services import wait_until

PORTS = ("http_port", "flight_port", "otlp_grpc_port", "otlp_http_port")
DOORS = ("flight", "http", "otlp_grpc", "otlp_http")
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
STRANGERS_MAX = 20
HELLO = bytes.fromhex("16030102000100")  # how a handshake begins, and does not go on
LOCAL = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "tls").mkdir()
    return Authority(tmp_path / "tls")


@contextmanager
def serve(make_settings: MakeSettings, authority: Authority, timeout_ms: int) -> Iterator[Serving]:
    certificate, key = authority.server_files()
    settings = make_settings(
        **{f"ingest__{port}": 0 for port in PORTS},
        ingest__tls_cert=str(certificate),
        ingest__tls_key=str(key),
        ingest__streams_max=STRANGERS_MAX,
        ingest__http_header_timeout_ms=timeout_ms,
    )
    with Lake(settings) as lake, lake.serve(otlp=True) as serving:
        yield serving


@pytest.fixture
def hasty(make_settings: MakeSettings, authority: Authority) -> Iterator[Serving]:
    with serve(make_settings, authority, 1_000) as serving:
        yield serving


@pytest.fixture
def patient(make_settings: MakeSettings, authority: Authority) -> Iterator[Serving]:
    """One in whose time no test ends: only their number bounds strangers."""
    with serve(make_settings, authority, 600_000) as serving:
        yield serving


def strangers(url: str, count: int, stack: ExitStack) -> list[socket.socket]:
    place = urlsplit(url)
    assert place.hostname
    assert place.port
    found = []
    for _ in range(count):
        one = socket.create_connection(
            (place.hostname, place.port), 10, source_address=("127.0.0.2", 0)
        )
        found.append(stack.enter_context(one))
        one.sendall(HELLO)
    return found


def ended(connections: list[socket.socket]) -> int:
    """How many of them the other side has closed."""
    readable, _, _ = select.select(connections, [], [], 0)
    return len(readable)


def are_ended(connections: list[socket.socket]) -> bool:
    return ended(connections) == len(connections)


@contextmanager
def client(serving: Serving, door: str, authority: Authority) -> Iterator[Callable[[], object]]:
    """One with a connection of its own; each call is a request over it."""
    url, roots = getattr(serving.addresses, door), authority.pem.read_bytes()
    if door == "flight":
        with flight.FlightClient(url, tls_root_certs=roots, generic_options=LOCAL) as over_flight:
            yield lambda: list(over_flight.list_flights())
    elif door == "otlp_grpc":
        credentials = grpc.ssl_channel_credentials(roots)
        with grpc.secure_channel(urlsplit(url).netloc, credentials, options=LOCAL) as channel:
            yield lambda: channel.unary_unary(EXPORT)(b"", timeout=30)
    else:
        trust = ssl.create_default_context(cadata=roots.decode())
        with httpx.Client(base_url=url, verify=trust, timeout=30) as over_http:
            yield lambda: over_http.get("/nothing")


def work(serving: Serving, door: str, authority: Authority) -> None:
    with client(serving, door, authority) as ask:
        ask()


@pytest.mark.parametrize("door", DOORS)
def test_a_handshake_that_does_not_go_on_is_ended(
    hasty: Serving, authority: Authority, door: str
) -> None:
    with ExitStack() as stack:
        held = strangers(getattr(hasty.addresses, door), STRANGERS_MAX // 2, stack)
        work(hasty, door, authority)
        wait_until(lambda: ended(held) == len(held))
        work(hasty, door, authority)


@pytest.mark.parametrize("door", DOORS)
def test_a_flood_of_strangers_is_bounded_and_keeps_nobody_out(
    patient: Serving, authority: Authority, door: str
) -> None:
    with ExitStack() as stack:
        held = strangers(getattr(patient.addresses, door), 5 * STRANGERS_MAX, stack)
        work(patient, door, authority)
        wait_until(lambda: ended(held) >= len(held) - STRANGERS_MAX)
        work(patient, door, authority)


@pytest.mark.parametrize("door", DOORS)
def test_of_too_many_strangers_the_oldest_go(patient: Serving, door: str) -> None:
    url = getattr(patient.addresses, door)
    watched = next(each._door for each in patient._servers if each.url == url)  # type: ignore[attr-defined]
    with ExitStack() as stack:
        first = strangers(url, STRANGERS_MAX, stack)
        wait_until(lambda: len(watched._since) == len(first))
        second = strangers(url, STRANGERS_MAX, stack)
        wait_until(lambda: ended(first) == len(first))
        assert ended(second) == 0


@pytest.mark.parametrize("door", DOORS)
def test_a_client_that_was_let_in_stays_however_long_it_says_nothing(
    hasty: Serving, authority: Authority, door: str
) -> None:
    url = getattr(hasty.addresses, door)
    connections = Connections(urlsplit(url).port or 0)
    with client(hasty, door, authority) as ask, ExitStack() as stack:
        ask()
        before = connections.addresses()
        for _ in range(2):  # the time of a stranger, and some more
            wait_until(partial(are_ended, strangers(url, 3, stack)))
        assert len(before) == 1
        wait_until(lambda: connections.addresses() == before)  # those that were ended are let go
        ask()
