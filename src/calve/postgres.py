"""What the catalog and the state have in common on PostgreSQL: bounded waits, and clear refusals.

Needs the part `postgres`; load what uses it with `calve.parts.load_part`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from calve.errors import CalveError, Denied, InvalidSettings, NotFound, Unavailable
from calve.settings import SecretUrl, mask_texts

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

ANSWER_SECONDS_MAX: Final = 30.0


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
            return super().wait(gen, interval, timeout or ANSWER_SECONDS_MAX)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001
            # What was asked may still be carried out; this connection can tell nothing more.
            self.pgconn.finish()
            raise psycopg.OperationalError(
                f"the server did not answer within {ANSWER_SECONDS_MAX:.0f} s"
            ) from error


def connect(address: str, *, setting: str, timeout_seconds: float) -> BoundedConnection:
    """A connection that has answered once, or why there is none; `setting` has the address."""
    url = SecretUrl(address)
    shown = str(url)
    try:
        connection = BoundedConnection.connect(address, **arguments(timeout_seconds))
        try:
            connection.execute("select 1")
        except psycopg.Error:
            connection.close()
            raise
    except psycopg.OperationalError as error:
        raise refusal(error, url, setting=setting) from error
    except psycopg.ProgrammingError as error:
        raise InvalidSettings(
            f"{setting}: {shown} is not an address that PostgreSQL takes: "
            f"{mask_texts(said(error), url.hidden_texts())}",
            hint="write postgresql://user:password@host:5432/database, and after a ? only "
            "parameters of libpq, such as sslmode=require",
        ) from error
    return connection


def arguments(timeout_seconds: float) -> dict[str, Any]:
    return {
        # libpq takes whole seconds and reads 1 as 2.
        "connect_timeout": max(2, round(timeout_seconds)),
        "application_name": "calve",
    }


def refusal(error: psycopg.OperationalError, shown: SecretUrl, *, setting: str) -> CalveError:
    """Why a connection could not be made, by what the server or the library says."""
    text, words = str(error), mask_texts(said(error), shown.hidden_texts())
    if "authentication failed" in text or "no password supplied" in text or "pg_hba" in text:
        return Denied(
            f"PostgreSQL at {shown} refused the login: {words}",
            hint=f"check user and password in {setting}, or {setting}_file",
        )
    if "does not exist" in text:
        return NotFound(
            f"PostgreSQL at {shown}: {words}", hint=f"create it, or name another in {setting}"
        )
    return Unavailable(
        f"PostgreSQL at {shown} cannot be reached: {words}",
        hint=f"check host and port in {setting}, and that the server runs",
    )


def said(error: psycopg.Error) -> str:
    """The first line of it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
