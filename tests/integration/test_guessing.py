"""Guessing, dawdling and flooding at each door: bounded, and others are served meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest
from pyarrow import flight

from calve.access.token import new_secret
from calve.errors import Overloaded, Unauthenticated
from calve.protocol.problem import decoded, error_of
from tests.integration.access_site import Site, access_site, bearer, clients_of
from tests.otlp_door import EXPORT, PROTOBUF

DOORS = ("flight", "http", "otlp_grpc", "otlp_http")
SERVED, UNKNOWN, TOLD_TO_WAIT = "served", "unknown", "told to wait"
OF_HTTP = {200: SERVED, 401: UNKNOWN, 429: TOLD_TO_WAIT}
OF_GRPC = {
    grpc.StatusCode.UNAUTHENTICATED: UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TOLD_TO_WAIT,
}
OF_FLIGHT: dict[type, str] = {Unauthenticated: UNKNOWN, Overloaded: TOLD_TO_WAIT}
CONNECTIONS_MAX = 60
# What a door is told, and then nothing more: half a head of HTTP, half a frame of HTTP/2.
HALF_A_HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: 127.0"
HALF_A_FRAME = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + b"\0\0\xff\1"
SAID = {
    "flight": HALF_A_FRAME,
    "http": HALF_A_HEAD,
    "otlp_grpc": HALF_A_FRAME,
    "otlp_http": HALF_A_HEAD,
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with access_site(
        tmp_path / "data",
        ingest__http_header_timeout_ms=1_000,
        ingest__http_connections_max=CONNECTIONS_MAX,
        ingest__streams_max=CONNECTIONS_MAX,
    ) as site:
        yield site


def asked(site: Site, door: str, secret: str) -> str:
    """What becomes of a request with this token."""
    if door == "http":
        return OF_HTTP[site.http.get("/v1/topics", headers=bearer(secret)).status_code]
    if door == "otlp_http":
        headers = {"Content-Type": PROTOBUF, **bearer(secret)}
        return OF_HTTP[site.otlp_http.post("/v1/traces", headers=headers).status_code]
    if door == "otlp_grpc":
        metadata = [(name.lower(), value) for name, value in bearer(secret).items()]
        try:
            site.otlp_grpc.unary_unary(EXPORT)(b"", metadata=metadata, timeout=20)
        except grpc.RpcError as refused:
            return OF_GRPC[refused.code()]
        return SERVED
    try:
        list(site.flight.list_flights(options=site.options(secret)))
    except flight.FlightError as refused:
        problem = decoded(refused.extra_info)
        assert problem is not None
        return OF_FLIGHT[type(error_of(problem))]
    return SERVED


def connected(site: Site, door: str, stack: ExitStack, said: bytes = b"") -> socket.socket:
    place = urlsplit(getattr(site.addresses, door))
    connection = socket.create_connection((place.hostname, place.port), 20)
    connection.sendall(said)
    return stack.enter_context(connection)


@pytest.mark.parametrize("door", DOORS)
def test_who_guesses_waits_and_who_has_a_token_does_not(site: Site, door: str) -> None:
    known = site.token()
    found = []
    for _ in range(30):
        assert asked(site, door, known) == SERVED
        found.append(asked(site, door, new_secret()))
    assert found[:10] == [UNKNOWN] * 10
    assert found.count(TOLD_TO_WAIT) >= 10
    assert set(found) == {UNKNOWN, TOLD_TO_WAIT}


def test_who_guesses_at_one_door_waits_at_all(site: Site) -> None:
    for _ in range(12):
        asked(site, "http", new_secret())
    assert {asked(site, door, new_secret()) for door in DOORS} == {TOLD_TO_WAIT}


def test_guesses_at_a_schema_keep_nobody_else_out(site: Site) -> None:
    """Arrow does not tell whose they are, so all would count as those of one address."""
    place = flight.FlightDescriptor.for_path("orders").serialize()
    with grpc.insecure_channel(urlsplit(site.addresses.flight).netloc) as channel:
        ask = channel.unary_unary("/arrow.flight.protocol.FlightService/GetSchema")
        for _ in range(15):
            with pytest.raises(grpc.RpcError) as refused:
                ask(place, metadata=[("authorization", f"Bearer {new_secret()}")], timeout=20)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert ask(place, metadata=[("authorization", f"Bearer {site.token()}")], timeout=20)


@pytest.mark.parametrize("door", DOORS)
def test_who_dawdles_is_ended_and_others_are_served(site: Site, door: str) -> None:
    known = site.token()
    with ExitStack() as stack:
        held = []
        for _ in range(CONNECTIONS_MAX - 10):
            held.append(connected(site, door, stack, SAID[door]))
            assert asked(site, door, known) == SERVED
        for connection in held:
            while connection.recv(65_536):  # until the door closes it
                pass
        assert asked(site, door, known) == SERVED


@pytest.mark.parametrize("door", DOORS)
def test_a_flood_of_connections_keeps_nobody_out(site: Site, door: str) -> None:
    known = site.token()
    with ExitStack() as stack:
        for number in range(5 * CONNECTIONS_MAX):
            connected(site, door, stack, SAID[door] if number % 2 else b"")
            if number % 10 == 0:
                with clients_of(site.intake, site.addresses) as newcomer:
                    assert asked(newcomer, door, known) == SERVED
    assert asked(site, door, known) == SERVED
