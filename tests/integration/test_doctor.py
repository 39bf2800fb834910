"""The doctor: what is wrong is found, named, hinted at and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from calve.doctor import Check, Status, examine
from calve.settings import load_settings
from tests.commands import Run, run_command
from tests.contract.backends import postgres_uri
from tests.servers.postgres import Postgres

FREE_PORTS = [
    f"--set=ingest.{name}_port=0" for name in ("flight", "http", "otlp_grpc", "otlp_http")
]


Checks = dict[str, dict[str, object]]
Doctor = Callable[..., Run]


@pytest.fixture
def doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Doctor:
    """Examines this machine as a user in an empty directory would, by default without a Java."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CALVE_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str, java: str | None = "/nowhere") -> Run:
        if java is not None:
            monkeypatch.setenv("JAVA_HOME", java)
        return run_command(["calve", "doctor", *arguments], monkeypatch, capsys)

    return run


def checks_of(run: Run) -> Checks:
    return {check["name"]: check for check in run.json()["checks"]}


def test_an_occupied_port_is_named(doctor: Doctor, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = doctor("--json", f"--set=ingest.http_port={port}")
    check = checks_of(run)["port http"]
    assert check["status"] == "failed"
    assert str(port) in str(check["detail"])
    assert "another port" in str(check["hint"])
    assert check["exit_code"] == 6


def test_a_missing_java_is_named_and_spark_is_not_tried(doctor: Doctor) -> None:
    run = doctor("--json")
    checks = checks_of(run)
    assert run.code == 3
    assert checks["java"]["status"] == "failed"
    assert "install Java 17" in str(checks["java"]["hint"])
    assert checks["spark"]["status"] == "skipped"
    assert checks["catalog"]["status"] == "ok"


def test_a_damaged_jar_is_named(doctor: Doctor, tmp_path: Path) -> None:
    jars = tmp_path / "cache" / "jars"
    jars.mkdir(parents=True)
    source = load_settings(environ={}).settings.cache
    assert source is not None
    for jar in (source / "jars").glob("*.jar"):
        (jars / jar.name).symlink_to(jar)
    damaged = next(jars.glob("sqlite*"))
    damaged.unlink()
    damaged.write_bytes(b"half a jar")
    run = doctor("--json", f"--set=cache={tmp_path / 'cache'}", java=None)
    assert run.code == 7
    assert str(damaged) in str(checks_of(run)["jars"]["detail"])
    assert "calve setup" in str(checks_of(run)["jars"]["hint"])


@pytest.mark.parametrize("place", ["/sys/calve", "file", "file/below"])
def test_an_unwritable_directory_is_named(doctor: Doctor, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    run = doctor("--json", "--data", place)
    check = checks_of(run)["data directory"]
    assert check["status"] == "failed"
    assert check["exit_code"] == run.code == 8
    assert (tmp_path / "file").read_text() == "x"


def test_a_path_that_cannot_be_is_reported_and_the_rest_is_checked(
    doctor: Doctor, tmp_path: Path
) -> None:
    run = doctor("--json", "--data", "x" * 300)
    checks = checks_of(run)
    assert checks["data directory"]["status"] == "failed"
    assert checks["port http"]["status"] == "ok"
    assert not list(tmp_path.iterdir())


def test_looking_at_an_empty_database_leaves_it_empty(
    doctor: Doctor, tmp_path: Path, postgres_server: Postgres
) -> None:
    database = postgres_server.create_database()
    uri = f"--set=catalog.uri={postgres_uri(database)}"
    run = doctor("--json", uri)
    checks = checks_of(run)
    assert checks["catalog"]["status"] == "warning"
    assert "reachable" in str(checks["catalog"]["detail"])
    assert database.password not in run.out + run.err
    assert database.query("select count(*) from pg_tables where schemaname = 'public'") == [(0,)]
    assert not list(tmp_path.iterdir())
    database.drop_database()


def test_a_state_on_a_server_is_looked_at_and_not_made(
    doctor: Doctor, postgres_server: Postgres
) -> None:
    dsn = postgres_server.url.replace("+psycopg", "")
    state = checks_of(doctor("--json", f"--set=state.dsn={dsn}?schema=doctors"))["state"]
    assert state["status"] == "ok"
    assert "no state at schema doctors yet" in str(state["detail"])
    assert not postgres_server.query("SELECT 1 FROM pg_namespace WHERE nspname = 'doctors'")
    missing = checks_of(doctor("--json", f"--set=state.dsn={dsn}x"))["state"]
    assert (missing["status"], missing["exit_code"]) == ("failed", 4)


def test_a_damaged_catalog_is_found_and_left_alone(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "lake" / "_calve" / "catalog.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no database" * 1000)
    run = doctor("--json", "--data", "lake")
    assert run.code == 7
    assert checks_of(run)["catalog"]["status"] == "failed"
    assert file.read_bytes() == b"no database" * 1000


def test_the_bundle_holds_the_report_without_secrets(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "calve.toml").write_text(
        "[storage]\naccess_key_id = 'me'\nsecret_access_key = 'canary-1'\n[catalog.properties]\ntoken = 'canary-2'\n"
        "[state]\ndsn = 'postgresql://u:canary-3@h/d'"
    )
    run = doctor("--bundle", "report.zip", java="/nowhere/canary-1")
    assert "wrote report.zip" in run.err
    with zipfile.ZipFile(tmp_path / "report.zip") as bundle:
        files = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert set(files) == {"doctor.json", "settings.json", "machine.json", "packages.txt"}
    assert not [name for name, text in files.items() if "canary" in text]
    assert "pyiceberg==" in files["packages.txt"]
    assert json.loads(files["doctor.json"])


def test_a_bundle_that_cannot_be_written_says_so(doctor: Doctor, tmp_path: Path) -> None:
    run = doctor("--bundle", "/sys/report.zip")
    assert run.code == 8
    assert "/sys/report.zip cannot be written" in run.err


class StoppedClock:
    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("now", "status"),
    [
        (datetime(2001, 1, 1, tzinfo=UTC), Status.FAILED),
        (datetime(2199, 1, 1, tzinfo=UTC), Status.WARNING),
    ],
)
def test_a_wrong_clock_is_noticed(
    doctor: Doctor, tmp_path: Path, now: datetime, status: Status
) -> None:
    settings = load_settings(flags={"data": str(tmp_path)}, environ={}).settings
    checks: dict[str, Check] = {}
    for check in examine(settings, StoppedClock(now)):
        checks[check.name] = check
        if check.name == "clock":
            break
    assert checks["clock"].status is status
    assert checks["clock"].hint
