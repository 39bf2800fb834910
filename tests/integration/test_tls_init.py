"""`calve tls init`: an authority of one's own, and certificates with which every door opens."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from calve.client import Client
from calve.errors import Conflict, InvalidRequest
from calve.lake import Lake
from calve.settings import load_settings
from tests.commands import Run, run_command
from tests.conftest import MakeSettings

PORTS = {"ingest.http_port": 0, "ingest.flight_port": 0}


class Init:
    def __init__(
        self, place: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.place = place
        self._patch = patch
        self._capture = capture

    def __call__(self, *words: str) -> Run:
        line = ("calve", "tls", "init", "--directory", str(self.place), *words)
        return run_command(line, self._patch, self._capture)


@pytest.fixture
def init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Init:
    monkeypatch.chdir(tmp_path)
    return Init(tmp_path / "tls", monkeypatch, capsys)


def test_what_it_prints_is_a_configuration_with_which_every_door_speaks_tls(
    init: Init, tmp_path: Path
) -> None:
    done = init("--host", "lake.example.com")
    assert done.code == 0, done.err
    assert "lake.example.com, 127.0.0.1, localhost, ::1" in done.err
    (tmp_path / "calve.toml").write_text(done.out)
    flags = {**PORTS, "data": str(tmp_path / "lake")}
    settings = load_settings(environ={}, directory=tmp_path, flags=flags).settings
    roots = (init.place / "ca.pem").read_bytes()
    with Lake(settings) as lake, lake.serve() as serving:
        with Client(serving.addresses.flight, tls_root_certs=roots) as client:
            client.produce("events", [{"id": 1}]).result(20)
        trusting = ssl.create_default_context(cadata=roots.decode())
        for name in ("127.0.0.1", "localhost"):
            address = serving.addresses.http.replace("127.0.0.1", name)
            assert httpx.get(f"{address}/health/ready", verify=trusting).status_code == 200


def test_keys_are_their_owners_alone(init: Init) -> None:
    assert init("--client", "billing").code == 0
    assert init.place.stat().st_mode & 0o777 == 0o700
    modes = {file.name: file.stat().st_mode & 0o777 for file in init.place.iterdir()}
    assert modes == {
        **{f"{name}.key": 0o600 for name in ("ca", "server", "client-billing")},
        **{f"{name}.pem": 0o644 for name in ("ca", "server", "client-billing")},
    }


def test_nothing_is_replaced_unless_asked_and_then_the_authority_stays(init: Init) -> None:
    made = init("--json").json()
    before = {file.name: file.read_bytes() for file in init.place.iterdir()}
    refused = init()
    assert refused.code == Conflict.exit_code
    assert "--yes" in refused.err
    assert {file.name: file.read_bytes() for file in init.place.iterdir()} == before
    again = init("--yes", "--json").json()
    assert {**again, "valid_until": made["valid_until"]} == made
    after = {file.name: file.read_bytes() for file in init.place.iterdir()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"server.pem", "server.key"}
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made["cert"], made["key"])
    assert init("--yes", "--new-ca").code == 0
    assert (init.place / "ca.pem").read_bytes() != before["ca.pem"]


def test_the_files_lie_in_the_lake_unless_told_otherwise(
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = make_settings().data
    done = run_command(("calve", "tls", "init", "--data", str(data), "--json"), monkeypatch, capsys)
    assert done.json()["cert"] == str(data / "_calve" / "tls" / "server.pem")


@pytest.mark.parametrize(
    "words",
    [
        *(
            ("--host", each)
            for each in ("", "a..b", "ü" * 70, "bad host!", "a/b", "-a.b", "10.0.0")
        ),
        *(("--client", each) for each in ("", "../x", "a b", "a" * 65)),
    ],
)
def test_a_name_that_is_none_is_refused_before_anything_is_written(
    init: Init, words: tuple[str, str]
) -> None:
    assert init(*words).code == InvalidRequest.exit_code
    assert not init.place.exists()


def test_names_of_every_kind_are_taken(init: Init) -> None:
    hosts = ("*.example.com", "my_lake", "bücher.example", "10.0.0.7", "[::1]", "a-b.c1")
    assert init(*(word for host in hosts for word in ("--host", host))).code == 0


def test_each_client_has_its_own_files_and_the_service_keeps_its_own(init: Init) -> None:
    assert init("--host", "lake.example.com", "--client", "billing").code == 0
    before = {file.name: file.read_bytes() for file in init.place.iterdir()}
    made = init("--client", "reports", "--json").json()
    assert made["client_cert"] == str(init.place / "client-reports.pem")
    after = {file.name: file.read_bytes() for file in init.place.iterdir()}
    assert {**after, **before} == after
    assert after.keys() - before.keys() == {"client-reports.pem", "client-reports.key"}
    trusted = ssl.create_default_context(cafile=made["ca"])
    trusted.load_cert_chain(made["client_cert"], made["client_key"])
    assert init("--client", "reports").code == Conflict.exit_code
    assert init("--client", "reports", "--yes").code == 0
    renewed = {file.name for file in init.place.iterdir() if file.read_bytes() != after[file.name]}
    assert renewed == {"client-reports.pem", "client-reports.key"}
    (init.place / "ca.key").unlink()
    assert init("--client", "late").code == InvalidRequest.exit_code


def test_a_damaged_authority_is_told(init: Init) -> None:
    assert init().code == 0
    (init.place / "ca.key").write_bytes(b"nonsense")
    told = init("--yes")
    assert told.code == InvalidRequest.exit_code
    assert "--new-ca" in told.err
