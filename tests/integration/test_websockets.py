"""Rows over WebSockets, with a client that is not ours: read, acknowledged, resumed, and misused."""

from __future__ import annotations

import gc
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from calve.ingest.http.socket_protocol import BoundedSocket
from tests.conftest import MakeSettings
from tests.integration.serving import Serving, serving
from tests.integration.streaming import PATH, append

Event = dict[str, Any]
STREAM = f"{PATH}/stream"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


@pytest.fixture
def service(make_settings: MakeSettings) -> Iterator[Serving]:
    settings = make_settings(
        ingest__http_port=0,
        ingest__http_idle_timeout_ms=600,
        ingest__streams_max=4,
        wal__free_bytes_min=0,
        reader__poll_interval_ms=200,
    )
    with serving(settings) as made:
        yield made


def opened(service: Serving, path: str = STREAM, **options: Any) -> ClientConnection:
    address = service.url.replace("http", "ws", 1) + path
    found: ClientConnection = connect(
        address, compression=None, ping_interval=None, legacy=True, **options
    )
    return found


def heard(stream: ClientConnection, kind: str = "row") -> Event:
    while True:
        event: Event = json.loads(stream.recv(timeout=20))
        if event["event"] == kind:
            return event
        assert event["event"] in {"place", "row"}, event


def rows(stream: ClientConnection, count: int) -> list[Event]:
    return [heard(stream) for _ in range(count)]


def offsets(found: list[Event]) -> list[int]:
    assert all(each["data"]["value"] == {"id": each["data"]["offset"]} for each in found)
    return [each["data"]["offset"] for each in found]


def acknowledge(stream: ClientConnection, event: Event) -> bool:
    stream.send(json.dumps({"ack": event["id"]}))
    answer = heard(stream, "ack")
    assert answer["id"] == event["id"]
    counts: bool = answer["data"]["counts"]
    return counts


def end_of(stream: ClientConnection) -> tuple[Event | None, int, str]:
    """The last message, and the code and the reason of the end."""
    last: Event | None = None
    with suppress(ConnectionClosed):
        while True:
            last = json.loads(stream.recv(timeout=20))
    assert stream.close_code is not None
    return last, stream.close_code, stream.close_reason or ""


def position(service: Serving) -> int:
    found: int = service.client.get(PATH).json()["partitions"][0]["position"]
    return found


def test_rows_come_are_acknowledged_on_the_socket_and_go_on_where_it_broke(
    service: Serving,
) -> None:
    append(service, 4)
    with opened(service) as stream:
        found = rows(stream, 4)
        assert offsets(found) == [0, 1, 2, 3]
        assert set(found[0]["data"]) == {"partition", "offset", "ingested_at", "value"}
        assert acknowledge(stream, found[1])
        assert position(service) == 2
        append(service, 1)
        assert heard(stream)["data"]["offset"] == 4
    with opened(service) as stream:
        assert offsets(rows(stream, 3)) == [2, 3, 4]
    with opened(service, f"{STREAM}?resume={found[2]['id']}") as stream:
        assert offsets(rows(stream, 2)) == [3, 4]
    with opened(service, additional_headers={"Last-Event-ID": found[3]["id"]}) as stream:
        assert offsets(rows(stream, 1)) == [4]


def test_one_that_waits_for_rows_is_told_its_place_at_once(service: Serving) -> None:
    append(service, 4)
    with opened(service, f"{STREAM}?from=latest") as stream:
        place = json.loads(stream.recv(timeout=2))
        assert (place["event"], place["id"][-4:]) == ("place", "-0:4")
        append(service, 1)
        assert heard(stream)["data"]["offset"] == 4
    with opened(service, f"{STREAM}?resume={place['id']}") as stream:
        assert heard(stream)["data"]["offset"] == 4


def test_a_topic_is_read_without_a_subscription_and_the_end_is_said(service: Serving) -> None:
    append(service, 4)
    path = "/v1/topics/orders/stream?from=1&where=id%20%3C%3E%202&follow=false"
    with opened(service, path) as stream:
        assert offsets(rows(stream, 2)) == [1, 3]
        assert end_of(stream)[1] == 1000
    with opened(service, "/v1/topics/orders/stream") as stream:
        stream.send(json.dumps({"ack": heard(stream)["id"]}))
        last, code, reason = end_of(stream)
        assert last is not None
        assert (last["event"], last["data"]["status"], code) == ("problem", 400, 4400)
        assert "without a subscription" in reason


