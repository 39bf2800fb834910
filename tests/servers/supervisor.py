"""Runs one server; ends it and removes its directory as soon as the test run is gone.

    python supervisor.py '{"parent": 123, "command": ["java", …], …}'

Started by `process.py`. Looks at its parent instead of trusting a signal, because a test run can
be killed in ways that leave it no chance to send one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil

_LOOK_SECONDS: Final = 0.2
_PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    order = json.loads(sys.argv[1])
    record = Path(order["record"])
    signal.signal(signal.SIGTERM, _leave)
    try:
        process = _start(order)
        try:
            _write_record(record, order, process)
            return _watch(process, parent=order["parent"])
        finally:
            _end(process, order["stop_signal"], order["stop_seconds"])
    finally:
        if os.getppid() != order["parent"]:  # Otherwise the run wants to read the log.
            shutil.rmtree(order["directory"], ignore_errors=True)
        record.unlink(missing_ok=True)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # A second one must not cut the end short.
    sys.exit(0)


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    with Path(order["log"]).open("ab") as log:
        return subprocess.Popen(
            order["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=order["directory"],
            user=order["user"],
            group=order["group"],
            extra_groups=None if order["user"] is None else [],
            start_new_session=True,
            # Single-threaded here, so this is safe; and after the change of user, which clears it.
            preexec_fn=_die_with_supervisor,  # noqa: PLW1509
        )


def _die_with_supervisor() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _write_record(record: Path, order: dict[str, Any], server: subprocess.Popen[bytes]) -> None:
    """What the next test run needs to clean up, should this process be killed as well."""
    facts = {
        "owner": _identity(order["parent"]),
        "processes": [_identity(server.pid), _identity(os.getpid())],
        "directory": order["directory"],
    }
    partial = record.with_suffix(".partial")
    partial.write_text(json.dumps(facts))
    partial.replace(record)


def _identity(pid: int) -> dict[str, float]:
    try:
        return {"pid": pid, "started": psutil.Process(pid).create_time()}
    except psutil.NoSuchProcess:
        return {"pid": pid, "started": 0.0}


def _watch(server: subprocess.Popen[bytes], *, parent: int) -> int:
    while os.getppid() == parent:
        if (code := server.poll()) is not None:
            return code
        time.sleep(_LOOK_SECONDS)
    return 0


def _end(server: subprocess.Popen[bytes], stop_signal: int, seconds: float) -> None:
    if server.poll() is None:
        server.send_signal(stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
    # Also what the server itself started: it leads its own group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    sys.exit(main())
