"""Starts a server on a free loopback port, waits until it answers, and stops it.

Nothing outlives the test run: a supervisor beside each server ends it when the run is gone, and
the next run ends what a killed supervisor left. Only processes recorded here, with their start
time, are ever touched.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import platformdirs
import psutil

HOST: Final = "127.0.0.1"

_READY_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 10.0
_POLL_SECONDS: Final = 0.05
_ATTEMPTS: Final = 3
_LOG_LINES: Final = 30
_DIRECTORY_PREFIX: Final = "calve-server-"
_CLOCK_TOLERANCE_SECONDS: Final = 1.0


class ServerFailed(Exception):
    """A server that should have started did not; the message ends with its last words."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run. `user` is who runs it, where the server refuses to be run by root."""

    command: Sequence[str | Path]
    env: Mapping[str, str] = field(default_factory=dict)
    user: int | None = None
    group: int | None = None
    stop_signal: signal.Signals = signal.SIGTERM


class Server:
    """A running server; its directory goes when it stops."""

    def __init__(self, name: str, port: int, directory: Path, process: subprocess.Popen[bytes]):
        self.name = name
        self.port = port
        self.directory = directory
        self._process = process

    @property
    def log(self) -> Path:
        return self.directory / "log.txt"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def supervisor_pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(lines[-_LOG_LINES:])

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS_MAX + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def servers_cache() -> Path:
    """Where installed servers and the records of running ones lie; one place per user."""
    return platformdirs.user_cache_path("calve") / "test-servers"


def new_directory(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{_DIRECTORY_PREFIX}{name}-"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def start(
    name: str,
    launch: Callable[[int], Launch],
    *,
    ready: Callable[[int], bool],
    directory: Path | None = None,
    ready_seconds: float = _READY_SECONDS_MAX,
) -> Server:
    """Run what `launch` says for a port, until `ready` says yes for it.

    The directory belongs to the server from here on. A free port can be taken by somebody else
    before the server binds it, so an early end is tried again on another one.
    """
    sweep_once()
    directory = directory or new_directory(name)
    try:
        for _ in range(_ATTEMPTS):
            server = _spawn(name, launch, directory)
            if _wait_until_ready(server, ready, ready_seconds):
                return server
            words = server.last_words()
            if "in use" not in words or server.is_running():
                break
        server.stop()
        raise ServerFailed(f"{name} did not start; its last words:\n{words}")
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _spawn(name: str, launch: Callable[[int], Launch], directory: Path) -> Server:
    port = free_port()
    what = launch(port)
    records = _records()
    records.mkdir(parents=True, exist_ok=True)
    order = {
        "parent": os.getpid(),
        "command": [str(part) for part in what.command],
        "directory": str(directory),
        "log": str(directory / "log.txt"),
        "record": str(records / f"{os.getpid()}-{port}.json"),
        "user": what.user,
        "group": what.group,
        "stop_signal": int(what.stop_signal),
        "stop_seconds": _STOP_SECONDS_MAX,
    }
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("supervisor.py")), json.dumps(order)],
        env={**os.environ, **what.env},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the test run; it stops its servers itself.
    )
    return Server(name, port, directory, process)


def _wait_until_ready(server: Server, ready: Callable[[int], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ready(server.port):
            return server.is_running()
        if not server.is_running():
            return False
        time.sleep(_POLL_SECONDS)
    return False


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _records() -> Path:
    return servers_cache() / "running"


@functools.cache
def sweep_once() -> None:
    """End what earlier test runs left behind; what running ones own stays."""
    for record in _records().glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            _sweep(record)


def _sweep(record: Path) -> None:
    facts = json.loads(record.read_text())
    if _still_running(facts["owner"]) is not None:
        return
    for identity in facts["processes"]:
        if process := _still_running(identity):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    directory = Path(facts["directory"])
    if directory.name.startswith(_DIRECTORY_PREFIX):
        shutil.rmtree(directory, ignore_errors=True)
    record.unlink(missing_ok=True)


def _still_running(identity: Mapping[str, float]) -> psutil.Process | None:
    """The process of that number, if it is the one that was recorded and not a later one."""
    try:
        process = psutil.Process(int(identity["pid"]))
        same = abs(process.create_time() - identity["started"]) < _CLOCK_TOLERANCE_SECONDS
    except psutil.NoSuchProcess:
        return None
    return process if same and process.status() != psutil.STATUS_ZOMBIE else None