def test_many_acknowledgements_at_once_come_to_the_furthest(service: Serving) -> None:
    append(service, 300)
    with opened(service) as stream:
        found = rows(stream, 300)
        for event in [*found[:250], found[10]]:
            stream.send(json.dumps({"ack": event["id"]}))
        while heard(stream, "ack")["id"] != found[249]["id"]:
            pass
    assert position(service) == 250


def test_of_two_sockets_one_has_the_subscription_and_the_other_takes_over(
    service: Serving,
) -> None:
    append(service, 2)
    first = opened(service)
    old = rows(first, 2)
    with opened(service) as second:
        with pytest.raises(TimeoutError):
            second.recv(timeout=0.5)
        first.close()
        new = rows(second, 2)
        assert offsets(new) == [0, 1]
        assert acknowledge(second, new[0])
        # Of an owner before.
        second.send(json.dumps({"ack": old[1]["id"]}))
        last, code, _ = end_of(second)
        assert last is not None
        assert (last["event"], last["data"]["status"], code) == ("problem", 409, 4409)
    assert position(service) == 1


def test_a_socket_that_breaks_is_taken_over_by_its_own_client_at_once(service: Serving) -> None:
    append(service, 2)
    with opened(service) as stream, opened(service, f"{STREAM}?from=0") as other:
        found = rows(stream, 2)
        started = time.monotonic()
        with opened(service, f"{STREAM}?resume={found[0]['id']}") as again:
            assert offsets(rows(again, 1)) == [1]
            assert time.monotonic() - started < 2
            assert acknowledge(again, found[0])  # of before it broke
            assert end_of(stream)[1] == 4409
            with pytest.raises(TimeoutError):
                other.recv(timeout=0.3)
    assert position(service) == 1


def test_a_stop_says_come_back_and_the_next_service_goes_on(make_settings: MakeSettings) -> None:
    settings = make_settings(ingest__http_port=0, wal__free_bytes_min=0)
    with serving(settings) as service:
        append(service, 3)
        stream = opened(service)
        found = rows(stream, 3)
        assert acknowledge(stream, found[0])
        started = time.monotonic()
        service.server.stop()
        assert end_of(stream)[1] == 1012
        assert time.monotonic() - started < 3
        stream.close()
    with (
        serving(settings) as service,
        opened(service, f"{STREAM}?resume={found[1]['id']}") as again,
    ):
        (last,) = rows(again, 1)
        assert last["data"]["offset"] == 2
        assert acknowledge(again, last)
        assert position(service) == 3


def test_a_subscription_that_is_deleted_ends_its_socket_with_the_reason(service: Serving) -> None:
    append(service, 1)
    with opened(service) as stream:
        rows(stream, 1)
        assert service.client.delete(PATH).status_code == 200
        last, code, reason = end_of(stream)
        assert last is not None
        assert (last["event"], code) == ("problem", 4404)
        assert last["data"]["detail"].startswith(reason)


