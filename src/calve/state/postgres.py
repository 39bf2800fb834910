"""The state in a schema of a PostgreSQL database, for services on several machines.

A transaction locks what it changes, so that those that change the same take turns; times are the
server's. A server that is away is waited for as `[retry]` says, then it is Unavailable; whoever
asks again later is answered as soon as it is back. Needs the part `postgres`.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
import psycopg

from calve.errors import (
    CalveError,
    Corruption,
    Denied,
    InvalidSettings,
    Unavailable,
    UnknownOutcome,
)
from calve.postgres import BoundedConnection, connect, said
from calve.retry import retried
from calve.settings import RetrySettings, SecretUrl
from calve.state.postgres_format import make_or_check
from calve.state.recorded import RecordedState
from calve.state.records import Records, Value
from calve.state.sql import Dialect, SqlSource, write
from calve.state.transactions import RETRY_SECONDS_MAX

_T = TypeVar("_T")
_IsPassing: TypeAlias = Callable[[BaseException], bool]

_SCHEMA: Final = "calve_state"
_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
_CONNECTIONS_MAX: Final = 8
_CONNECT_SECONDS_MAX: Final = 5.0
_LOCK_SECONDS_MAX: Final = 20
# Somebody who cannot write here is on a standby, or on a server that is changing its place.
_READ_ONLY: Final = (psycopg.errors.ReadOnlySqlTransaction,)
_PASSING: Final = (psycopg.OperationalError, psycopg.InterfaceError, *_READ_ONLY)


class _Lost(Exception):
    """Nobody knows whether a transaction was committed; its cause says why."""


class PostgresState(RecordedState):
    """A `State` in one schema. Threads share a few connections."""

    def __init__(self, dsn: str, *, retry: RetrySettings, create: bool = True) -> None:
        self._address, self._schema = _split(dsn)
        self._shown = str(SecretUrl(self._address))
        self._retry = retry
        self._dialect = Dialect(mark="%s", prefix=f"{self._schema}.")
        self._turns = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._idle: list[BoundedConnection] = []
        self._is_closed = False
        try:
            self._transact(["format"], lambda run: make_or_check(run, self._schema, create=create))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _read(self, work: Callable[[Records], _T]) -> _T:
        def attempt() -> _T:
            with self._connected() as connection:
                return work(self._records(_Run(connection)))

        return self._retried(attempt, self._is_passing)

    def _change(
        self, scopes: Sequence[str], work: Callable[[Records], _T], *, is_repeatable: bool = True
    ) -> _T:
        def changed(run: _Run) -> _T:
            records = self._records(run)
            result = work(records)
            write(records, run.many, self._dialect)
            return result

        return self._transact(scopes, changed, is_repeatable=is_repeatable)

    def _transact(
        self, scopes: Sequence[str], work: Callable[[_Run], _T], *, is_repeatable: bool = True
    ) -> _T:
        def attempt() -> _T:
            with self._connected() as connection:
                return self._attempt(connection, scopes, work)

        def is_passing(error: BaseException) -> bool:
            return self._is_passing(error) or (is_repeatable and isinstance(error, _Lost))

        return self._retried(attempt, is_passing)

    def _attempt(
        self, connection: BoundedConnection, scopes: Sequence[str], work: Callable[[_Run], _T]
    ) -> _T:
        run = _Run(connection)
        connection.execute("BEGIN")
        try:
            for scope in scopes:
                run("SELECT pg_advisory_xact_lock(%s)", (_lock_of(f"{self._schema} {scope}"),))
            result = work(run)
        except BaseException:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            raise
        try:
            connection.execute("COMMIT")
        except psycopg.OperationalError as error:
            raise _Lost from error
        return result

    def _records(self, run: _Run) -> Records:
        return Records(SqlSource(run, self._dialect, lambda: _server_time(run)))

    @contextmanager
    def _connected(self) -> Iterator[BoundedConnection]:
        """A connection for one thread; one that broke is not used again."""
        with self._turns:
            connection = self._take()
            try:
                yield connection
            finally:
                with self._lock:
                    is_usable = not self._is_closed and _is_idle(connection)
                    if is_usable:
                        self._idle.append(connection)
                if not is_usable:
                    connection.close()

    def _take(self) -> BoundedConnection:
        with self._lock:
            if self._is_closed:
                raise Unavailable("the state is closed", hint="open it again")
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed:
                    return connection
        connection = connect(
            self._address, setting="state.dsn", timeout_seconds=_CONNECT_SECONDS_MAX
        )
        connection.rollback()
        connection.autocommit = True
        connection.prepare_threshold = None  # a pooler between may give us another session
        connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS_MAX}s'")
        # What is answered is on disk, whatever the database's own default.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )
        return connection

    def _retried(self, attempt: Callable[[], _T], is_passing: _IsPassing) -> _T:
        return self._translated(
            lambda: retried(attempt, self._retry, is_passing, seconds_max=RETRY_SECONDS_MAX)
        )

    def _is_passing(self, error: BaseException) -> bool:
        return not self._is_closed and isinstance(error, (*_PASSING, Unavailable))

    def _translated(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except CalveError:
            raise
        except _Lost as lost:
            raise UnknownOutcome(
                f"PostgreSQL at {self._shown} did not say whether a change of the state happened: "
                f"{lost.__cause__}",
                hint="look whether it did before you try again",
            ) from lost
        except _PASSING as error:
            raise Unavailable(
                f"the state in PostgreSQL at {self._shown} cannot be used for now: {said(error)}",
                hint="see that the server runs and takes writes, then try again",
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise Denied(
                f"the user of the state in PostgreSQL at {self._shown} lacks a right: "
                f"{said(error)}",
                hint=f"grant the user of state.dsn all rights on schema {self._schema}, or the "
                "right to create it",
            ) from error
        except (psycopg.Error, ValueError, msgspec.DecodeError) as error:
            words = said(error) if isinstance(error, psycopg.Error) else str(error)
            raise Corruption(
                f"the state in PostgreSQL at {self._shown}, schema {self._schema}, cannot be "
                f"read: {words}",
                hint="bring the schema back from a copy of the database. If there is none, rename "
                "the schema and create the topics again: each then takes over its rows in the log "
                "with `calve topic create --adopt`",
            ) from error


class _Run:
    """Runs statements through a connection."""

    def __init__(self, connection: BoundedConnection) -> None:
        self._connection = connection

    def __call__(self, statement: str, values: Sequence[Value]) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        with self._connection.cursor() as cursor:
            if len(rows) == 1:
                cursor.execute(statement, rows[0] or None)
            else:
                cursor.executemany(statement, rows)


def _lock_of(scope: str) -> int:
    """A number for PostgreSQL's locks; two scopes that share one only wait for each other."""
    digest = hashlib.blake2b(f"calve {scope}".encode(errors="surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), signed=True)


def _server_time(run: _Run) -> datetime:
    found = run("SELECT clock_timestamp()", ())[0][0]
    assert isinstance(found, datetime)
    return found


def _is_idle(connection: BoundedConnection) -> bool:
    status = connection.info.transaction_status
    return not connection.closed and status == psycopg.pq.TransactionStatus.IDLE


def _split(dsn: str) -> tuple[str, str]:
    """What libpq takes of it, and the schema."""
    parts = urlsplit(dsn)
    options = parse_qsl(parts.query, keep_blank_values=True)
    schema = dict(options).get("schema", _SCHEMA)
    if not _SCHEMA_NAME.fullmatch(schema):
        raise InvalidSettings(
            f"state.dsn: {schema!r} is not a schema that Calve can use",
            hint="write ?schema=name with 1 to 63 of a-z, 0-9 and _, not beginning with a digit",
        )
    query = urlencode([option for option in options if option[0] != "schema"], quote_via=quote)
    return parts._replace(scheme="postgresql", query=query).geturl(), schema
