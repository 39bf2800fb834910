"""The doctor: what is wrong is found, named, hinted at and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from calve.doctor import Check, Status, examine
from calve.settings import load_settings

FREE_PORTS = [
    f"--set=ingest.{name}_port=0" for name in ("flight", "http", "otlp_grpc", "otlp_http")
]


class Run(NamedTuple):
    code: int
    out: str
    err: str

    def checks(self) -> dict[str, dict[str, object]]:
        return {check["name"]: check for check in json.loads(self.out)["checks"]}


def doctor(directory: Path, *arguments: str, **environment: str) -> Run:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CALVE_")}
    run = subprocess.run(
        [Path(sys.executable).with_name("calve"), "doctor", *arguments],
        capture_output=True, text=True, timeout=120, check=False, cwd=directory, env=environ | environment,
    )  # fmt: skip
    assert "Traceback" not in run.stderr
    return Run(run.returncode, run.stdout, run.stderr)


def test_a_sound_machine_passes_and_nothing_is_left(tmp_path: Path) -> None:
    run = doctor(tmp_path, *FREE_PORTS)
    assert run.code == 0, run.out
    assert "everything is fine" in run.err
    assert not [line for line in run.out.splitlines() if not line.startswith("ok")]
    assert not list(tmp_path.iterdir())


def test_an_occupied_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = doctor(
            tmp_path, "--json", *FREE_PORTS, f"--set=ingest.http_port={port}", JAVA_HOME="/nowhere"
        )
    check = run.checks()["port http"]
    assert check["status"] == "failed"
    assert str(port) in str(check["detail"])
    assert "another port" in str(check["hint"])
    assert check["exit_code"] == 6


def test_a_missing_java_is_named_and_spark_is_not_tried(tmp_path: Path) -> None:
    run = doctor(tmp_path, "--json", *FREE_PORTS, JAVA_HOME="/nowhere")
    checks = run.checks()
    assert run.code == 3
    assert checks["java"]["status"] == "failed"
    assert "install Java 17" in str(checks["java"]["hint"])
    assert checks["spark"]["status"] == "skipped"
    assert checks["catalog"]["status"] == "ok"


def test_a_damaged_jar_is_named(tmp_path: Path) -> None:
    jars = tmp_path / "cache" / "jars"
    jars.mkdir(parents=True)
    source = load_settings(environ={}).settings.cache
    assert source is not None
    for jar in (source / "jars").glob("*.jar"):
        (jars / jar.name).symlink_to(jar)
    damaged = next(jars.glob("sqlite*"))
    damaged.unlink()
    damaged.write_bytes(b"half a jar")
    run = doctor(tmp_path, "--json", *FREE_PORTS, f"--set=cache={tmp_path / 'cache'}")
    assert run.code == 7
    assert str(damaged) in str(run.checks()["jars"]["detail"])
    assert "calve setup" in str(run.checks()["jars"]["hint"])


@pytest.mark.parametrize("place", ["/sys/calve", "file", "file/below"])
def test_an_unwritable_directory_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    run = doctor(tmp_path, "--json", "--data", place, *FREE_PORTS, JAVA_HOME="/nowhere")
    check = run.checks()["data directory"]
    assert check["status"] == "failed"
    assert check["exit_code"] == run.code == 8
    assert (tmp_path / "file").read_text() == "x"


def test_a_damaged_catalog_is_found_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "lake" / "_calve" / "catalog.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no database" * 1000)
    run = doctor(tmp_path, "--json", "--data", "lake", *FREE_PORTS, JAVA_HOME="/nowhere")
    assert run.code == 7
    assert run.checks()["catalog"]["status"] == "failed"
    assert file.read_bytes() == b"no database" * 1000


def test_the_bundle_holds_the_report_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "calve.toml").write_text(
        "[storage]\nsecret_access_key = 'canary-1'\n[catalog.properties]\ntoken = 'canary-2'\n"
        "[state]\ndsn = 'postgresql://u:canary-3@h/d'"
    )
    run = doctor(tmp_path, "--bundle", "report.zip", *FREE_PORTS, JAVA_HOME="/nowhere/canary-1")
    assert "wrote report.zip" in run.err
    with zipfile.ZipFile(tmp_path / "report.zip") as bundle:
        files = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert set(files) == {"doctor.json", "settings.json", "machine.json", "packages.txt"}
    assert not [name for name, text in files.items() if "canary" in text]
    assert "pyiceberg==" in files["packages.txt"]
    assert json.loads(files["doctor.json"])


def test_a_bundle_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    run = doctor(tmp_path, "--bundle", "/sys/report.zip", *FREE_PORTS, JAVA_HOME="/nowhere")
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
def test_a_wrong_clock_is_noticed(tmp_path: Path, now: datetime, status: Status) -> None:
    settings = load_settings(flags={"data": str(tmp_path)}, environ={}).settings
    checks: dict[str, Check] = {}
    for check in examine(settings, StoppedClock(now)):
        checks[check.name] = check
        if check.name == "clock":
            break
    assert checks["clock"].status is status
    assert checks["clock"].hint
