"""The state in a SQLite file, for the processes of one machine.

Write-ahead journal, a busy time-out, and transactions of microseconds, each synced before it is
answered. A file that cannot be read is Corruption, never a reason to begin anew.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import msgspec

from calve.errors import Conflict, Corruption, Unavailable
from calve.paths import make_private, private_mode
from calve.state import recorded_offsets as offsets
from calve.state.recorded import RecordedState, not_made
from calve.state.records import Records, Value
from calve.state.sql import Dialect, SqlSource, write
from calve.state.sqlite_format import APPLICATION_ID, FORMAT_VERSION, bring_up_to_date
from calve.state.store import CommittedOffset

if TYPE_CHECKING:
    from calve.clock import Clock

_T = TypeVar("_T")

_BUSY_SECONDS: Final = 30.0
_JOURNAL_ATTEMPTS: Final = 200
_JOURNAL_WAIT_SECONDS: Final = 0.05
_DIALECT: Final = Dialect(mark="?")


class SqliteState(RecordedState):
    """A `State` in one file. Safe to share between threads, which take turns."""

    def __init__(self, path: Path, *, clock: Clock, create: bool = True) -> None:
        if not create and not path.exists():
            raise not_made(str(path))
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._is_closed = False
        with self._translating():
            make_private(path.parent)
            if not path.exists():
                path.touch(private_mode(path.parent))  # SQLite's other files have it too
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with self._translating():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def keeping_committed(self, partition: int) -> Iterator[dict[UUID, CommittedOffset]]:
        """The file's lock says it, which goes with its process, however that ends."""
        with self._lock:
            with self._translating():
                self._begin()
            try:
                with self._translating():
                    found = offsets.all_committed(self._records(), partition)
                # What goes wrong in the block is no trouble of the state's.
                yield found
            finally:
                with suppress(sqlite3.Error):  # nothing was changed
                    self._connection.execute("ROLLBACK")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._connection.close()

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA synchronous = FULL")
        self._use_journal()
        # Whoever is first makes the tables; the others wait here for it.
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._make_or_check()
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _use_journal(self) -> None:
        """SQLite does not wait while it changes the mode, which happens once in a file's life."""
        for _ in range(_JOURNAL_ATTEMPTS):
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
                time.sleep(_JOURNAL_WAIT_SECONDS)
            else:
                return
        raise self._busy()

    def _make_or_check(self) -> None:
        application, version, tables = (
            self._connection.execute(query).fetchone()[0]
            for query in (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_schema",
            )
        )
        if (application, version, tables) == (0, 0, 0):
            bring_up_to_date(self._connection, 0)
        elif application != APPLICATION_ID:
            raise self._unreadable("it is a database, but not one of Calve's")
        elif 0 < version < FORMAT_VERSION:
            bring_up_to_date(self._connection, version)
        elif version != FORMAT_VERSION:
            raise Conflict(
                f"{self._path} has format {version}, this Calve knows {FORMAT_VERSION}",
                hint="a newer Calve wrote it: install that one or a later one",
                context={"file": str(self._path), "format": str(version)},
            )

    def _read(self, work: Callable[[Records], _T]) -> _T:
        with self._lock, self._translating():
            self._require_open()
            return work(self._records())

    def _change(
        self, scopes: Sequence[str], work: Callable[[Records], _T], *, is_repeatable: bool = True
    ) -> _T:
        """The file's lock is there for all scopes, and every outcome is known."""
        with self._lock, self._translating():
            self._begin()
            try:
                records = self._records()
                result = work(records)
                write(records, self._run_many, _DIALECT)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            return result

    def _begin(self) -> None:
        self._require_open()
        self._connection.execute("BEGIN IMMEDIATE")

    def _records(self) -> Records:
        return Records(SqlSource(self._run, _DIALECT, self._clock.now))

    def _run(self, statement: str, values: Sequence[Value]) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def _run_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        self._connection.executemany(statement, rows)

    def _require_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the state is closed", hint="open it again")

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                raise self._busy() from error
            if "no such" in str(error):
                raise self._unreadable(str(error)) from error
            raise Unavailable(
                f"{self._path}: {error}",
                hint="look at the disk and the file's permissions, then try again",
                context={"file": str(self._path)},
            ) from error
        except (sqlite3.DatabaseError, ValueError, msgspec.DecodeError) as error:
            raise self._unreadable(str(error)) from error
        except OSError as error:
            raise Unavailable(
                f"{self._path.parent} cannot be made: {error.strerror}",
                hint="look at the disk and the directory's permissions, then try again",
            ) from error

    def _busy(self) -> Unavailable:
        return Unavailable(
            f"{self._path} stays locked by another process",
            hint="look for a program that holds it open, such as a database browser, and close it",
            context={"file": str(self._path)},
        )

    def _unreadable(self, reason: str) -> Corruption:
        return Corruption(
            f"{self._path} cannot be read: {reason}",
            hint="bring the file back from a copy, with the -wal file beside it. If there is none, "
            "move it aside and create the topics again: each then takes over its rows in the log "
            "with `calve topic create --adopt`",
            context={"file": str(self._path)},
        )


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) or "busy" in str(error)
