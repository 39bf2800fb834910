"""A token that is revoked, or over, ends within five seconds everywhere, also where it is in use."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pytest
from pyarrow import flight
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from calve import Client
from calve.access import Caller, Tokens
from calve.access.token import digest_of, id_of
from calve.audit import Trail
from calve.clock import SystemClock
from calve.errors import Denied, Overloaded, Unauthenticated
from calve.model import TableName
from calve.state import SubscriptionName, open_state
from tests.commands import Run, run_command
from tests.integration.access_site import OWN, ROWS, Site, access_site, bearer
from tests.integration.flight_calls import refused
from tests.otlp_door import EXPORT, spans
from tests.services import up

UPLOAD_SECONDS = 6.0
MANY = pa.record_batch({"id": range(1_000), "secret": ["x" * 500] * 1_000})
LARGE = "SELECT i, repeat('x', 500) || i AS s FROM range(1000000) t(i)"
WAIT_SECONDS = 20.0  # a test that waits longer has found a stream that does not end


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with access_site(tmp_path / "lake") as site:
        yield site


def revoke_elsewhere(site: Site, secret: str) -> None:
    """As another process does: through the state alone."""
    with closing(open_state(site.intake.settings)) as state:
        clock = SystemClock()
        tokens = Tokens(state, Caller.of_host(), clock=clock, trail=Trail.of(site.intake.settings))
        tokens.revoke(id_of(digest_of(secret)))


class Stream(threading.Thread):
    """Goes on until it is ended, and keeps how that was."""

    def __init__(self, work: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.began = threading.Event()
        self.outcome = ""

    def run(self) -> None:
        self.outcome = self._work()


def over_flight(site: Site, token: str, began: threading.Event) -> str:
    ticket = flight.Ticket(json.dumps({"kind": "stream", "topic": "orders"}).encode())
    reader = site.flight.do_get(ticket, site.open_options(token))
    try:
        for _ in reader:
            began.set()
    except flight.FlightUnauthenticatedError:
        return "unauthenticated"
    except flight.FlightUnavailableError:
        return "stopped"  # with the service
    return "ended"


def over_events(site: Site, token: str, began: threading.Event) -> str:
    url = f"{site.addresses.http}/v1/topics/orders/stream"
    with httpx.stream("GET", url, headers=bearer(token), timeout=WAIT_SECONDS) as response:
        lines = []
        for line in response.iter_lines():
            began.set()
            lines.append(line)
    return "unauthenticated" if "unauthenticated" in lines[-2] + lines[-3] else str(lines[-5:])


def over_socket(site: Site, token: str, began: threading.Event) -> str:
    url = f"{site.addresses.http}/v1/topics/orders/stream".replace("http", "ws", 1)
    with connect(url, additional_headers=bearer(token)) as socket:
        try:
            while True:
                socket.recv()
                began.set()
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else 0
            return "unauthenticated" if code == 4401 else str(closed)


def by_put(site: Site, token: str, began: threading.Event) -> str:
    place = flight.FlightDescriptor.for_path("orders")
    writer, reader = site.flight.do_put(place, ROWS.schema, site.open_options(token))
    try:
        while True:
            writer.write_batch(ROWS)
            if reader.read() is None:
                writer.close()
            began.set()
            time.sleep(0.02)
    except flight.FlightUnauthenticatedError:
        return "unauthenticated"


def by_silent_put(site: Site, token: str, began: threading.Event) -> str:
    """One that sends nothing more: nobody can tell it, so its connection is ended."""
    with closing(flight.FlightClient(site.addresses.flight)) as client:
        place = flight.FlightDescriptor.for_path("orders")
        writer, reader = client.do_put(place, ROWS.schema, site.open_options(token))
        writer.write_batch(ROWS)
        assert reader.read() is not None
        began.set()
        assert reader.read() is None
        return "unauthenticated"


def slowly(began: threading.Event) -> Iterator[bytes]:
    """Rows that go on for longer than a revoked token may."""
    deadline = time.monotonic() + UPLOAD_SECONDS
    while time.monotonic() < deadline:
        yield b'{"id": 7}\n'
        began.set()
        time.sleep(0.1)


def by_upload(site: Site, token: str, began: threading.Event) -> str:
    headers = {"Content-Type": "application/x-ndjson", **bearer(token)}
    answer = httpx.post(
        f"{site.addresses.http}/v1/topics/orders/rows", content=slowly(began), headers=headers
    )
    return "unauthenticated" if answer.status_code == 401 else answer.text


def by_telemetry(site: Site, token: str, began: threading.Event) -> str:
    headers = {"Content-Type": "application/json", **bearer(token)}
    content = (b" " * len(each) for each in slowly(began))
    answer = httpx.post(f"{site.addresses.otlp_http}/v1/logs", content=content, headers=headers)
    return "unauthenticated" if answer.status_code == 401 else answer.text


def by_flush(site: Site, token: str, began: threading.Event) -> str:
    """Of rows that no pipeline brings to the table."""
    url = f"{site.addresses.http}/v1/topics/orders/flush?timeout_ms=15000"
    began.set()
    answer = httpx.post(url, headers=bearer(token), timeout=WAIT_SECONDS)
    return "unauthenticated" if answer.status_code == 401 else answer.text


STREAMS: dict[str, Any] = {
    "an upload": by_upload,
    "telemetry": by_telemetry,
    "a flush": by_flush,
    "Flight": over_flight,
    "server-sent events": over_events,
    "WebSocket": over_socket,
    "DoPut": by_put,
    "a silent DoPut": by_silent_put,
}


def test_streams_that_are_open_end_when_their_token_is_revoked_elsewhere(site: Site) -> None:
    token, lasting = site.token(), site.token()
    open_streams = {}
    for name, work in STREAMS.items():
        stream = open_streams[name] = Stream(lambda: "")
        stream._work = lambda work=work, stream=stream: work(site, token, stream.began)  # type: ignore[misc]
        stream.start()
    kept = threading.Event()
    other = Stream(lambda: over_flight(site, lasting, kept))
    other.start()
    for name, stream in open_streams.items():
        assert stream.began.wait(WAIT_SECONDS), name
    revoke_elsewhere(site, token)
    for stream in open_streams.values():
        stream.join(WAIT_SECONDS)
    assert {name: each.outcome for name, each in open_streams.items()} == dict.fromkeys(
        STREAMS, "unauthenticated"
    )
    assert kept.is_set()
    assert other.is_alive()  # another token's go on
    with pytest.raises(Unauthenticated):
        Client(site.addresses.flight, token=token).stats("orders")


def test_telemetry_over_grpc_is_refused_when_its_token_is_revoked_before_its_message(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is open and let in; its message comes after the token's end."""
    let_in = threading.Event()
    revoked = threading.Event()
    known = site.intake.doorkeeper.caller

    def caller(authorization: str | None, address: str) -> Caller:
        found = known(authorization, address)
        let_in.set()
        return found

    def messages() -> Iterator[bytes]:
        assert revoked.wait(WAIT_SECONDS)
        yield spans().SerializeToString()

    monkeypatch.setattr(site.intake.doorkeeper, "caller", caller)
    token = site.token(("produce",))
    export = site.otlp_grpc.stream_unary(EXPORT)
    call = export.future(messages(), metadata=[("authorization", f"Bearer {token}")])
    assert let_in.wait(WAIT_SECONDS)
    site.revoke(token)
    revoked.set()
    assert call.code() == grpc.StatusCode.UNAUTHENTICATED
    assert "was revoked" in call.details()
    assert site.intake.topic(TableName.parse(f"{OWN}.default.traces")) is None


