"""Stopping: what was accepted is answered, what was answered with 200 is in the log."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from calve.ingest import Intake
from calve.ingest.http import HttpServer
from calve.model import TableName
from calve.settings import Settings
from calve.wal import Kind
from tests.conftest import MakeSettings
from tests.integration.serving import NDJSON, answer_of, serving

EVENTS = TableName.parse("events")
HEAD = b"POST /v1/topics/events/rows HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n" % (
    NDJSON.encode()
)


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings(ingest__http_port=0, wal__free_bytes_min=0)


class Producer:
    """Sends numbered rows as fast as it can, until the service goes; nothing is retried."""

    def __init__(self, url: str, name: int) -> None:
        self._place = urlsplit(url).netloc
        self._name = name
        self.acknowledged: list[int] = []
        self.refused: list[int] = []  # by an answer
        self.unanswered: list[int] = []  # sent as a whole, and the connection ended
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._place, timeout=30)
        for number in range(1_000_000):
            body = json.dumps({"producer": self._name, "number": number})
            try:
                connection.request("POST", "/v1/topics/events/rows", body, {"Content-Type": NDJSON})
            except OSError:
                return  # nobody accepted it
            try:
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                self.unanswered.append(number)
                return
            if answer.status != 200:
                assert answer.status == 503
                assert answer.headers["Connection"] == "close"
                self.refused.append(number)
                return
            self.acknowledged.append(number)

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def rows_in(settings: Settings) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    with Intake(settings) as intake:
        for entry in intake.read(EVENTS, 0):
            assert entry.kind == Kind.ROWS
            assert entry.batch is not None
            for row in entry.batch.to_pylist():
                found.setdefault(row["producer"], []).append(row["number"])
    return found


def test_a_stop_under_load_answers_everything_and_loses_nothing(settings: Settings) -> None:
    with Intake(settings) as intake:
        server = HttpServer(intake)
        url = server.start()
        producers = [Producer(url, name) for name in range(20)]
        time.sleep(1.0)
        server.stop()
        server.stop()  # again does nothing
        for producer in producers:
            producer.join()
    found = rows_in(settings)
    for name, producer in enumerate(producers):
        assert len(producer.acknowledged) > 1
        assert not producer.unanswered
        assert found[name] == producer.acknowledged
    assert any(producer.refused for producer in producers)


@contextmanager
def stopping(server: HttpServer, grace_seconds: float) -> Iterator[None]:
    thread = threading.Thread(target=server.stop, args=(grace_seconds,))
    thread.start()
    try:
        yield
    finally:
        thread.join(30)
        assert not thread.is_alive()


def test_a_body_that_is_on_its_way_is_taken_to_its_end(settings: Settings) -> None:
    with serving(settings) as service, service.connect() as connection:
        body = b'{"id":1}'
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body[:4]))
        time.sleep(0.3)
        with stopping(service.server, 20):
            time.sleep(0.3)
            connection.sendall(body[4:])
            status, _ = answer_of(connection)
        assert status == 200
        assert service.rows("events") == [{"id": 1}]


def test_new_requests_are_refused_while_it_stops(settings: Settings) -> None:
    with serving(settings) as service, service.connect() as held:
        held.sendall(HEAD + b'Content-Length: 8\r\n\r\n{"id"')
        kept = service.client.get("/health/ready")
        assert kept.status_code == 200
        time.sleep(0.2)
        with stopping(service.server, 20):
            time.sleep(0.3)
            again = service.client.get("/health/ready")  # over the connection of before
            assert again.status_code == 503
            assert again.headers["Connection"] == "close"
            assert again.headers["Retry-After"] == "1"
            held.sendall(b":1}")
            assert answer_of(held)[0] == 200


def test_what_takes_longer_than_the_grace_is_answered_with_503(settings: Settings) -> None:
    with serving(settings) as service, service.connect() as slow, service.connect() as flush:
        service.send("events", b'{"id":1}').raise_for_status()
        slow.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        flush.sendall(b"POST /v1/topics/events/flush HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.5)
        begin = time.monotonic()
        service.server.stop(0.5)
        assert time.monotonic() - begin < 10
        for connection in (slow, flush):
            status, body = answer_of(connection)
            assert status == 503
            assert b"the service stops" in body


def test_a_server_can_be_made_again_over_the_same_intake(settings: Settings) -> None:
    with Intake(settings) as intake:
        for number in range(3):
            with HttpServer(intake) as server:
                place = urlsplit(server.url).netloc
                connection = http.client.HTTPConnection(place, timeout=30)
                body = json.dumps({"id": number})
                connection.request("POST", "/v1/topics/events/rows", body, {"Content-Type": NDJSON})
                assert json.loads(connection.getresponse().read())["first"] == number
                connection.close()
