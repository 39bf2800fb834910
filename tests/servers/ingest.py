"""A process of its own that takes rows in over Flight; it ends with whoever started it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.settings import load_settings

ROOT = Path(__file__).parents[2]


class IngestProcess:
    """The process. Started again, it has the same port."""

    def __init__(self, data: Path, **flags: object) -> None:
        named = {name.replace("__", "."): str(value) for name, value in flags.items()}
        self._flags = {"data": str(data), "ingest.flight_port": "0", **named}
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        words = [f"{name}={value}" for name, value in self._flags.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.ingest", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url.startswith("grpc://")
        self._flags["ingest.flight_port"] = self.url.rpartition(":")[2]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def memory_bytes(self) -> int:
        assert self._process is not None
        found: int = psutil.Process(self._process.pid).memory_info().rss
        return found

    @property
    def anonymous_bytes(self) -> int:
        """The same without pages of files, which the kernel counts to whoever has read them."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1]) << 10

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Have it end by itself, as it does when its parent is gone."""
        if self._process is not None and self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            assert self._process.wait(30) == 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def main(words: list[str]) -> None:
    flags = dict(word.split("=", 1) for word in words)
    settings = load_settings(flags=flags, environ={}).settings
    with Intake(settings) as intake, FlightServer(intake) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
