"""Clients of streams that vanish and close nothing, as with the loss of their machine or network."""

from __future__ import annotations

import ctypes
import json
import socket
import struct
import sys
import time
from collections.abc import Iterator

import pytest

from tests.conftest import MakeSettings
from tests.integration.serving import Serving, serving
from tests.integration.streaming import BILLING, PATH, append

SILENT_SECONDS = 0.6
SOCKET_HEAD = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
SO_ATTACH_FILTER = 26

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells on Linux alone")


@pytest.fixture
def service(make_settings: MakeSettings) -> Iterator[Serving]:
    settings = make_settings(
        ingest__http_port=0,
        ingest__http_idle_timeout_ms=int(SILENT_SECONDS * 1000),
        wal__free_bytes_min=0,
    )
    with serving(settings) as made:
        yield made


def asked(service: Serving, head: str = "", path: str = f"{PATH}/stream") -> socket.socket:
    connection = service.connect()
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
    return connection


def received(connection: socket.socket, wanted: bytes) -> bytes:
    content = b""
    while wanted not in content:
        piece = connection.recv(65536)
        assert piece, content
        content += piece
    return content


def vanish(connection: socket.socket) -> None:
    """Whatever comes for it from now on is dropped by the kernel, and not acknowledged."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # return 0 bytes
    words = struct.pack("HP", 1, ctypes.addressof(program))
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, words)


def owner(service: Serving) -> str | None:
    found = service.intake.state.subscription(BILLING)
    assert found is not None
    return found.owner


@pytest.mark.parametrize("head", ["", SOCKET_HEAD], ids=["events", "socket"])
@pytest.mark.parametrize("count", [1, 60_000], ids=["waiting", "flooded"])
def test_a_client_that_vanishes_loses_its_subscription_in_time(
    service: Serving, head: str, count: int
) -> None:
    append(service, 1)
    with asked(service, head) as connection:
        received(connection, b'"offset":0')
        assert owner(service) is not None
        vanish(connection)
        append(service, count)
        begun = time.monotonic()
        while owner(service) is not None:
            assert time.monotonic() - begun < 10, "it is waited for"
            time.sleep(0.05)
        assert time.monotonic() - begun > SILENT_SECONDS / 3, "it was not given its time"
    with service.client.stream("GET", f"{PATH}/stream") as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        assert json.loads(next(lines).removeprefix("data: "))["offset"] == 0


def test_a_client_that_is_there_and_does_not_read_is_waited_for(service: Serving) -> None:
    append(service, 60_000)
    with asked(service) as connection:
        time.sleep(3 * SILENT_SECONDS)
        assert owner(service) is not None
        received(connection, b'"offset":59999')
