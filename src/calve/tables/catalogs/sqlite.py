"""An engine for SQLite, safe with several processes and threads at once.

As SQLite comes, readers block writers, a busy database is an error at once, and a database in
memory is another one in each thread.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import QueuePool

from calve.errors import Unavailable
from calve.paths import private_mode

# Transactions are single statements of microseconds, so a wait this long means a stuck process.
BUSY_TIMEOUT_SECONDS: Final = 60
IN_MEMORY: Final = "sqlite:///:memory:"

_JOURNAL_ATTEMPTS: Final = 200
_JOURNAL_WAIT_SECONDS: Final = 0.05


def sqlite_engine(url: str | URL) -> Engine:
    """An engine for a SQLite file that waits for its turn, or for one database in memory."""
    in_memory = make_url(url).database in {None, "", ":memory:"}
    engine = create_engine(
        url,
        poolclass=QueuePool,
        # A database in memory is its one connection, which all threads use in turn.
        pool_size=1 if in_memory else 5,
        max_overflow=0 if in_memory else 10,
        pool_timeout=BUSY_TIMEOUT_SECONDS,
        connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
    )
    if not in_memory:
        event.listen(engine, "do_connect", _make_file)
        event.listen(engine, "connect", _prepare)
    return engine


def _make_file(
    _dialect: object, _record: object, words: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Before SQLite does, which would let others read it."""
    file = Path(words[0])
    if not options.get("uri") and file.parent.is_dir() and not file.exists():
        file.touch(private_mode(file.parent))


def _prepare(connection: DBAPIConnection, _record: object) -> None:
    """Let readers and a writer work side by side, and acknowledge only what is on disk.

    SQLite does not wait for its turn while it changes the journal mode, so the change, which
    happens once in a file's life, is tried until the others are done.
    """
    assert isinstance(connection, sqlite3.Connection)
    connection.execute("PRAGMA synchronous=FULL")
    for _ in range(_JOURNAL_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) and "busy" not in str(error):
                raise
            time.sleep(_JOURNAL_WAIT_SECONDS)
        else:
            return
    raise Unavailable(
        "the catalog's database stays locked by another process",
        hint="look for a program that holds it open, such as a database browser, and close it",
    )
