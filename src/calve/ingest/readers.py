"""Readers of the log for many threads: one at a time uses each, and the next finds it open."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from calve.wal.files import translating

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.ingest.kept_log import KeptLog
    from calve.wal import LogReader

_IDLE_MAX: Final = 8


class ReaderPool:
    def __init__(self, log: KeptLog) -> None:
        self._log = log
        self._idle: deque[LogReader] = deque()

    @contextmanager
    def reader(self) -> Iterator[LogReader]:
        """A reader that sees what is durable now; Unavailable if the disk refuses."""
        with translating(self._log.current.directory, "read"):
            reader = self._taken()
            try:
                reader.refresh()
                yield reader
            except BaseException:
                reader.close()
                raise
        if len(self._idle) < _IDLE_MAX:
            self._idle.append(reader)
        else:
            reader.close()

    def _taken(self) -> LogReader:
        try:
            return self._idle.pop()
        except IndexError:
            return self._log.current.reader()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
