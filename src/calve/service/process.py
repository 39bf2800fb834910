"""What the processes of a service have in common: how they are told, how they tell, how they end.

A process reads one line of JSON, an Order, from standard input, and writes one, a Report, to
standard output: that it is ready, or why it cannot be. SIGTERM, SIGINT, or the end of standard
input, which is the end of its parent, has it drain; then it ends with 0. Signals after the first
change nothing: whoever ends a whole group of processes sends one more.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from calve.errors import CalveError
from calve.log import configure_logs
from calve.protocol import problem_of
from calve.service.orders import Order, Report
from calve.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from calve.settings import Settings

_log: Final = logging.getLogger(__name__)
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2
_READ_BYTES: Final = 65_536


class Surroundings:
    """Where a process runs: `ending` is set when it is asked to end, `report` tells its parent."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        self.hear_signals()
        # What libraries print must not be taken for the report.
        self._reports = os.dup(_OUTPUT)
        os.dup2(_ERRORS, _OUTPUT)

    def hear_signals(self) -> None:
        """Have signals ask the process to end; again, after a library took them for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ending.set())

    def end_with_parent(self) -> None:
        threading.Thread(target=self._until_input_ends, daemon=True).start()

    def report(self, report: Report) -> None:
        with suppress(BrokenPipeError):  # a parent that is gone needs none
            os.write(self._reports, msgspec.json.encode(report) + b"\n")

    def _until_input_ends(self) -> None:
        while os.read(_INPUT, _READ_BYTES):
            pass
        self.ending.set()


def run_process(work: Callable[[Settings, Surroundings], None]) -> int:
    """Do the work of a process as it was ordered; its exit code."""
    surroundings = Surroundings()
    try:
        settings = _settings()
        configure_logs(settings)
        _log_what_nobody_caught()
        surroundings.end_with_parent()
        work(settings, surroundings)
    except CalveError as error:
        surroundings.report(Report(problem=problem_of(error)))
        return error.exit_code
    return 0


def _log_what_nobody_caught() -> None:
    """A traceback as Python prints it could tell secrets, which those of the log do not."""

    def log(
        kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _log.critical("unexpected %s", kind.__name__, exc_info=error and (kind, error, trace))

    sys.excepthook = log
    threading.excepthook = lambda left: log(left.exc_type, left.exc_value, left.exc_traceback)


def _settings() -> Settings:
    order = msgspec.json.decode(_first_line(), type=Order)
    config = None if order.config is None else Path(order.config)
    return load_settings(config=config, flags=order.flags).settings


def _first_line() -> bytes:
    # Read without a buffer of Python's, in which the thread that waits for the end would be caught.
    line = b""
    while not line.endswith(b"\n") and (more := os.read(_INPUT, _READ_BYTES)):
        line += more
    return line
