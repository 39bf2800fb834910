"""How the installed programs end: at once, when all that Python knows of has been closed.

Taking the interpreter apart aborts the process if a thread of a library still calls into it, as
Arrow's does that reads ahead in a file of which a row was refused.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from calve.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable


def calve() -> None:
    """The program `calve`."""
    _end_at_once_after(main.calve)


def iceberg_manager() -> None:
    """The program `iceberg-manager`."""
    _end_at_once_after(main.iceberg_manager)


def _end_at_once_after(program: Callable[[], None]) -> None:
    code = 1  # of whatever else is raised, which Python shows before it ends

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # none, full or closed
                stream.flush()
        os._exit(code)

    atexit.register(end)  # the first to be registered is the last to be called
    try:
        program()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
        raise
