"""An engine for PostgreSQL whose connections come from psycopg's pool.

The pool keeps the bounds of `[catalog.pool]` in the background: its minimum open from the start,
idle ones above it closed, old ones replaced, waits ended at the time-out. Every wait for the
server's answer is bounded too, so that a server which falls silent is an error and not a hang.
"""

from __future__ import annotations

from contextlib import ExitStack

from psycopg_pool import ConnectionPool, PoolTimeout
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from calve.errors import CalveError, Unavailable
from calve.postgres import ANSWER_SECONDS_MAX, BoundedConnection, arguments, connect
from calve.settings import PoolSettings
from calve.tables.catalogs.sql import POOL_OPTION


def postgres_engine(url: URL, settings: PoolSettings) -> Engine:
    """Connect by hand to learn what is wrong, if anything; then open the pool."""
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    address = address.replace(" ", "%20")  # which SQLAlchemy leaves as they are, and libpq refuses
    timeout_seconds = settings.connection_timeout_ms / 1000
    _try(address, timeout_seconds, connections=max(1, settings.min_connections))
    pool = ConnectionPool(
        address,
        connection_class=BoundedConnection,
        kwargs=arguments(timeout_seconds),
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
    _open(pool, settings, seconds_max=timeout_seconds + ANSWER_SECONDS_MAX)
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        creator=lambda: _take(pool, settings, address),
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
    pool: ConnectionPool[BoundedConnection], settings: PoolSettings, address: str
) -> BoundedConnection:
    """A connection from the pool, or why there is none."""
    try:
        return pool.getconn()
    except PoolTimeout as error:
        if pool.get_stats().get("pool_size", 0) < settings.max_connections:
            # The pool could open more and did not: the server itself says why.
            _try(address, settings.connection_timeout_ms / 1000, connections=1)
        raise Unavailable(
            f"no connection to the catalog came free within {settings.connection_timeout_ms} ms; "
            f"all {settings.max_connections} are in use",
            hint="raise catalog.pool.max_connections, or catalog.pool.connection_timeout_ms",
        ) from error


def _try(address: str, timeout_seconds: float, *, connections: int) -> None:
    """Have so many connections at once; the pool would only wait for one that is refused."""
    with ExitStack() as held:
        for opened in range(connections):
            try:
                held.enter_context(
                    connect(address, setting="catalog.uri", timeout_seconds=timeout_seconds)
                )
            except CalveError as error:
                if opened == 0:
                    raise
                raise Unavailable(
                    f"catalog.pool.min_connections: after {opened} of {connections} connections: "
                    f"{error.message}",
                    hint="lower it, or raise the connection limit of the user, the database or "
                    "the server",
                ) from error
