"""The ingest process, as a supervisor starts it: `python -m calve.service.ingest`.

It reads one line of JSON, an Order, from standard input, and writes one, a Report, to standard
output: where it listens, or why it cannot. SIGTERM, SIGINT, or the end of standard input, which is
the end of its parent, has it drain: what was accepted is answered, then it ends with 0. Signals
after the first change nothing: whoever ends a whole group of processes sends one more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from calve.errors import CalveError
from calve.ingest import Intake
from calve.log import configure_logs
from calve.protocol import problem_of
from calve.service.orders import Order, Report
from calve.service.serving import Serving
from calve.settings import load_settings

if TYPE_CHECKING:
    from calve.settings import Settings

_INPUT, _OUTPUT, _ERRORS = 0, 1, 2
_READ_BYTES: Final = 65_536


def main() -> int:
    ending = _ending()
    # What libraries print must not be taken for the report.
    reports = os.dup(_OUTPUT)
    os.dup2(_ERRORS, _OUTPUT)
    try:
        settings = _settings()
        configure_logs(settings)
        _serve(settings, ending, reports)
    except CalveError as error:
        _report(reports, Report(problem=problem_of(error)))
        return error.exit_code
    return 0


def _serve(settings: Settings, ending: threading.Event, reports: int) -> None:
    threading.Thread(target=_until_input_ends, args=(ending,), daemon=True).start()
    with Intake(settings) as intake, Serving(intake) as serving:
        _report(reports, Report(addresses=serving.addresses))
        ending.wait()


def _until_input_ends(ending: threading.Event) -> None:
    while os.read(_INPUT, _READ_BYTES):
        pass
    ending.set()


def _settings() -> Settings:
    order = msgspec.json.decode(_first_line(), type=Order)
    return load_settings(config=order.config, flags=order.flags).settings


def _first_line() -> bytes:
    # Read without a buffer of Python's, in which the thread that waits for the end would be caught.
    line = b""
    while not line.endswith(b"\n") and (more := os.read(_INPUT, _READ_BYTES)):
        line += more
    return line


def _ending() -> threading.Event:
    """Set when the process is asked to end."""
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    return ending


def _report(descriptor: int, report: Report) -> None:
    with suppress(BrokenPipeError):  # a parent that is gone needs none
        os.write(descriptor, msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
