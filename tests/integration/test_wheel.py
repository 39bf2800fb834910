"""The wheel in an empty environment, without make: the programs work, in parts and in whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from uv import find_uv_bin

ROOT: Final = Path(__file__).resolve().parents[2]
SPARK_CHECKS: Final = {"java", "jars", "spark"}
# A service that runs on this machine meanwhile must not make the doctor complain.
PORTS: Final = ("flight_port", "http_port", "otlp_grpc_port", "otlp_http_port")
ANY_PORTS: Final = tuple(word for port in PORTS for word in ("--set", f"ingest.{port}=0"))


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment that holds the wheel, seen from a directory that is not the checkout."""

    directory: Path
    work: Path

    def run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run(self.directory / "bin" / program, *arguments, cwd=self.work)

    def has(self, module: str) -> bool:
        probe = (
            f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        )
        return self.run("python", "-c", probe).returncode == 0


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    foreign = ("CALVE_", "PYTHONPATH", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def uv(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run(find_uv_bin(), *arguments)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    # The build backend is the pinned one of this environment, so nothing is fetched.
    options = ("--no-build-isolation", "--python", sys.executable, "--out-dir", directory)
    process = uv("build", "--wheel", *options, ROOT)
    assert process.returncode == 0, process.stderr
    (built,) = directory.glob("*.whl")
    return built


def install(requirement: str, directory: Path) -> Installation:
    environment, work = directory / "environment", directory / "work"
    work.mkdir()
    created = uv("venv", "--python", sys.executable, environment)
    assert created.returncode == 0, created.stderr
    into = ("--python", environment / "bin/python", "--constraints", ROOT / "requirements.lock")
    # The index is asked once for what depends on what; after that uv's cache knows it all.
    process = uv("pip", "install", "--offline", *into, requirement)
    if process.returncode:
        process = uv("pip", "install", *into, requirement)
    if process.returncode:
        # On a machine that decides over a change, a wheel that was not tried is a failure.
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"uv could not install {requirement}: {process.stderr}")
    return Installation(environment, work)


@pytest.fixture(scope="module")
def tables_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(f"calve @ {wheel.as_uri()}", tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def with_spark(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(f"calve[spark] @ {wheel.as_uri()}", tmp_path_factory.mktemp("spark"))


def test_a_table_only_install_does_not_pull_pyspark(tables_only: Installation) -> None:
    assert tables_only.has("pyiceberg")
    assert not tables_only.has("pyspark")


@pytest.mark.parametrize("program", ["calve", "iceberg-manager"])
def test_both_programs_are_installed(tables_only: Installation, program: str) -> None:
    process = tables_only.run(program, "--help")

    assert process.returncode == 0, process.stderr
    assert f"Usage: {program}" in process.stdout


def test_setup_has_nothing_to_fetch_for_tables_only(tables_only: Installation) -> None:
    process = tables_only.run("calve", "setup")

    assert process.returncode == 0, process.stderr


def test_the_doctor_skips_spark_where_it_is_not_installed(tables_only: Installation) -> None:
    process = tables_only.run("calve", "doctor", "--json", *ANY_PORTS)

    assert process.returncode == 0, process.stdout + process.stderr
    checks = {check["name"]: check for check in json.loads(process.stdout)["checks"]}
    skipped = {name for name, check in checks.items() if check["status"] == "skipped"}
    assert skipped == SPARK_CHECKS
    assert all("pip install 'calve[spark]'" in checks[name]["hint"] for name in skipped)
    assert not any(check["status"] == "failed" for check in checks.values())


def test_the_doctor_passes_entirely_with_spark_and_leaves_nothing(with_spark: Installation) -> None:
    assert with_spark.run("calve", "setup").returncode == 0

    process = with_spark.run("calve", "doctor", *ANY_PORTS)

    assert process.returncode == 0, process.stdout
    assert "everything is fine" in process.stderr
    lines = [line.split() for line in process.stdout.splitlines()]
    assert {mark for mark, *_ in lines} == {"ok"}
    assert {name for _, name, *_ in lines} >= SPARK_CHECKS
    assert not list(with_spark.work.iterdir())
