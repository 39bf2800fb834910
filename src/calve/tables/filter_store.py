"""Filters of data files, kept so that each is read from its file once.

Data files never change, so what is kept stays true; it lies in the user's cache and may be deleted
at any time. Bounded: the oldest go first. Trouble with it is no trouble of whoever asks: then
filters are read from their files.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from calve.paths import make_private

_BYTES_MAX: Final = 256 * 1024 * 1024
_ASKED_AT_ONCE: Final = 500
_BUSY_SECONDS: Final = 1.0
_MAKE: Final = (
    "CREATE TABLE IF NOT EXISTS filters "
    "(number INTEGER PRIMARY KEY, file TEXT UNIQUE NOT NULL, content BLOB NOT NULL)"
)


class FilterStore:
    """Safe to share between threads, and its file between processes."""

    def __init__(self, path: Path, *, bytes_max: int = _BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def find(self, files: Iterable[str]) -> dict[str, bytes]:
        """Those that are here."""
        wanted = list(files)
        found: dict[str, bytes] = {}
        with self._lock, suppress(sqlite3.Error, OSError):
            connection = self._opened()
            for start in range(0, len(wanted), _ASKED_AT_ONCE):
                part = wanted[start : start + _ASKED_AT_ONCE]
                marks = ", ".join("?" * len(part))
                query = f"SELECT file, content FROM filters WHERE file IN ({marks})"  # noqa: S608
                found.update(connection.execute(query, part))
        return found

    def keep(self, filters: Mapping[str, bytes]) -> None:
        with self._lock, suppress(sqlite3.Error, OSError):
            connection = self._opened()
            with connection:
                connection.executemany(
                    "INSERT OR IGNORE INTO filters (file, content) VALUES (?, ?)", filters.items()
                )
                self._shrink(connection)

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        # A connection is not for the children of a process.
        if self._connection is None or self._process != os.getpid():
            make_private(self._path.parent)
            made = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, check_same_thread=False)
            try:
                # It can be made again: what a crash of the machine takes of it is no loss.
                made.execute("PRAGMA journal_mode = WAL")
                made.execute("PRAGMA synchronous = OFF")
                with made:
                    made.execute(_MAKE)
            except sqlite3.DatabaseError:
                made.close()
                raise
            self._connection, self._process = made, os.getpid()
        return self._connection

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Let the oldest half go once all together are too much."""
        query = "SELECT coalesce(sum(length(content)), 0), coalesce(max(number), 0) FROM filters"
        held, newest = connection.execute(query).fetchone()
        if held > self._bytes_max:
            (oldest,) = connection.execute("SELECT min(number) FROM filters").fetchone()
            connection.execute("DELETE FROM filters WHERE number <= ?", ((oldest + newest) // 2,))
