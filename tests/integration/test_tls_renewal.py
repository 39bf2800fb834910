"""A certificate that is replaced while a service runs: every door shows it, and nobody notices."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from pyarrow import flight
from websockets.sync.client import connect

from calve.client import Client
from calve.errors import Unavailable
from calve.ingest.flight import handover, server
from calve.lake import Lake
from calve.service.serving import Serving
from tests.conftest import MakeSettings
from tests.servers.tls import Authority
from tests.services import wait_until

PORTS = ("http_port", "flight_port", "otlp_grpc_port", "otlp_http_port")
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
LOCAL = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own for each client


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "tls").mkdir()
    return Authority(tmp_path / "tls")


@pytest.fixture
def served(make_settings: MakeSettings, authority: Authority) -> Iterator[Serving]:
    certificate, key = authority.server_files()
    settings = make_settings(
        **{f"ingest__{port}": 0 for port in PORTS},
        ingest__tls_cert=str(certificate),
        ingest__tls_key=str(key),
    )
    with Lake(settings) as lake, lake.serve(otlp=True) as serving:
        lake.produce("events", [{"id": 0}])
        yield serving


def doors(serving: Serving) -> dict[str, str]:
    at = serving.addresses
    assert at.otlp_grpc
    assert at.otlp_http
    return {"flight": at.flight, "http": at.http, "grpc": at.otlp_grpc, "otlp": at.otlp_http}


def shown(url: str) -> bytes:
    """The certificate that a door shows to whoever connects now."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    place = urlsplit(url)
    with (
        socket.create_connection((place.hostname, place.port), 10) as connection,
        context.wrap_socket(connection) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


class Load:
    """Work that is done again and again, by threads, until the end; and what of it failed."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._closing = ExitStack()

    def add(self, name: str, work: Callable[[], object]) -> None:
        def run() -> None:
            while not self._ending.is_set():
                try:
                    work()
                    self.done[name] += 1
                except Exception as error:  # noqa: BLE001
                    self.failed.append(f"{name}: {error!r}")

        self._threads.append(threading.Thread(target=run, name=name))
        self._threads[-1].start()

    def more_of_each(self) -> None:
        """Return when everybody has done it twice more, and so once from the beginning."""
        before = self.done.copy()
        wait_until(
            lambda: all(self.done[each.name] >= before[each.name] + 2 for each in self._threads)
        )

    def keep(self, steady: Any) -> Any:
        """Something that is closed when the work has ended."""
        self._closing.callback(steady.close)
        return steady

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def add_flight(load: Load, url: str, roots: bytes) -> None:
    def new() -> flight.FlightClient:
        return flight.FlightClient(url, tls_root_certs=roots, generic_options=LOCAL)

    def act(client: flight.FlightClient) -> None:
        action = flight.Action("topic.describe", json.dumps({"topic": "events"}).encode())
        assert b"events" in next(iter(client.do_action(action))).body.to_pybytes()

    def again() -> None:
        with new() as client:
            act(client)

    steady = load.keep(new())
    load.add("flight, connected anew", again)
    load.add("flight, connected anew too", again)
    load.add("flight, connected", lambda: act(steady))


def add_http(load: Load, url: str, otlp: str, trust: ssl.SSLContext) -> None:
    steady = load.keep(httpx.Client(verify=trust))

    def again() -> None:
        httpx.get(f"{url}/v1/topics/events/rows", verify=trust, timeout=20).raise_for_status()

    def export() -> None:
        place = f"{otlp}/v1/logs"
        httpx.post(place, json={"resourceLogs": []}, verify=trust, timeout=20).raise_for_status()

    load.add("http, connected anew", again)
    load.add("http, connected", lambda: steady.get(f"{url}/health/ready").raise_for_status())
    load.add("otlp over http", export)


def add_grpc(load: Load, url: str, roots: bytes) -> None:
    def new() -> grpc.Channel:
        return grpc.secure_channel(
            urlsplit(url).netloc, grpc.ssl_channel_credentials(roots), options=LOCAL
        )

    def again() -> None:
        with new() as channel:
            channel.unary_unary(EXPORT)(b"", timeout=20)

    steady = load.keep(new())
    load.add("otlp over grpc, connected anew", again)
    load.add("otlp over grpc, connected", lambda: steady.unary_unary(EXPORT)(b"", timeout=20))


def test_a_certificate_is_renewed_at_every_door_under_load_without_a_failed_request(
    served: Serving, authority: Authority
) -> None:
    urls, roots = doors(served), authority.pem.read_bytes()
    stream = f"{urls['http'].replace('https', 'wss')}/v1/topics/events/stream"
    with (
        Client(urls["flight"], tls_root_certs=roots) as client,
        connect(stream, ssl=authority.client) as rows,
        Load() as load,
    ):
        add_http(load, urls["http"], urls["otlp"], authority.client)
        add_grpc(load, urls["grpc"], roots)
        add_flight(load, urls["flight"], roots)
        load.add("client", lambda: client.produce("events", [{"id": 1}]).result(20))
        load.more_of_each()
        for _ in range(2):
            renewed = authority.renew()
            wait_until(lambda: all(shown(url) == renewed for url in urls.values()))  # noqa: B023
            load.more_of_each()
        load.end()
        assert not load.failed
        offsets = [json.loads(rows.recv(timeout=20))["data"]["offset"] for _ in range(4)]
        assert offsets == [0, 1, 2, 3]  # over the connection that was there before
    # Nothing that our client was told of is lost or there twice.
    end = load.done["client"] + 1
    with Client(urls["flight"], tls_root_certs=roots) as client:
        assert client.describe_topic("events")["offsets"]["durable"] == end


def test_former_services_end_when_their_last_connection_does(
    served: Serving, authority: Authority
) -> None:
    urls, roots = doors(served), authority.pem.read_bytes()
    door = next(each for each in served._servers if isinstance(each, server.FlightServer))
    with Load() as load:
        add_flight(load, urls["flight"], roots)
        load.more_of_each()
        renewed = authority.renew()
        wait_until(lambda: shown(urls["flight"]) == renewed)
        load.more_of_each()
        assert len(door._former._kept) == 1  # for the client that stays
    assert not load.failed
    wait_until(lambda: not door._former._kept)


def test_what_is_no_certificate_changes_nothing_and_is_said_once(
    served: Serving, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls = doors(served)
    before = {name: shown(url) for name, url in urls.items()}

    def said() -> list[str]:
        words = (each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR)
        return [each for each in words if "the old certificate stays" in each]

    with caplog.at_level(logging.INFO):
        (tmp_path / "tls" / "server.pem").write_text("nonsense")
        wait_until(lambda: bool(said()))
        assert {name: shown(url) for name, url in urls.items()} == before
        looks = served._renewal
        assert looks is not None
        looks._is_ending.wait(3 * looks._look_seconds)  # it looks again, and says nothing
        assert len(said()) == 1
        renewed = authority.renew()
        wait_until(lambda: all(shown(url) == renewed for url in urls.values()))


def test_a_server_that_cannot_hand_over_keeps_its_certificate_and_goes_on(
    served: Serving,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(handover, "_polled", lambda: iter(()))
    urls = doors(served)
    before = shown(urls["flight"])
    with caplog.at_level(logging.ERROR):
        renewed = authority.renew()
        wait_until(lambda: shown(urls["http"]) == renewed)
        wait_until(lambda: "keeps the old certificate" in caplog.text)
    assert shown(urls["flight"]) == before
    with Client(urls["flight"], tls_root_certs=authority.pem.read_bytes()) as client:
        client.produce("events", [{"id": 1}]).result(20)
    door = next(each for each in served._servers if isinstance(each, server.FlightServer))
    with pytest.raises(Unavailable, match="while it runs"):
        door.renew(served._renewal._current)  # type: ignore[union-attr, arg-type]
