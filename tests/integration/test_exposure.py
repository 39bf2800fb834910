"""A service that other machines can reach has tokens and TLS, or somebody has said that it may not."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from calve.doctor import _exposure, _Notable, _permissions
from calve.errors import InvalidSettings
from calve.lake import Lake
from calve.settings import Settings
from tests.commands import run_command
from tests.conftest import MakeSettings
from tests.servers.tls import Authority

PORTS = {"ingest__http_port": 0, "ingest__flight_port": 0}
OPEN = {**PORTS, "ingest__host": "0.0.0.0"}


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tls").mkdir()
    certificate, key = Authority(tmp_path / "tls").server_files()
    return {"ingest__tls_cert": str(certificate), "ingest__tls_key": str(key)}


def serve(settings: Settings) -> str:
    with Lake(settings) as lake, lake.serve() as serving:
        return serving.addresses.http


def test_a_service_without_tokens_or_tls_does_not_open_to_others(
    make_settings: MakeSettings, tls: dict[str, str]
) -> None:
    with pytest.raises(InvalidSettings, match="is not loopback") as refused:
        serve(make_settings(**OPEN))
    assert "tokens:" in refused.value.message
    assert "TLS:" in refused.value.message
    assert "auth.allow_insecure" in str(refused.value.hint)
    with pytest.raises(InvalidSettings, match="tokens:") as refused:
        serve(make_settings(**OPEN, **tls))
    assert "TLS:" not in refused.value.message
    with pytest.raises(InvalidSettings, match="TLS:") as refused:
        serve(make_settings(**OPEN, auth__required=True))
    assert "tokens:" not in refused.value.message


def test_a_check_of_the_settings_says_so_before_a_start_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["calve", "config", "check", "--set", "ingest.host=0.0.0.0"]
    refused = run_command(check, monkeypatch, capsys)
    assert (refused.code, "is not loopback" in refused.err) == (InvalidSettings.exit_code, True)
    taken = run_command([*check, "--set", "auth.allow_insecure=true"], monkeypatch, capsys)
    assert (taken.code, "INSECURE" in taken.err, "valid" in taken.err) == (0, True, True)


@pytest.mark.parametrize("host", ["10.0.0.7", "lake.example.com", "::", "127.evil.example.com"])
def test_every_address_but_loopback_is_another_machines(
    make_settings: MakeSettings, host: str
) -> None:
    with pytest.raises(InvalidSettings, match="is not loopback"):
        serve(make_settings(**PORTS, ingest__host=host))


def test_with_both_it_opens(make_settings: MakeSettings, tls: dict[str, str]) -> None:
    assert serve(make_settings(**OPEN, **tls, auth__required=True)).startswith("https://")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost", "::1"])
def test_loopback_needs_neither(make_settings: MakeSettings, host: str) -> None:
    assert serve(make_settings(**PORTS, ingest__host=host)).startswith("http://")


def test_what_is_opened_as_it_is_says_so(
    make_settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(**OPEN, auth__allow_insecure=True)
    with caplog.at_level(logging.WARNING):
        serve(settings)
    (line,) = [each.getMessage() for each in caplog.records if "INSECURE" in each.getMessage()]
    assert "no tokens and no TLS" in line
    with pytest.raises(_Notable, match="INSECURE"):
        _exposure(settings)
    with pytest.raises(InvalidSettings):
        _exposure(make_settings(**OPEN))


def test_the_command_ends_with_what_to_set(
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = str(make_settings().data)
    line = ("calve", "up", "--only", "ingest", "--data", data, "--set", "ingest.host=0.0.0.0")
    ended = run_command(line, monkeypatch, capsys)
    assert ended.code == InvalidSettings.exit_code
    assert "auth.allow_insecure" in ended.err


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("lake.example.com", 403),  # a name that somebody points here
        ("10.1.2.3:8080", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("", 403),
    ],
)
def test_everywhere_without_tokens_only_addresses_are_its_names(
    make_settings: MakeSettings, host: str, status: int
) -> None:
    with Lake(make_settings(**OPEN, auth__allow_insecure=True)) as lake, lake.serve() as serving:
        address = serving.addresses.http.replace("0.0.0.0", "127.0.0.1")
        answer = httpx.get(f"{address}/health/live", headers={"Host": host})
        assert answer.status_code == status
        other = {"Host": "10.1.2.3", "Origin": "http://evil.example.com"}
        assert httpx.get(f"{address}/health/live", headers=other).status_code == 403


def test_a_lake_is_made_for_its_owner_alone_and_what_others_can_read_is_told(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(data=str(tmp_path / "deep" / "lake"))
    with Lake(settings) as lake:
        lake.produce("events", [{"id": 1}])
    assert settings.wal.path is not None
    for place in (settings.data, settings.data / "_calve", settings.wal.path):
        assert place.stat().st_mode & 0o777 == 0o700, place
    assert (settings.data / "_calve" / "state.db").stat().st_mode & 0o777 == 0o600
    assert "owner's alone" in _permissions(settings)
    settings.data.chmod(0o755)
    with pytest.raises(_Notable, match="others on this machine can look into") as told:
        _permissions(settings)
    assert f"chmod go-rwx {settings.data}" in told.value.hint
    assert settings.data.stat().st_mode & 0o777 == 0o755  # which is its owner's to change


def test_what_lies_elsewhere_is_its_owners_alone_too(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o755)
    settings = make_settings(
        data=str(tmp_path / "deep" / "lake"),
        catalog__uri=f"sqlite:///{elsewhere}/catalog.db",
        state__dsn=f"sqlite:///{elsewhere}/state.db",
        wal__path=str(elsewhere),
    )
    with Lake(settings) as lake:
        lake.produce("events", [{"id": 1}])
    files = [path for path in elsewhere.rglob("*") if path.is_file()]
    assert {"catalog.db", "state.db"} < {path.name for path in files}
    readable = [path.name for path in files if path.stat().st_mode & 0o077]
    assert not readable
    assert settings.data.stat().st_mode & 0o777 == 0o700