@pytest.fixture
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Strangers do not fill the log; looked at when the service has stopped."""
    yield
    found = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert not [each.getMessage() for each in found if each.levelno >= logging.ERROR]


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/topics/nothing/stream", {}, 404),
        ("/v1/topics/nothing/subscriptions/billing/stream", {}, 404),
        ("/v1/topics/orders", {}, 404),
        ("/nothing", {}, 404),
        ("/v1/topics/orders/stream?from=99", {}, 400),
        ("/v1/topics/orders/stream?columns=nothing", {}, 422),
        ("/v1/topics/orders/stream?resume=x", {}, 400),
        ("/v1/topics/orders/subscriptions/-/stream", {}, 400),
        ("/v1/topics/orders/stream", {"Origin": "http://evil.example.com"}, 403),
        ("/v1/topics/orders/stream", {"Origin": "null"}, 403),
        ("/v1/topics/orders/stream", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/v1/topics/orders/stream", {"Cookie": "x" * 20_000}, 431),
        (f"/v1/topics/orders/stream?where={'x' * 20_000}", {}, 431),
    ],
)
def test_what_cannot_be_is_refused_with_a_problem_before_the_socket_opens(
    service: Serving, path: str, headers: dict[str, str], status: int
) -> None:
    append(service, 1)
    with pytest.raises(InvalidStatus) as refused:
        opened(service, path, additional_headers=headers)
    answer = refused.value.response
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.body)["status"] == status


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("GET", "Sec-WebSocket-Version: 13\r\n", 400),
        ("GET", f"Sec-WebSocket-Version: 8\r\n{KEY}", 400),
        ("GET", f"Host: evil.example.com\r\nSec-WebSocket-Version: 13\r\n{KEY}", 403),
        ("DELETE", "Sec-WebSocket-Version: 13\r\nConnection: close\r\n", 405),
    ],
)
def test_a_handshake_that_is_none_is_refused_with_a_problem(
    service: Serving, request_line: str, headers: str, status: int
) -> None:
    with service.connect() as connection:
        connection.sendall(
            f"{request_line} {STREAM} HTTP/1.1\r\n{headers}"
            "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode()
        )
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert json.loads(body)["status"] == status


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", 4400),
        ("[]", 4400),
        ('{"ack": 1}', 4400),
        ('{"ack": "x"}', 4400),
        ('{"ack": "1-1-0:1", "more": 1}', 4400),
        ('{"nack": "1-1-0:1"}', 4400),
        ("[" * 5_000, 4400),
        (b'{"ack": "1-1-0:1"}', 4415),
        ("x" * 70_000, 1009),
        (["x" * 40_000, "x" * 40_000], 1009),
    ],
)
def test_a_message_that_makes_no_sense_ends_the_socket_and_nothing_else(
    service: Serving, message: Any, code: int
) -> None:
    append(service, 1)
    with opened(service, max_size=None) as stream:
        event = heard(stream)
        with suppress(ConnectionClosed):  # before all of it was sent
            stream.send(message)
        last, found, _ = end_of(stream)
        assert found == code
        assert code < 4000 or (last is not None and last["data"]["hint"])
    with opened(service) as stream:
        assert acknowledge(stream, heard(stream)), event


def test_sockets_are_counted_with_other_streams_and_make_room_again(service: Serving) -> None:
    append(service, 1)
    path = "/v1/topics/orders/stream"
    streams = [opened(service, path) for _ in range(4)]
    assert [offsets(rows(each, 1)) for each in streams] == [[0]] * 4
    with pytest.raises(InvalidStatus) as refused:
        opened(service, path)
    assert refused.value.response.status_code == 429
    for each in streams:
        each.close()
    deadline = time.monotonic() + 10
    while service.client.get(f"{path}?follow=false").status_code == 429:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def silent(service: Serving) -> socket.socket:
    """A socket that is open, and on which nobody reads or answers."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    place = urlsplit(service.url)
    connection.connect((place.hostname, place.port))
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    connection.sendall(f"GET {STREAM} HTTP/1.1\r\n{upgrade}{KEY}\r\n".encode())
    assert b" 101 " in connection.recv(100)
    return connection


@pytest.mark.parametrize("count", [1, 60_000])
def test_a_client_that_is_gone_without_a_word_loses_its_subscription(
    service: Serving, count: int
) -> None:
    append(service, count)
    with silent(service), opened(service, close_timeout=0.1) as next_one:
        assert offsets(rows(next_one, 1)) == [0]
        deadline = time.monotonic() + 10
        while len(open_sockets()) > 1:
            assert time.monotonic() < deadline, "what waits for the first one is kept"
            time.sleep(0.05)


def open_sockets() -> list[BoundedSocket]:
    """Those that the service has in this process."""
    found = [each for each in gc.get_objects() if type(each) is BoundedSocket]
    return [each for each in found if not each.disconnected]


def test_a_stop_does_not_wait_for_a_client_that_does_not_read(make_settings: MakeSettings) -> None:
    with serving(make_settings(ingest__http_port=0, wal__free_bytes_min=0)) as service:
        append(service, 60_000)
        with silent(service), service.client.stream("GET", "/v1/topics/orders/stream"):
            started = time.monotonic()
            service.server.stop()
            assert time.monotonic() - started < 5


def test_a_client_that_does_not_read_holds_up_nobody(make_settings: MakeSettings) -> None:
    settings = make_settings(ingest__http_port=0, wal__free_bytes_min=0)
    with serving(settings) as service:
        append(service, 1)
        with opened(service) as stalled, opened(service, "/v1/topics/orders/stream") as live:
            heard(stalled)
            for _ in range(5):
                append(service, 2_000)
            assert offsets(rows(live, 10_001)) == list(range(10_001))
            assert offsets(rows(stalled, 10_000)) == list(range(1, 10_001))


def test_pings_without_end_from_one_who_does_not_read_are_not_kept(
    make_settings: MakeSettings,
) -> None:
    ping = b"\x89\xfd" + bytes(4) + b"x" * 125
    with serving(make_settings(ingest__http_port=0, wal__free_bytes_min=0)) as service:
        append(service, 1)
        with silent(service) as connection:
            for _ in range(800):
                connection.sendall(ping * 100)
            (open_one,) = open_sockets()
            assert open_one.transport.get_write_buffer_size() < 1 << 20
