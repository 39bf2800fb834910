"""Errors of PyIceberg, SQLAlchemy and the stores, as the errors of Calve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg import exceptions as iceberg
from sqlalchemy import exc as sql

from calve.errors import (
    CalveError,
    Conflict,
    Corruption,
    Denied,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from calve.settings import mask_url

_DAMAGED = re.compile(r"not a database|malformed|disk image")
_UNREADABLE = re.compile(r"unable to open database file|readonly database")

_KINDS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[CalveError], str], ...] = (
    (
        (iceberg.NoSuchTableError, iceberg.NoSuchNamespaceError, iceberg.NoSuchIdentifierError),
        NotFound,
        "`calve table list` shows what there is",
    ),
    (
        (iceberg.TableAlreadyExistsError, iceberg.NamespaceAlreadyExistsError),
        Conflict,
        "choose another name, or use the one that exists",
    ),
    (iceberg.CommitFailedException, Conflict, "somebody else committed first; load and try again"),
    (
        (iceberg.UnauthorizedError, iceberg.ForbiddenError, PermissionError),
        Denied,
        "check the credentials and the permissions",
    ),
    (
        (sql.OperationalError, sql.TimeoutError, ConnectionError, TimeoutError),
        Unavailable,
        "check that catalog and store are reachable, then try again; `calve doctor` looks at both",
    ),
    (
        (iceberg.ValidationError, iceberg.NoSuchPropertyException, NotImplementedError),
        InvalidRequest,
        "",
    ),
)


def translated(error: Exception) -> CalveError | None:
    """The error as one of Calve's, or None for what only a defect in Calve can cause."""
    if isinstance(error, sql.DatabaseError) and _DAMAGED.search(str(error)):
        return Corruption(
            mask_url(_first_line(error)),
            hint="restore the catalog's database from a copy; the tables' files are not affected",
        )
    if isinstance(error, sql.OperationalError) and _UNREADABLE.search(str(error)):
        return Denied(
            mask_url(_first_line(error)), hint="check the permissions of the catalog's database"
        )
    for kinds, translation, hint in _KINDS:
        if isinstance(error, kinds):
            return translation(mask_url(_first_line(error)), hint=hint or None)
    return None


@contextmanager
def translating() -> Iterator[None]:
    """Raise what happens inside as an error of Calve."""
    try:
        yield
    except CalveError:
        raise
    except Exception as error:
        translation = translated(error)
        if translation is None:
            raise
        raise translation from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
