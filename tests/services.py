"""`calve up` as a real process: started, asked, killed and stopped by tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from calve.settings import Settings, load_settings

ROOT: Final = Path(__file__).parents[1]
PORTS: Final = ("http_port", "flight_port", "otlp_grpc_port", "otlp_http_port")
FREE_PORTS: Final = tuple(word for port in PORTS for word in ("--set", f"ingest.{port}=0"))
_PROGRAM: Final = "from calve.cli.main import calve; calve()"
_WAIT_SECONDS: Final = 60.0


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("CALVE_")},
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


class Up:
    """A service of the lake in a directory, with the supervisor as its process."""

    def __init__(
        self,
        data: Path,
        *arguments: str,
        only: str | None = "ingest",
        ports: tuple[str, ...] = FREE_PORTS,
        as_json: bool = True,
    ) -> None:
        self.data = data
        self._addresses: dict[str, str] | None = None
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _PROGRAM,
                "up",
                "--data",
                str(data),
                *(("--json",) if as_json else ()),
                *(("--only", only) if only else ()),
                *ports,
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=data.parent,
        )

    def addresses(self) -> dict[str, str]:
        """Where it listens; waits until it is ready."""
        if self._addresses is None:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, self.process.communicate(timeout=_WAIT_SECONDS)[1]
            self._addresses = json.loads(line)
        return self._addresses

    def announced(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "_calve" / "service.json").read_text())
        return found

    @property
    def ingest_pid(self) -> int:
        pid: int = self.announced()["processes"]["ingest"]
        return pid

    @property
    def pipeline_pid(self) -> int | None:
        """Its process, once it is ready."""
        pid: int | None = self.announced()["processes"].get("pipeline")
        return pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Its exit code and its words, once it has ended."""
        _, words = self.process.communicate(timeout=_WAIT_SECONDS)
        return self.process.returncode, words


@contextmanager
def up(
    data: Path,
    *arguments: str,
    only: str | None = "ingest",
    ports: tuple[str, ...] = FREE_PORTS,
    as_json: bool = True,
) -> Iterator[Up]:
    """A service that is gone after the block, whatever happened in it."""
    service = Up(data, *arguments, only=only, ports=ports, as_json=as_json)
    try:
        yield service
    finally:
        service.process.terminate()
        try:
            service.process.communicate(timeout=_WAIT_SECONDS)
        finally:
            service.process.kill()


def settings_of(data: Path, **flags: object) -> Settings:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return load_settings(flags={"data": str(data), **named}, environ={}).settings


def post_rows(http: str, topic: str, rows: list[dict[str, Any]], **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(
        f"{http}/v1/topics/{topic}/rows",
        json.dumps(rows).encode(),
        {"Content-Type": "application/json", **named},
    )
    with urlopen(request, timeout=30) as response:
        return json.load(response)


def wait_until(claim: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended and waits to be collected is not alive.
    return (
        not Path(f"/proc/{pid}/stat").exists() or " Z " not in Path(f"/proc/{pid}/stat").read_text()
    )
