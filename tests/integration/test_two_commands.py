"""A newcomer's `make setup` and `make demo`: what they need, and what they do without."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
MAKEFILE: Final = ROOT / "Makefile"
KERNEL_REFUSES: Final = 77
NEEDED_BY_SETUP: Final = (
    "scripts/environment.py",
    "scripts/setup.py",
    "src/calve/__init__.py",
    "src/calve/errors.py",
    "src/calve/spark/__init__.py",
    "src/calve/spark/java.py",
    "pyproject.toml",
    "requirements.lock",
)
CONNECT: Final = """
import errno, socket
served = socket.create_server(("127.0.0.1", 0))
socket.create_connection(served.getsockname(), timeout=5).close()
try:
    socket.create_connection(("192.0.2.1", 443), timeout=5)
except OSError as error:
    raise SystemExit(0 if error.errno == errno.ENETUNREACH else repr(error))
raise SystemExit("connected")
"""


def run(*command: str | Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def run_offline(*command: str) -> subprocess.CompletedProcess[str]:
    process = run(sys.executable, ROOT / "tests/network.py", *command, env=without_make())
    if process.returncode == KERNEL_REFUSES:
        # On a machine that decides over a change, a guarantee that was not tried is a failure.
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(process.stderr.strip())
    return process


def without_make() -> dict[str, str]:
    """The environment without what an outer `make test` tells its recipes; the Python is ours."""
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS"}
    kept = {name: value for name, value in os.environ.items() if name not in outer}
    return kept | {"PYTHON": str(Path(sys.executable).resolve())}


def is_current() -> bool:
    current: bool = runpy.run_path(str(ROOT / "scripts/environment.py"))["is_current"]()
    return current


def test_the_refused_network_has_loopback_and_nothing_else() -> None:
    process = run_offline(sys.executable, "-c", CONNECT)

    assert process.returncode == 0, process.stderr


def test_setup_and_demo_work_a_second_time_with_the_network_refused() -> None:
    stamp = ROOT / ".venv/calve-setup.stamp"
    # Otherwise this would be a first run, and would clear the environment that the tests run in.
    assert is_current(), "run `make setup` first"
    made_at = stamp.stat().st_mtime_ns

    for verb in ("setup", "demo"):
        process = run_offline("make", verb)
        assert process.returncode == 0, process.stdout + process.stderr
    assert re.search(r"SQL sees all 100,002 of them, \d+ ms later", process.stdout)

    assert stamp.stat().st_mtime_ns == made_at


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of the repository as setup touches before it makes anything."""
    directory = tmp_path / "checkout"
    for name in NEEDED_BY_SETUP:
        copy = directory / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    return directory


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory for PATH that holds Python and whatever the test adds."""
    directory = tmp_path / "programs"
    directory.mkdir()
    (directory / "python3").symlink_to(Path(sys.executable).resolve())
    return directory


def add_java(programs: Path, *, version: str) -> None:
    java = programs / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2019-01-15' >&2\n")
    java.chmod(0o755)


def run_setup(checkout: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(programs), "HOME": str(checkout)}
    return run("python3", checkout / "scripts/setup.py", env=env)


def assert_asks_for_java(process: subprocess.CompletedProcess[str], *, because: str) -> None:
    assert process.returncode == 3, process.stderr
    assert process.stdout == ""
    message, hint = process.stderr.splitlines()
    assert message.startswith("setup: ")
    assert because in message
    assert hint.startswith("hint: ")
    assert "apt-get install openjdk-17-jre-headless" in hint
    assert "brew install openjdk@17" in hint
    assert "JAVA_HOME" in hint


def contents(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


def test_a_missing_java_is_said_before_anything_is_made(checkout: Path, programs: Path) -> None:
    before = contents(checkout)

    process = run_setup(checkout, programs)

    assert_asks_for_java(process, because="no Java")
    assert contents(checkout) == before


def test_a_java_that_is_too_old_is_said_before_anything_is_made(
    checkout: Path, programs: Path
) -> None:
    add_java(programs, version="11.0.2")
    before = contents(checkout)

    process = run_setup(checkout, programs)

    assert_asks_for_java(process, because="Java 11")
    assert contents(checkout) == before


def test_a_python_that_is_too_old_is_told_in_one_line(checkout: Path) -> None:
    pretend = "import runpy, sys; sys.version_info = (3, 9, 0); runpy.run_path(sys.argv[1])"
    before = contents(checkout)

    process = run(
        sys.executable, "-c", pretend, checkout / "scripts/setup.py", env=dict(os.environ)
    )

    assert process.returncode == 3
    assert process.stderr.count("\n") == 1
    assert "Python 3.11 or newer" in process.stderr
    assert contents(checkout) == before


def test_help_is_the_default_and_names_every_verb() -> None:
    verbs = set(re.findall(r"^([a-z][\w-]*):(?!=)", MAKEFILE.read_text(), re.MULTILINE))

    process = run("make", env=without_make())

    assert process.returncode == 0, process.stderr
    explained = dict(re.findall(r"^  ([\w-]+)  +(\S.*)$", process.stdout, re.MULTILINE))
    assert explained.keys() == verbs
    assert {"setup", "check", "test", "demo", "bench", "torture", "clean"} <= verbs
