"""The log of an intake, opened again when it stopped: its disk failed, or whoever wrote did.

What is durable is read again from the disk, and rows of unknown outcome are in or not, as their
producers' retries find out. Until it is open, every use of the log is refused, and nothing is
acknowledged. The next try comes later each time.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, Fenced
from calve.wal import Log
from calve.wal.bells import Bells

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID

    from calve.clock import Clock
    from calve.wal import LogOptions
    from calve.wal.files import Files
    from calve.wal.retention import AskCommitted

_log: Final = logging.getLogger(__name__)
_DELAY_SECONDS: Final = 0.5
_DELAY_SECONDS_MAX: Final = 30.0


class KeptLog:
    """`reopen_if_due` is for one thread, which also lives on when this is closed."""

    def __init__(
        self, path: Path, options: LogOptions, *, clock: Clock, files: Files | None = None
    ) -> None:
        def opened(expected: UUID | None) -> Log:
            log = Log(path, options, expected=expected, clock=clock, files=files)
            log.ring(self.bells)
            return log

        self.bells: Final = Bells()

        self._opened: Callable[[UUID | None], Log] = opened
        self._clock = clock
        self._ask: AskCommitted | None = None
        self._failures = 0
        self._due_at = 0.0
        self._problem: CalveError | None = None  # that the last opening met
        self.current = opened(None)

    @property
    def stopped(self) -> CalveError | None:
        """Why no rows are taken in, if they are not."""
        if not self.current.is_fenced:
            return None
        return self._problem or self.current.failure

    def ask_committed(self, ask: AskCommitted) -> None:
        self._ask = ask
        self.current.ask_committed(ask)

    def reopen_if_due(self) -> bool:
        """Open the log again if it stopped and the time has come; whether that was done."""
        if not self.current.is_fenced or self._clock.monotonic() < self._due_at:
            return False
        try:
            self._reopen()
        except CalveError as error:
            self._failures += 1
            delay = min(_DELAY_SECONDS * 2 ** min(self._failures, 10), _DELAY_SECONDS_MAX)
            self._due_at = self._clock.monotonic() + delay
            self._say(error, delay)
            self._problem = error
            return False
        self._failures, self._due_at, self._problem = 0, 0.0, None
        _log.warning("the log in %s is open again", self.current.directory)
        return True

    def _reopen(self) -> None:
        stopped = self.current
        with suppress(OSError):  # its files are let go of all the same
            stopped.close()
        opened = self._opened(stopped.log_id)
        if self._ask is not None:
            opened.ask_committed(self._ask)
        self.current = opened

    def _say(self, error: CalveError, delay_seconds: float) -> None:
        """Once for each reason."""
        if self._problem is None or self._problem.message != error.message:
            failure = self.current.failure
            _log.error(
                "%s; it could not be opened again: %s; the next try is in %.1f s",
                failure.message if isinstance(failure, Fenced) else "the log stopped",
                error.message,
                delay_seconds,
            )

    def close(self) -> None:
        self.current.close()
