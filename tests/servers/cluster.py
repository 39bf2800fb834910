"""A Spark standalone cluster on loopback: a master and workers, whose Python knows nothing of Calve."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from calve.spark.jars import spark_home

_HOST = "127.0.0.1"
_READY_SECONDS_MAX = 120.0


@dataclass
class Cluster:
    url: str
    python: Path  # of the workers
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kill_worker(self) -> None:
        """One of them, with its executor."""
        _end(self.workers.pop())


@contextmanager
def serve(directory: Path, *, workers: int) -> Iterator[Cluster]:
    python = directory / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
    with socket.create_server((_HOST, 0)) as free:
        port = free.getsockname()[1]
    master = _start(directory, "master", "--port", str(port))
    cluster = Cluster(f"spark://{_HOST}:{port}", python / "bin" / "python")
    try:
        _await(port, master)
        for number in range(workers):
            place = directory / f"worker{number}"
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(place), cluster.url)
            cluster.workers.append(_start(directory, "worker", *options))
        yield cluster
    finally:
        for process in (*cluster.workers, master):
            _end(process)


def _start(directory: Path, role: str, *options: str) -> subprocess.Popen[bytes]:
    home = spark_home()
    kind = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
    common = ("--host", _HOST, "--webui-port", "0")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (directory / f"{role}.log").open("ab") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), kind, *common, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**kept, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HOST},
            start_new_session=True,
        )


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _READY_SECONDS_MAX
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection((_HOST, port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError("the master of the cluster did not start")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
