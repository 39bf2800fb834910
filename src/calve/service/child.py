"""One process that a supervisor looks after: started, listened to, asked to end, or ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import msgspec

from calve.service.orders import Order, Report

if TYPE_CHECKING:
    from collections.abc import Callable


class Child:
    """A module of Calve in a process of its own, with its words passed on under its name.

    Its standard input stays open for as long as this process lives: its end is the child's.
    """

    def __init__(
        self,
        name: str,
        module: str,
        order: Order,
        *,
        tell: Callable[[Child, Report | None], None],
        say: Callable[[str], None],
    ) -> None:
        """Start it. `tell` is called from other threads: with its report, then with None."""
        self.name = name
        self._tell = tell
        self._say = say
        # Out of the way of a terminal's Ctrl-C, which its parent hears; and not to be deceived by
        # files in the current directory that are called like modules.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._give(order)
        words = threading.Thread(target=self._pass_on, name=f"calve-{name}-words", daemon=True)
        words.start()
        threading.Thread(
            target=self._listen, args=(words,), name=f"calve-{name}", daemon=True
        ).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, or None while it runs; below 0 the number of a signal."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Have it drain."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _give(self, order: Order) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then it has ended already, and is told as such
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()

    def _listen(self, words: threading.Thread) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._tell(self, msgspec.json.decode(line, type=Report))
        self._process.wait()
        words.join()
        _close(self._process.stdin, self._process.stdout, self._process.stderr)
        self._tell(self, None)

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._say(f"{self.name}: {line.decode(errors='replace').rstrip()}")


def _close(*pipes: IO[bytes] | None) -> None:
    for pipe in pipes:
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
