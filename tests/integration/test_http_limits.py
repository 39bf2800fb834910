"""Clients that are slow, large, broken or hostile: refused or survived, and no other one notices."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pyarrow as pa
import pytest

from tests.conftest import MakeSettings
from tests.integration.serving import NDJSON, Serving, answer_of, serving

MIB = 1 << 20
GIB = 1 << 30
HEAD = b"POST /v1/topics/events/rows HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n" % (
    NDJSON.encode()
)


@pytest.fixture
def strict(make_settings: MakeSettings) -> Iterator[Serving]:
    """A service that has little patience and little room."""
    settings = make_settings(
        ingest__http_port=0,
        ingest__http_header_timeout_ms=700,
        ingest__http_body_timeout_ms=1200,
        ingest__http_idle_timeout_ms=1500,
        ingest__request_bytes_max=4 * MIB,
        ingest__memory_bytes_max=32 * MIB,
        wal__free_bytes_min=0,
    )
    with serving(settings) as service:
        service.send("events", b'{"id":0}').raise_for_status()
        yield service


@contextmanager
def unaffected(service: Serving, longest_seconds: float = 3.0) -> Iterator[None]:
    """Another client that sends all the while, and is answered soon every time."""
    stop = threading.Event()
    waited: list[float] = []
    failed: list[object] = []

    def send() -> None:
        while not stop.is_set():
            begin = time.monotonic()
            answer = service.send("others", b'{"id":1}')
            waited.append(time.monotonic() - begin)
            if answer.status_code != 200:
                failed.append(answer.text)
            stop.wait(0.02)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert waited
    assert max(waited) < longest_seconds


@contextmanager
def memory_bounded(more_bytes: int) -> Iterator[None]:
    """The process does not grow by more, looked at every few milliseconds."""
    process = psutil.Process()
    before = process.memory_info().rss
    highest = [before]
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.005):
            highest[0] = max(highest[0], process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert highest[0] - before < more_bytes, f"grew by {(highest[0] - before) / MIB:.0f} MiB"


def drip(connection: socket.socket, content: bytes, seconds: float) -> None:
    """Send a byte at a time, until the other side has had enough."""
    try:
        for place in range(len(content)):
            connection.sendall(content[place : place + 1])
            time.sleep(seconds)
    except OSError:
        pass


def test_a_slow_head_is_given_up(strict: Serving) -> None:
    with unaffected(strict), strict.connect() as connection:
        begin = time.monotonic()
        drip(connection, HEAD[:12], 0.1)
        status, body = answer_of(connection)
    assert status == 408
    assert b"http_header_timeout_ms" in body
    assert time.monotonic() - begin < 5


def test_a_slow_head_is_given_up_on_a_connection_that_was_used_before(strict: Serving) -> None:
    with strict.connect() as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        drip(connection, HEAD[:12], 0.1)
        assert answer_of(connection)[0] == 408


def test_a_head_that_begins_behind_another_request_and_stops_is_given_up(strict: Serving) -> None:
    with strict.connect() as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1")
        begin = time.monotonic()
        status, body = answer_of(connection)
    assert status == 200
    assert b"http_header_timeout_ms" in body
    assert time.monotonic() - begin < 5


def test_a_slow_body_is_given_up_and_holds_no_memory(strict: Serving) -> None:
    with unaffected(strict), strict.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n")
        drip(connection, b'{"id":1}' * 2, 0.1)
        status, body = answer_of(connection)
    assert status == 408
    assert b"http_body_timeout_ms" in body
    assert strict.intake.admission.held_bytes == 0


def test_a_client_that_goes_in_the_middle_of_its_body_leaves_nothing(strict: Serving) -> None:
    for _ in range(5):
        with strict.connect() as connection:
            connection.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"id":1}\n')
    wait_until(lambda: strict.intake.admission.held_bytes == 0)
    assert strict.rows("events") == [{"id": 0}]


def test_an_idle_connection_is_closed(strict: Serving) -> None:
    with strict.connect() as fresh, strict.connect() as used:
        used.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert used.recv(4096).startswith(b"HTTP/1.1 200")
        assert fresh.recv(4096) == b""
        assert used.recv(4096) == b""


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(strict: Serving) -> None:
    with unaffected(strict), strict.connect() as connection, memory_bounded(64 * MIB):
        length = b"Content-Length: %d\r\n" % (10 * GIB)
        connection.sendall(HEAD + length + b"Expect: 100-continue\r\n\r\n")
        status, body = answer_of(connection)
    assert status == 413
    assert b"split it" in body


def test_a_body_that_is_too_large_and_on_its_way_is_answered_all_the_same(strict: Serving) -> None:
    with unaffected(strict), memory_bounded(64 * MIB):
        answer = strict.send("events", b'{"id":1}\n' * (5 * MIB // 9))
    assert answer.status_code == 413
    assert "request_bytes_max" in answer.json()["detail"]
    assert strict.send("events", b'{"id":1}').status_code == 200


def test_a_chunked_body_is_counted_as_it_comes(strict: Serving) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(200):
            yield b'{"id":1}\n' * 10_000

    with unaffected(strict), memory_bounded(64 * MIB):
        answer = strict.client.post(
            "/v1/topics/events/rows", content=chunks(), headers={"Content-Type": NDJSON}
        )
    assert answer.status_code == 413
    assert strict.intake.admission.held_bytes == 0


def bomb(encoding: str, size: int) -> bytes:
    """So many zeros, packed: one piece of them over and over."""
    piece = bytes(64 * MIB)
    if encoding == "gzip":
        packed = gzip.compress(piece)
    else:
        packed = pa.compress(piece, "zstd", asbytes=True)
    return packed * (size // len(piece))


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_ends_at_the_bound(make_settings: MakeSettings, encoding: str) -> None:
    body = bomb(encoding, 10 * GIB)
    settings = make_settings(ingest__http_port=0, wal__free_bytes_min=0)
    with serving(settings) as service, unaffected(service), memory_bounded(300 * MIB):
        answer = service.send("events", body, headers={"Content-Encoding": encoding})
    assert answer.status_code == 413, answer.text


def test_requests_that_hold_too_much_together_are_told_to_come_back(strict: Serving) -> None:
    length = 3 * MIB
    head = HEAD + b"Content-Length: %d\r\n\r\n" % length
    with ExitStack() as stack:
        waiting = [stack.enter_context(strict.connect()) for _ in range(8)]
        for connection in waiting:
            connection.sendall(head)
        wait_until(lambda: strict.intake.admission.held_bytes >= 4 * length)
        answer = strict.send("events", b'{"id":1}\n' * (length // 9))
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["retry_after_ms"] > 0
    wait_until(lambda: strict.intake.admission.held_bytes == 0)
    assert strict.send("events", b'{"id":1}\n' * (length // 9)).status_code == 200


def test_a_head_that_is_too_large_is_refused(
    strict: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    whole = HEAD + b"X: " + b"x" * 100_000 + b"\r\n\r\n"
    endless = HEAD + b"X: " + b"x" * 100_000
    address = b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    many = HEAD + b"".join(b"X%d: y\r\n" % n for n in range(20_000)) + b"\r\n"
    for content in (whole, endless, address, many):
        with strict.connect() as connection:
            connection.sendall(content)
            status, body = answer_of(connection)
        assert status == 431, body[:100]
        assert b"problem" in body or b"hint" in body
    assert not [each for each in caplog.records if each.name == "asyncio"]  # of what failed


@pytest.mark.parametrize(
    "content",
    [
        b"no HTTP at all\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Bad Header: x\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_with_400(strict: Serving, content: bytes) -> None:
    with strict.connect() as connection:
        connection.sendall(content)
        status, body = answer_of(connection)
    assert status == 400
    assert b"detail" in body
    assert strict.rows("events") == [{"id": 0}]


def test_a_chunked_body_that_is_cut_off_appends_nothing(strict: Serving) -> None:
    with strict.connect() as connection:
        connection.sendall(HEAD + b'Transfer-Encoding: chunked\r\n\r\n8\r\n{"id":1}\r\n')
        connection.shutdown(socket.SHUT_WR)
        answer_of(connection)
    wait_until(lambda: strict.intake.admission.held_bytes == 0)
    assert strict.rows("events") == [{"id": 0}]


def test_pipelined_requests_are_answered_in_order(strict: Serving) -> None:
    def request(body: bytes, more: bytes = b"") -> bytes:
        return HEAD + more + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)

    with strict.connect() as connection:
        connection.sendall(
            request(b'{"id":1}')
            + request(b"nonsense")
            + request(b'{"id":2}', b"Connection: close\r\n")
        )
        content = b""
        while piece := connection.recv(65536):
            content += piece
    statuses = [each[:3] for each in content.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"400", b"200"]
    assert strict.rows("events") == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_a_broken_request_behind_a_good_one_does_not_take_its_answer(strict: Serving) -> None:
    body = b'{"id":1}'
    with strict.connect() as connection:
        connection.sendall(
            HEAD + b"Content-Length: %d\r\n\r\n%sno HTTP\r\n\r\n" % (len(body), body)
        )
        status, answer = answer_of(connection)
    assert status == 200
    assert b'"first":1' in answer


def test_connections_whose_other_end_vanished_without_a_word_are_let_go_in_time(
    strict: Serving,
) -> None:
    """No FIN and no reset, as when a network goes away: silent when idle, within a head, within a
    body, and with an answer that nobody takes."""
    body = HEAD + b"Content-Length: 10\r\n\r\n{"
    asked = b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    process = psutil.Process()
    with ExitStack() as stack, unaffected(strict):
        before = process.num_fds()
        for said in (b"", HEAD[:40], body, asked) * 10:
            stack.enter_context(strict.connect()).sendall(said)
        begin = time.monotonic()
        wait_until(lambda: strict.intake.admission.held_bytes >= 100)
        wait_until(lambda: strict.intake.admission.held_bytes == 0)
        # One each is this side's, which stays open.
        wait_until(lambda: process.num_fds() <= before + 40 + 5)
        assert time.monotonic() - begin < 6, "the longest patience is 1.5 s"
    assert strict.intake.admission.held_bytes == 0


def test_half_open_connections_are_survived(strict: Serving) -> None:
    with ExitStack() as stack, unaffected(strict):
        for _ in range(50):
            connection = stack.enter_context(strict.connect())
            connection.sendall(HEAD + b"Content-Length: 10\r\n\r\n{")
            connection.shutdown(socket.SHUT_WR)
    wait_until(lambda: strict.intake.admission.held_bytes == 0)


def test_more_connections_than_allowed_are_told_so(make_settings: MakeSettings) -> None:
    settings = make_settings(ingest__http_port=0, ingest__http_connections_max=10)
    with serving(settings) as service, ExitStack() as stack:
        service.client.post("/v1/topics/events/rows", json=[{"id": 1}]).raise_for_status()
        held = [stack.enter_context(service.connect()) for _ in range(10)]
        stream = b"GET /v1/topics/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for connection in held:
            connection.sendall(stream)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        with service.connect() as one_more:
            status, body = answer_of(one_more)
        assert status == 503
        assert b"http_connections_max" in body
        held[0].close()
        wait_until(lambda: service.client.get("/health/live").status_code == 200)


def test_connections_that_are_kept_for_nothing_keep_nobody_out(make_settings: MakeSettings) -> None:
    settings = make_settings(ingest__http_port=0, ingest__http_connections_max=10)
    with serving(settings) as service, ExitStack() as stack:
        ask = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        held = [stack.enter_context(service.connect()) for _ in range(10)]
        for connection in held:  # the last ones say nothing at all
            if connection in held[:5]:
                connection.sendall(ask)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        for _ in range(30):
            with service.connect() as one_more:
                one_more.sendall(ask)
                assert one_more.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "127.0.0.9:1"}, 200),
        ({"Host": "[::1]:8080"}, 200),
        ({"Host": "evil.example.com"}, 403),
        ({"Host": "localhost.example.com"}, 403),
        ({"Host": "127.0.0.1.example.com"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "localhost", "Origin": "http://localhost:3000"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Host": "localhost", "Origin": "https://evil.example.com"}, 403),
        ({"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Host": "localhost", "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_web_pages_are_kept_out(service: Serving, headers: dict[str, str], status: int) -> None:
    body = b'[{"id":1}]'
    answer = service.client.post(
        "/v1/topics/events/rows",
        content=body,
        headers={"Content-Type": "application/json", **headers},
    )
    assert answer.status_code == status, answer.text
    if status == 403:
        assert "web pages" in answer.json()["hint"]


def test_a_full_disk_is_told_and_reading_goes_on(make_settings: MakeSettings) -> None:
    settings = make_settings(ingest__http_port=0, wal__free_bytes_min=0)
    with serving(settings) as service:
        service.send("events", b'{"id":1}').raise_for_status()
    free = psutil.disk_usage(str(settings.data)).free
    full = make_settings(ingest__http_port=0, wal__free_bytes_min=free + 100 * GIB)
    with serving(full) as service:
        answer = service.send("events", b'{"id":2}')
        assert answer.status_code in {429, 503}, answer.text
        assert int(answer.headers["Retry-After"]) >= 1
        assert service.client.get("/v1/topics/events/rows").json()["rows"][0]["value"] == {"id": 1}
        assert service.intake.admission.held_bytes == 0


def test_a_body_of_tiny_rows_stays_small_in_memory(make_settings: MakeSettings) -> None:
    settings = make_settings(
        ingest__http_port=0, ingest__request_bytes_max=32 * MIB, wal__free_bytes_min=0
    )
    with serving(settings) as service, memory_bounded(600 * MIB):
        array = b"[" + b'{"a":1},' * MIB + b'{"a":1}]'
        assert service.send("events", array, "application/json").status_code == 200
        ones = b"[" + b"1," * (8 * MIB) + b"1]"
        assert service.send("events", ones, "application/json").status_code == 400
        blank = b"\n" * (16 * MIB)
        assert service.send("events", blank).status_code == 400


def test_a_body_of_very_many_columns_is_refused(service: Serving) -> None:
    row = b"{" + b",".join(b'"c%d":1' % n for n in range(6_000)) + b"}"
    answer = service.send("events", row)
    assert answer.status_code in {400, 422}, answer.text[:200]
    assert "5,000 columns" in answer.json()["detail"]


def wait_until(is_so: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_file_descriptors_are_given_back(service: Serving) -> None:
    process = psutil.Process()
    service.send("events", b'{"id":1}')
    before = process.num_fds()
    for _ in range(200):
        with service.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n")
    wait_until(lambda: process.num_fds() <= before + 2)
