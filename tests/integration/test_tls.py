"""A service with a certificate: every door speaks TLS, and commands and clients trust it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from calve.client import Client
from calve.client.posting import Poster
from calve.errors import Denied, InvalidSettings
from calve.lake import Lake
from calve.service.serving import Serving
from calve.settings import Settings
from calve.state.work import Progress
from tests.commands import run_command
from tests.conftest import MakeSettings
from tests.fakes.pipelines import site
from tests.servers.tls import Authority
from tests.services import wait_until

ROW = b'{"id": 1}'


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "tls").mkdir()
    return Authority(tmp_path / "tls")


@pytest.fixture
def settings(make_settings: MakeSettings, authority: Authority) -> Settings:
    certificate, key = authority.server_files()
    return make_settings(
        ingest__http_port=0,
        ingest__flight_port=0,
        ingest__tls_cert=str(certificate),
        ingest__tls_key=str(key),
    )


@pytest.fixture
def served(settings: Settings) -> Iterator[Serving]:
    with Lake(settings) as lake, lake.serve() as serving:
        yield serving


def test_http_speaks_tls_as_flight_does(served: Serving, authority: Authority) -> None:
    assert served.addresses.http.startswith("https://")
    assert served.addresses.flight.startswith("grpc+tls://")
    with Client(served.addresses.flight, tls_root_certs=authority.pem.read_bytes()) as client:
        client.produce("events", [{"id": 1}]).result(20)
    with httpx.Client(base_url=served.addresses.http, verify=authority.client) as http:
        assert http.get("/v1/topics/events/rows").json()["rows"][0]["value"] == {"id": 1}
        body = http.post("/v1/topics/events/rows", json=[{"id": 2}])
        assert body.status_code == 200


def test_a_websocket_speaks_tls_too(served: Serving, authority: Authority) -> None:
    with httpx.Client(base_url=served.addresses.http, verify=authority.client) as http:
        http.post("/v1/topics/events/rows", json=[{"id": 1}]).raise_for_status()
    address = f"{served.addresses.http.replace('http', 'ws', 1)}/v1/topics/events/stream"
    with connect(address, ssl=authority.client) as stream:
        assert json.loads(stream.recv(timeout=20))["data"]["value"] == {"id": 1}


def test_nothing_is_answered_in_clear_text(served: Serving) -> None:
    place = urlsplit(served.addresses.http)
    with socket.create_connection((place.hostname, place.port), 10) as connection:
        connection.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/" not in connection.recv(100)


def test_a_certificate_that_nobody_trusts_is_refused(served: Serving) -> None:
    poster = Poster(served.addresses.http, "events", sets_aside=False)
    with poster, pytest.raises(Denied, match="not trusted") as refused:
        poster.post(ROW, "application/x-ndjson")
    assert "ingest.tls_ca" in str(refused.value.hint)


def test_commands_trust_the_certificate_of_the_settings(
    served: Serving,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = tmp_path / "rows.ndjson"
    rows.write_bytes(ROW + b"\n")
    cert = f"ingest.tls_cert={settings.ingest.tls_cert}"
    shared = ("--lake", str(settings.data), "--set", cert)
    for more in ((), ("--on-error", "dead-letter")):
        line = ("calve", "produce", "events", "--data", str(rows), *more, *shared)
        done = run_command(line, monkeypatch, capsys)
        assert done.code == 0, done.err
    listed = run_command(("calve", "topic", "list", "--json", *shared), monkeypatch, capsys)
    assert served.addresses.flight in listed.err
    assert [each["offsets"]["durable"] for each in listed.json()] == [2]


@pytest.mark.parametrize("other", ["tls_key", "tls_cert"])
def test_a_certificate_and_a_key_that_are_not_its_own_are_refused_at_the_start(
    make_settings: MakeSettings, authority: Authority, tmp_path: Path, other: str
) -> None:
    (tmp_path / "other").mkdir()
    certificate, key = authority.server_files()
    stranger = Authority(tmp_path / "other").server_files()
    flags = {"ingest__tls_cert": str(certificate), "ingest__tls_key": str(key)}
    flags[f"ingest__{other}"] = str(stranger[other == "tls_key"])
    settings = make_settings(ingest__http_port=0, ingest__flight_port=0, **flags)
    with Lake(settings) as lake, pytest.raises(InvalidSettings, match="no certificate"):
        lake.serve()


@pytest.fixture
def elsewhere(
    make_settings: MakeSettings, authority: Authority, tmp_path: Path
) -> Iterator[Serving]:
    """A service with partition 1 of a topic, whose directory nobody else looks at."""
    certificate, key = authority.server_files()
    there = make_settings(
        ingest__http_port=0,
        ingest__flight_port=0,
        ingest__tls_cert=str(certificate),
        ingest__tls_key=str(key),
        ingest__partition=1,
        wal__path=str(tmp_path / "wal-1"),
        wal__free_bytes_min=0,
    )
    with Lake(there) as lake, lake.serve() as serving:
        lake.produce("orders", [{"id": 1}])
        yield serving


def test_the_pipeline_and_its_tasks_trust_what_commands_do(
    elsewhere: Serving, make_settings: MakeSettings, authority: Authority
) -> None:
    settings = make_settings(
        pipeline__logs=elsewhere.addresses.flight,
        pipeline__flush_interval_ms=1,
        ingest__tls_cert=str(authority.pem),
        wal__free_bytes_min=0,
    )
    with site(settings) as made, closing(made.pipeline()) as pipeline:
        wait_until(lambda: bool(pipeline.run_cycle().rows))
        assert made.rows("orders") == [{"id": 1}]


def test_a_log_behind_a_certificate_that_nobody_trusts_is_told_as_that(
    elsewhere: Serving, make_settings: MakeSettings
) -> None:
    settings = make_settings(
        pipeline__logs=elsewhere.addresses.flight,
        pipeline__flush_interval_ms=1,
        wal__free_bytes_min=0,
    )
    with site(settings) as made, closing(made.pipeline()) as pipeline:

        def error() -> Progress | None:
            pipeline.run_cycle()
            return next((p for p in made.state.progress().partitions.values() if p.error), None)

        wait_until(lambda: error() is not None)
        told = error()
    assert told is not None
    assert "certificate" in str(told.error)
    assert "ingest.tls_ca" in str(told.hint)
