"""Errors of PyIceberg, SQLAlchemy and the stores, as the errors of Calve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import requests
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
    UnknownOutcome,
)
from calve.settings import mask_url

_DAMAGED = re.compile(r"not a database|malformed|disk image")
_UNREADABLE = re.compile(r"unable to open database file|readonly database")

_NO_ACCESS = re.compile(
    r"(?i)access.?denied|invalid.?access.?key|signature.?does.?not.?match|expired.?token|no.?credentials"
    r"|unrecognizedclient|invalidclienttoken|profile .* could not be found|partial credentials"
    # S3 says nothing more about an expired token when only the head of a file was asked for.
    r"|HTTP status 40[13]|HTTP status 400\) during HeadObject"
)
_NO_BUCKET = re.compile(r"(?i)no.?such.?bucket|bucket .* does not exist")

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
    (
        iceberg.CommitStateUnknownException,
        UnknownOutcome,
        "look at the table before trying again: the commit may have happened",
    ),
    (iceberg.CommitFailedException, Conflict, "somebody else committed first; load and try again"),
    (
        (
            iceberg.UnauthorizedError,
            iceberg.ForbiddenError,
            iceberg.OAuthError,
            iceberg.AuthorizationExpiredError,
            PermissionError,
        ),
        Denied,
        "check the credentials and the permissions",
    ),
    (
        (
            sql.OperationalError,
            sql.TimeoutError,
            iceberg.ServiceUnavailableError,
            iceberg.ServerError,
            iceberg.TooManyRequestsError,
            requests.RequestException,
            ConnectionError,
            TimeoutError,
        ),
        Unavailable,
        "check that catalog and store are reachable, then try again; `calve doctor` looks at both",
    ),
    (
        (
            iceberg.ValidationError,
            iceberg.ValidationException,
            iceberg.NoSuchPropertyException,
            iceberg.RESTError,
            NotImplementedError,
        ),
        InvalidRequest,
        "",
    ),
)


def translated(error: Exception) -> CalveError | None:
    """The error as one of Calve's, or None for what only a defect in Calve can cause."""
    if isinstance(error, requests.exceptions.SSLError):
        return Denied(
            f"the server's certificate is not trusted: {_first_line(error)}",
            hint="name the file of its CA in catalog.properties.ssl.cabundle",
        )
    if special := _of_aws(error):
        return special
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


def _of_aws(error: Exception) -> CalveError | None:
    """An error of AWS's client, or of Arrow's S3, which tells its kind in words only."""
    text = _first_line(error)
    from_arrow = isinstance(error, OSError) and "AWS Error" in text
    if not from_arrow and not type(error).__module__.startswith("botocore"):
        return None
    if _NO_ACCESS.search(text):
        return Denied(
            text,
            hint="check that the credentials are right and have not expired: "
            "storage.access_key_id, profile or role_arn",
        )
    if _NO_BUCKET.search(text):
        return NotFound(text, hint="create the bucket, or name another in storage.dsn")
    return Unavailable(text, hint="check storage.endpoint and storage.region, then try again")


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