def test_an_answer_that_is_not_read_ends_when_its_token_is_revoked(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    token, lasting = site.token(("query",)), site.token(("query",))

    def under_way() -> list[Any]:
        found = site.http.get("/v1/queries", headers=bearer(lasting)).json()["queries"]
        return list(found)

    url = f"{site.addresses.http}/v1/query?format=csv"
    with httpx.stream("POST", url, json={"sql": LARGE}, headers=bearer(token)) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        assert len(under_way()) == 1
        revoke_elsewhere(site, token)
        deadline = time.monotonic() + 5
        while under_way():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(httpx.HTTPError):
            list(pieces)
    assert [each.message for each in caplog.records] == [
        "an answer was cut off: the token is not known, was revoked, or is over"
    ]


def test_a_subscriber_that_does_not_read_is_ended_when_its_token_is_revoked(site: Site) -> None:
    token = site.token(("subscribe",))
    for _ in range(40):
        site.produce("acme.default.orders", MANY)
    billing = SubscriptionName(TableName.parse("acme.default.orders"), "billing")

    def owner() -> str | None:
        found = site.intake.state.subscription(billing)
        return found and found.owner

    path = "/v1/topics/orders/subscriptions/billing/stream"
    with httpx.stream("GET", f"{site.addresses.http}{path}", headers=bearer(token)) as answer:
        lines = answer.iter_lines()
        next(lines)
        while owner() is None:
            time.sleep(0.05)
        revoke_elsewhere(site, token)
        deadline = time.monotonic() + 5
        while owner() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert any("unauthenticated" in line for line in lines)


def test_guessing_is_slowed_down_and_others_go_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over every door together: it is the address that counts."""
    monkeypatch.setattr("calve.access.attempts._SECONDS_EACH", 100.0)  # however slow this machine
    good = site.token(("produce",))
    with Client(site.addresses.flight, token=good) as known:
        known.produce("orders", ROWS).result()
        statuses = [
            site.http.get("/v1/topics", headers=bearer(f"calve_guess{number}")).status_code
            for number in range(15)
        ]
        assert statuses[:10] == [401] * 10
        assert set(statuses[10:]) == {429}
        wrong = site.options("calve_another")
        asked = refused(lambda: list(site.flight.do_action(("topic.list", b"{}"), wrong)))
        assert isinstance(asked, Overloaded)
        limited = site.http.get("/v1/topics", headers=bearer("calve_guess"))
        assert int(limited.headers["Retry-After"]) >= 1
        known.produce("orders", ROWS).result()
        assert site.http.get("/v1/topics", headers=bearer(good)).status_code == 200
    assert site.http.get("/v1/topics").status_code == 401  # without a token, no guess


def test_commands_on_the_host_need_no_token_and_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> Run:
        return run_command(["calve", *words], monkeypatch, capsys)

    data = tmp_path / "lake"
    with up(data, "--set", "auth.required=true") as service:
        addresses = service.addresses()
        left = data / "_calve" / "service.token"
        assert stat.S_IMODE(left.stat().st_mode) == 0o600
        assert run("topic", "create", "orders", "--messages", "--data", str(data)).code == 0
        elsewhere = ["--data", str(tmp_path / "other"), "--server", addresses["flight"]]
        refused = run("topic", "list", *elsewhere)
        assert (refused.code, "a token is needed here" in refused.err) == (8, True)
        made = run("token", "create", "it", "--scope", "query", "--json", "--data", str(data))
        secret = made.json()["secret"]
        (tmp_path / "token").write_text(secret)
        named = ["--token-file", str(tmp_path / "token")]
        assert run("topic", "list", *elsewhere, *named).code == 0
        denied = run("topic", "delete", "orders", "--yes", *elsewhere, *named)
        assert (denied.code, "has not the scope admin" in denied.err) == (8, True)
        monkeypatch.setenv("CALVE_TOKEN", secret)
        assert run("topic", "list", *elsewhere).code == 0
        monkeypatch.setenv("CALVE_TOKEN", "calve_wrong")
        assert run("topic", "list", *elsewhere).code == 8
        with pytest.raises(Denied):
            Client(addresses["flight"], token=secret).produce("orders", ROWS).result()
    assert not left.exists()
