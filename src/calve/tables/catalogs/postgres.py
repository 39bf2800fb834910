"""An engine for PostgreSQL whose connections come from psycopg's pool.

The pool keeps the bounds of `[catalog.pool]` in the background: its minimum open from the start,
idle ones above it closed, old ones replaced, waits ended at the time-out. Every wait for the
server's answer is bounded too, so that a server which falls silent is an error and not a hang.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from calve.errors import CalveError, Denied, InvalidSettings, NotFound, Unavailable
from calve.settings import PoolSettings, mask_url
from calve.tables.catalogs.sql import POOL_OPTION

_ANSWER_SECONDS_MAX: Final = 30.0


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up on a server which does not answer.

    Broken, it goes back to its pool when it is closed, as a good one does: psycopg itself leaves a
    closed connection out, and the pool would count it as lent for ever.
    """

    def close(self) -> None:
        pool: ConnectionPool[BoundedConnection] | None = getattr(self, "_pool", None)
        if pool is not None and self.closed:
            pool.putconn(self)
        else:
            super().close()

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, timeout or _ANSWER_SECONDS_MAX)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001
            # What was asked may still be carried out; this connection can tell nothing more.
            self.pgconn.finish()
            raise psycopg.OperationalError(
                f"the server did not answer within {_ANSWER_SECONDS_MAX:.0f} s"
            ) from error


def postgres_engine(url: URL, settings: PoolSettings) -> Engine:
    """Connect by hand to learn what is wrong, if anything; then open the pool."""
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    timeout_seconds = settings.connection_timeout_ms / 1000
    arguments = {
        # libpq takes whole seconds and reads 1 as 2.
        "connect_timeout": max(2, round(timeout_seconds)),
        "application_name": "calve",
    }
    _try(address, arguments, connections=max(1, settings.min_connections))
    pool = ConnectionPool(
        address,
        connection_class=BoundedConnection,
        kwargs=arguments,
        min_size=settings.min_connections,
        max_size=settings.max_connections,
        timeout=timeout_seconds,
        max_idle=settings.idle_timeout_seconds,
        max_lifetime=settings.max_lifetime_seconds,
        check=ConnectionPool.check_connection,
        close_returns=True,
        open=False,
        name="calve-catalog",
    )
    _open(pool, settings, seconds_max=timeout_seconds + _ANSWER_SECONDS_MAX)
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        creator=lambda: _take(pool, settings, address, arguments),
        poolclass=NullPool,
        execution_options={POOL_OPTION: pool},
    )
    event.listen(engine, "engine_disposed", lambda _: pool.close())
    return engine


def _open(
    pool: ConnectionPool[BoundedConnection], settings: PoolSettings, *, seconds_max: float
) -> None:
    try:
        pool.open(wait=True, timeout=seconds_max)
    except PoolTimeout as error:
        raise Unavailable(
            f"catalog.pool.min_connections: PostgreSQL opened fewer than "
            f"{settings.min_connections} connections within {seconds_max:.0f} s",
            hint="lower catalog.pool.min_connections, or see what keeps the server busy",
        ) from error


def _take(
    pool: ConnectionPool[BoundedConnection],
    settings: PoolSettings,
    address: str,
    arguments: dict[str, Any],
) -> BoundedConnection:
    """A connection from the pool, or why there is none."""
    try:
        return pool.getconn()
    except PoolTimeout as error:
        if pool.get_stats().get("pool_size", 0) < settings.max_connections:
            # The pool could open more and did not: the server itself says why.
            _try(address, arguments, connections=1)
        raise Unavailable(
            f"no connection to the catalog came free within {settings.connection_timeout_ms} ms; "
            f"all {settings.max_connections} are in use",
            hint="raise catalog.pool.max_connections, or catalog.pool.connection_timeout_ms",
        ) from error


def _try(address: str, arguments: dict[str, Any], *, connections: int) -> None:
    """Have so many connections at once; the pool would only wait for one that is refused."""
    shown = mask_url(address)
    with ExitStack() as held:
        for opened in range(connections):
            try:
                connection = held.enter_context(BoundedConnection.connect(address, **arguments))
                connection.execute("select 1")
            except psycopg.OperationalError as error:
                if opened == 0:
                    raise _refusal(error, shown) from error
                raise Unavailable(
                    f"catalog.pool.min_connections: PostgreSQL at {shown} gave {opened} of "
                    f"{connections} connections: {_said(error)}",
                    hint="lower it, or raise the connection limit of the user, the database or "
                    "the server",
                ) from error
            except psycopg.ProgrammingError as error:
                raise InvalidSettings(
                    f"catalog.uri: {shown} is not an address that PostgreSQL takes: "
                    f"{mask_url(_said(error))}",
                    hint="write postgresql://user:password@host:5432/database, and after a ? only "
                    "parameters of libpq, such as sslmode=require",
                ) from error


def _refusal(error: psycopg.OperationalError, shown: str) -> CalveError:
    text, said = str(error), _said(error)
    if "authentication failed" in text or "no password supplied" in text or "pg_hba" in text:
        return Denied(
            f"PostgreSQL at {shown} refused the login: {said}",
            hint="check user and password in catalog.uri, or catalog.uri_file",
        )
    if "does not exist" in text:
        return NotFound(
            f"PostgreSQL at {shown}: {said}", hint="create it, or name another in catalog.uri"
        )
    return Unavailable(
        f"PostgreSQL at {shown} cannot be reached: {said}",
        hint="check host and port in catalog.uri, and that the server runs",
    )


def _said(error: psycopg.Error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
