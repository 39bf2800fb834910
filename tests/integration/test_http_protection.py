"""Every answer over HTTP tells a browser to do nothing with it, whatever is answered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from calve.ingest.http.protection import HEADERS
from calve.lake import Lake
from calve.service.serving import Serving
from tests.conftest import MakeSettings
from tests.servers.tls import Authority

PORTS = {
    "ingest__http_port": 0,
    "ingest__flight_port": 0,
    "ingest__otlp_grpc_port": 0,
    "ingest__otlp_http_port": 0,
}
HSTS = "strict-transport-security"


@pytest.fixture
def served(make_settings: MakeSettings) -> Iterator[Serving]:
    with Lake(make_settings(**PORTS)) as lake, lake.serve(otlp=True) as serving:
        lake.produce("events", [{"id": 1}])
        yield serving


def protects(headers: httpx.Headers) -> bool:
    return all(headers.get_list(name) == [value] for name, value in HEADERS.items())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/topics/events/rows", 200),
        ("GET", "/v1/topics", 200),
        ("GET", "/health/live", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/v1/topics/other", 404),
        ("GET", "/nothing", 404),
        ("PUT", "/health/live", 405),
        ("OPTIONS", "/v1/topics", 204),
        ("POST", "/v1/query", 400),
    ],
)
def test_answers_and_refusals_carry_the_headers(
    served: Serving, method: str, path: str, status: int
) -> None:
    answer = httpx.request(method, served.addresses.http + path)
    assert answer.status_code == status
    assert protects(answer.headers)
    assert HSTS not in answer.headers


def test_the_page_runs_nothing_and_is_framed_by_nobody(served: Serving) -> None:
    policy = httpx.get(f"{served.addresses.http}/docs").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src" not in policy


def test_streams_and_otlp_carry_them_too(served: Serving) -> None:
    place = f"{served.addresses.http}/v1/topics/events/stream"
    with httpx.stream("GET", place, headers={"Accept": "text/event-stream"}) as stream:
        assert protects(stream.headers)
    refused = httpx.post(f"{served.addresses.otlp_http}/v1/traces", content=b"{", timeout=20)
    assert protects(refused.headers)


def test_otlp_over_http_takes_nothing_from_a_page(served: Serving) -> None:
    place = f"{served.addresses.otlp_http}/v1/traces"
    for headers in (
        {"Origin": "http://evil.example.com"},
        {"Host": "evil.example.com"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        answer = httpx.post(place, json={"resourceSpans": []}, headers=headers)
        assert answer.status_code == 403, headers
    assert httpx.post(place, json={"resourceSpans": []}).status_code == 200


def test_a_refused_websocket_carries_them(served: Serving) -> None:
    address = f"{served.addresses.http.replace('http', 'ws', 1)}/v1/topics/events/stream"
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(address, additional_headers={"Host": "evil.example.com"}),
    ):
        pass
    assert refused.value.response.status_code == 403
    assert refused.value.response.headers["X-Content-Type-Options"] == "nosniff"


def test_what_is_no_request_is_refused_with_them(served: Serving) -> None:
    place = urlsplit(served.addresses.http)
    with socket.create_connection((place.hostname, place.port), 10) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"400 Bad Request" in answer
    assert b"x-content-type-options: nosniff" in answer


def test_with_tls_browsers_are_told_to_stay_with_it_but_not_on_loopback(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.server_files()
    tls = {"ingest__tls_cert": str(certificate), "ingest__tls_key": str(key)}
    for host, is_told in (("127.0.0.1", False), ("0.0.0.0", True)):
        settings = make_settings(
            **PORTS, **tls, ingest__host=host, auth__allow_insecure=True, data=str(tmp_path / host)
        )
        with Lake(settings) as lake, lake.serve() as serving:
            address = serving.addresses.http.replace(host, "127.0.0.1")
            answer = httpx.get(f"{address}/health/live", verify=authority.client)
            assert (HSTS in answer.headers) is is_told
            # A name that is the certificate's, as a browser on another machine would call it.
            named = httpx.get(
                f"{address}/health/live",
                headers={"Host": "lake.example.com"},
                verify=authority.client,
            )
            assert named.status_code == (200 if is_told else 403)
