"""What every door asks of TLS: no old version, the right name, and clients' certificates if set."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from pyarrow import flight

from calve.client import Client, posting
from calve.errors import InvalidRequest, InvalidSettings, Unavailable
from calve.lake import Lake
from calve.service.serving import Serving
from calve.settings import Settings
from tests.commands import run_command
from tests.conftest import MakeSettings
from tests.fakes.pipelines import site
from tests.servers.tls import Authority
from tests.services import wait_until

PORTS = ("http_port", "flight_port", "otlp_grpc_port", "otlp_http_port")
DOORS = ("flight", "http", "otlp_grpc", "otlp_http")
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
OLD = [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory)


def tls_settings(make_settings: MakeSettings, authority: Authority, **more: str) -> Settings:
    certificate, key = authority.server_files()
    return make_settings(
        **{f"ingest__{port}": 0 for port in PORTS},
        ingest__tls_cert=str(certificate),
        ingest__tls_key=str(key),
        ingest__tls_ca=str(authority.pem),
        wal__free_bytes_min=0,
        **more,
    )


@pytest.fixture
def served(make_settings: MakeSettings, authority: Authority) -> Iterator[Serving]:
    with Lake(tls_settings(make_settings, authority)) as lake, lake.serve(otlp=True) as serving:
        yield serving


@pytest.fixture
def asking_settings(make_settings: MakeSettings, authority: Authority) -> Settings:
    return tls_settings(make_settings, authority, ingest__tls_client_ca=str(authority.pem))


@pytest.fixture
def asking(asking_settings: Settings) -> Iterator[Serving]:
    """A service that asks clients for a certificate."""
    with Lake(asking_settings) as lake, lake.serve(otlp=True) as serving:
        lake.produce("events", [{"id": 0}])
        yield serving


def agree(url: str, context: ssl.SSLContext, name: str | None = None) -> str | None:
    """The version of TLS that a door and a client agree on, after a byte each way."""
    place = urlsplit(url)
    with (
        socket.create_connection((place.hostname, place.port), 10) as connection,
        context.wrap_socket(connection, server_hostname=name or place.hostname) as secured,
    ):
        return secured.version()


def of_version(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def old_server(authority: Authority, listening: socket.socket) -> None:
    context = authority.server
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    connection, _ = listening.accept()
    with connection, context.wrap_socket(connection, server_side=True):
        pass


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_are_refused(served: Serving, door: str) -> None:
    url = getattr(served.addresses, door)
    for version in OLD:
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol|version"):
            agree(url, of_version(version))
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        assert agree(url, of_version(version)) == version.name.replace("_", ".")


@pytest.mark.parametrize("version", OLD)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_the_client_of_that_test_does_speak_old_versions(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=old_server, args=(authority, listening))
        thread.start()
        found = agree(f"https://127.0.0.1:{port}", of_version(version))
        thread.join()
    assert found == version.name.replace("_", ".")


def test_a_certificate_of_another_name_is_refused_by_every_client(
    served: Serving, authority: Authority
) -> None:
    roots = authority.pem.read_bytes()
    for door in DOORS:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)mismatch"):
            agree(getattr(served.addresses, door), authority.client, "lake.example.com")
    named = [("grpc.ssl_target_name_override", "lake.example.com")]
    with (
        flight.FlightClient(
            served.addresses.flight, tls_root_certs=roots, generic_options=named
        ) as client,
        pytest.raises(flight.FlightUnavailableError, match=r"(?i)peer|verif"),
    ):
        list(client.list_actions())
    place = urlsplit(served.addresses.otlp_grpc).netloc
    credentials = grpc.ssl_channel_credentials(roots)
    with (
        grpc.secure_channel(str(place), credentials, options=named) as channel,
        pytest.raises(grpc.RpcError, match=r"(?i)peer|verif"),
    ):
        channel.unary_unary(EXPORT)(b"", timeout=20)


def over_flight(url: str, roots: bytes, shown: tuple[bytes, bytes] | None) -> None:
    more = {"cert_chain": shown[0], "private_key": shown[1]} if shown else {}
    with flight.FlightClient(url, tls_root_certs=roots, **more) as client:
        list(client.list_actions())


def over_http(url: str, roots: bytes, shown: tuple[Path, Path] | None) -> None:
    context = ssl.create_default_context(cadata=roots.decode())
    if shown:
        context.load_cert_chain(*shown)
    httpx.post(f"{url}/v1/logs", json={}, verify=context, timeout=20)


def over_grpc(url: str, roots: bytes, shown: tuple[bytes, bytes] | None) -> None:
    cert, key = shown or (None, None)
    credentials = grpc.ssl_channel_credentials(roots, key, cert)
    with grpc.secure_channel(urlsplit(url).netloc, credentials) as channel:
        channel.unary_unary(EXPORT)(b"", timeout=20)


def test_without_a_certificate_of_the_right_authority_no_door_opens_if_one_is_asked_for(
    asking: Serving, authority: Authority, tmp_path: Path
) -> None:
    roots = authority.pem.read_bytes()
    own = authority.client_files("billing")
    (tmp_path / "other").mkdir()
    others = Authority(tmp_path / "other").client_files("billing")

    def read(files: tuple[Path, Path]) -> tuple[bytes, bytes]:
        return files[0].read_bytes(), files[1].read_bytes()

    at = asking.addresses
    assert at.otlp_grpc
    assert at.otlp_http
    calls: list[Callable[[tuple[Path, Path] | None], None]] = [
        lambda shown: over_flight(at.flight, roots, read(shown) if shown else None),
        lambda shown: over_http(at.http, roots, shown),
        lambda shown: over_http(str(at.otlp_http), roots, shown),
        lambda shown: over_grpc(str(at.otlp_grpc), roots, read(shown) if shown else None),
    ]
    for call in calls:
        call(own)
        for shown in (None, others):
            with pytest.raises((flight.FlightError, httpx.TransportError, grpc.RpcError)):
                call(shown)


def test_where_tls_or_a_certificate_is_missing_the_hint_says_so(
    asking: Serving, authority: Authority
) -> None:
    roots = authority.pem.read_bytes()
    at = asking.addresses
    for url in (at.flight, at.flight.replace("grpc+tls", "grpc")):
        trusted = roots if "tls" in url else None
        with Client(url, tls_root_certs=trusted) as client, pytest.raises(Unavailable) as refused:
            client.topics()
        assert "grpc+tls://" in str(refused.value.hint)
        assert "client's certificate" in str(refused.value.hint)


def test_rows_over_http_are_told_the_same(
    asking: Serving, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "PATIENCE_SECONDS", 0)
    roots = authority.pem.read_bytes()
    secure = asking.addresses.http
    for url in (secure, secure.replace("https", "http")):
        poster = posting.Poster(url, "events", sets_aside=False, tls_root_certs=roots)
        with poster, pytest.raises(Unavailable, match="no service answers") as refused:
            poster.post(b'{"id": 1}', "application/x-ndjson")
        assert "https://" in str(refused.value.hint)
        assert "client's certificate" in str(refused.value.hint)


def test_our_client_shows_its_certificate(asking: Serving, authority: Authority) -> None:
    cert, key = (file.read_bytes() for file in authority.client_files("billing"))
    roots = authority.pem.read_bytes()
    with Client(
        asking.addresses.flight, tls_root_certs=roots, tls_client_cert=cert, tls_client_key=key
    ) as client:
        assert client.produce("events", [{"id": 1}]).result(20).first == 1
    with pytest.raises(InvalidRequest, match="come together"):
        Client(asking.addresses.flight, tls_client_cert=cert)


def test_commands_and_pipelines_show_the_certificate_of_the_settings(  # noqa: PLR0917
    asking: Serving,
    asking_settings: Settings,
    authority: Authority,
    tmp_path: Path,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cert, key = map(str, authority.client_files("billing"))
    flags = {"tls_ca": str(authority.pem), "tls_client_cert": cert, "tls_client_key": key}
    shared = [word for name, value in flags.items() for word in ("--set", f"ingest.{name}={value}")]
    rows = tmp_path / "rows.ndjson"
    rows.write_text(json.dumps({"id": 1}) + "\n")
    lake = ("--lake", str(asking_settings.data))
    for more in ((), ("--on-error", "dead-letter")):
        line = ("calve", "produce", "events", "--data", str(rows), *more, *lake, *shared)
        done = run_command(line, monkeypatch, capsys)
        assert done.code == 0, done.err
    elsewhere = make_settings(
        data=str(tmp_path / "elsewhere"),
        catalog__uri=f"sqlite:///{asking_settings.data / '_calve' / 'catalog.db'}",
        storage__dsn=asking_settings.storage.dsn,
        state__dsn=f"sqlite:///{asking_settings.data / '_calve' / 'state.db'}",
        pipeline__logs=asking.addresses.flight,
        pipeline__flush_interval_ms=1,
        wal__free_bytes_min=0,
        **{f"ingest__{name}": value for name, value in flags.items()},
    )
    with site(elsewhere) as made, closing(made.pipeline()) as pipeline:
        wait_until(lambda: bool(pipeline.run_cycle().rows))
        assert len(made.rows("events")) == 3


def test_an_authority_of_clients_without_a_certificate_is_refused(
    make_settings: MakeSettings, authority: Authority, tmp_path: Path
) -> None:
    with (
        Lake(make_settings(ingest__tls_client_ca=str(authority.pem))) as lake,
        pytest.raises(InvalidSettings, match="has none"),
    ):
        lake.serve()
    (tmp_path / "nothing.pem").write_text("nothing")
    settings = tls_settings(
        make_settings, authority, ingest__tls_client_ca=str(tmp_path / "nothing.pem")
    )
    with Lake(settings) as lake, pytest.raises(InvalidSettings, match="holds no certificate"):
        lake.serve()
