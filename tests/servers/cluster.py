"""A Spark standalone cluster on loopback: a master and workers, whose Python knows nothing of Calve."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil

from calve.spark.jars import spark_home

_HOST = "127.0.0.1"
_READY_SECONDS_MAX = 120.0


@dataclass
class Cluster:
    url: str
    python: Path  # of the workers
    directory: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(self) -> None:
        place = self.directory / f"worker-{uuid4()}"
        options = ("--cores", "1", "--memory", "1g", "--work-dir", str(place), self.url)
        self.workers.append(_start(self.directory, "worker", *options))

    def kill_worker_that_writes(self, directory: Path) -> None:
        """With its executor and their Python, while one of them has a file open there."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while time.monotonic() < deadline:
            for worker in self.workers:
                if any(_has_open(each, directory) for each in _members(worker)):
                    self.workers.remove(worker)
                    _end(worker)
                    return
        raise RuntimeError(f"no worker of the cluster has written to {directory}")


@contextmanager
def serve(directory: Path, *, workers: int) -> Iterator[Cluster]:
    python = directory / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
    with socket.create_server((_HOST, 0)) as free:
        port = free.getsockname()[1]
    master = _start(directory, "master", "--port", str(port))
    cluster = Cluster(f"spark://{_HOST}:{port}", python / "bin" / "python", directory)
    try:
        _await(port, master)
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        for process in (*cluster.workers, master):
            _end(process)


def jvm_options() -> str:
    """With which a JVM of a cluster starts as fast as a driver's."""
    return os.environ.get("SPARK_SUBMIT_OPTS", "")


def _start(directory: Path, role: str, *options: str) -> subprocess.Popen[bytes]:
    home = spark_home()
    kind = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
    common = ("--host", _HOST, "--webui-port", "0")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_DAEMON_JAVA_OPTS": jvm_options(),
    }
    with (directory / f"{role}.log").open("ab") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), kind, *common, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**kept, **own},
            start_new_session=True,
        )


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _READY_SECONDS_MAX
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection((_HOST, port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError("the master of the cluster did not start")


def _members(leader: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The process and all that came of it, which are of one session."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader.pid:
                found.append(process)
    return found


def _has_open(process: psutil.Process, directory: Path) -> bool:
    try:
        return any(Path(each.path).is_relative_to(directory) for each in process.open_files())
    except psutil.Error:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started."""
    for member in _members(process):
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
