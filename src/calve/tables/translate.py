"""Errors of PyIceberg, SQLAlchemy and the stores, as the errors of Calve."""

from __future__ import annotations

import errno
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from gzip import BadGzipFile
from typing import TYPE_CHECKING, Any, Final

from pyiceberg import exceptions as iceberg
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import SortOrder
from sqlalchemy import exc as sql

from calve.errors import (
    CalveError,
    Conflict,
    Corruption,
    Denied,
    InvalidRequest,
    InvalidSettings,
    NotFound,
    Unavailable,
    UnknownOutcome,
)
from calve.settings import mask_url

if TYPE_CHECKING:
    import pyarrow as pa

_DAMAGED = re.compile(r"not a database|malformed|disk image")
_UNREADABLE = re.compile(r"unable to open database file|readonly database")

_NO_ACCESS = re.compile(
    r"(?i)access.?denied|invalid.?access.?key|signature.?does.?not.?match|expired.?token|no.?credentials"
    r"|unrecognizedclient|invalidclienttoken|profile .* could not be found|partial credentials"
    # S3 says nothing more about an expired token when only the head of a file was asked for.
    r"|HTTP status 40[13]|HTTP status 400\) during HeadObject"
)
_NO_BUCKET = re.compile(r"(?i)no.?such.?bucket|bucket .* does not exist")
_NO_PRIVILEGE = re.compile(r"(?i)permission denied|must be owner|insufficient.?privilege")
_TABLE_FILE = re.compile(r"\.(json|json\.gz|avro|parquet|orc|puffin)\b")

_UNREACHED: Final = (
    "check that catalog and store are reachable, then try again; `calve doctor` looks at both"
)
# Numbers of a system call that a disk fails with, whoever writes to it.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_UNFIT: Final = frozenset({errno.EIO, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ESTALE})
_RESTORE: Final = "restore the file from a copy of the store; the catalog itself is not affected"

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
            ConnectionError,
            TimeoutError,
        ),
        Unavailable,
        _UNREACHED,
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
    if special := _of_http(error) or _of_aws(error) or _of_answer(error) or _of_file(error):
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
    if isinstance(error, sql.DBAPIError) and _NO_PRIVILEGE.search(str(error)):
        return Denied(
            mask_url(_first_line(error)),
            hint="let the owner of the catalog's database grant this user the right: to make a "
            "lake, CREATE on its schema; to use one, SELECT, INSERT, UPDATE and DELETE",
        )
    for kinds, translation, hint in _KINDS:
        if isinstance(error, kinds):
            return translation(mask_url(_first_line(error)), hint=hint or None)
    return _of_disk(error)


def _of_http(error: Exception) -> CalveError | None:
    """An error of the client for HTTP, which no lake but one with a server loads."""
    if not isinstance(error, OSError):
        return None
    import requests

    if isinstance(error, requests.exceptions.SSLError):
        return Denied(
            f"the server's certificate is not trusted: {_first_line(error)}",
            hint="name the file of its CA in catalog.properties.ssl.cabundle",
        )
    if isinstance(error, requests.RequestException):
        return Unavailable(mask_url(_first_line(error)), hint=_UNREACHED)
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


def _of_answer(error: Exception) -> CalveError | None:
    """An answer that PyIceberg could not read. Never its text, which can hold an access token."""
    title = str(getattr(error, "title", ""))
    if not _is_pydantic(error) or not title.endswith("Response"):
        return None
    if title == "TokenResponse":
        return InvalidSettings(
            "the token endpoint's answer is not an OAuth2 token; "
            "what answers there is not an Iceberg REST catalog's login",
            hint="check catalog.properties.oauth2-server-uri, or catalog.uri if that is not set",
        )
    if title == "ConfigResponse":
        return InvalidSettings(
            "what answers at catalog.uri is not an Iceberg REST catalog",
            hint="check the address: the server's, with its path, without the /v1",
        )
    if title == "CommitTableResponse":
        return UnknownOutcome(
            "the catalog's server answered a commit with something that cannot be read",
            hint="look at the table before trying again: the commit may have happened",
        )
    return Unavailable(
        f"the answer of the catalog's server is not an Iceberg REST catalog's {title}",
        hint="look for a proxy in between; if there is none, the server is not one that "
        "PyIceberg understands",
    )


def _of_file(error: Exception) -> CalveError | None:
    """A file of a table that is missing or cannot be read, where the catalog did not name it."""
    if isinstance(error, FileNotFoundError) and _TABLE_FILE.search(str(error)):
        return Corruption(f"a file of the table is missing: {_first_line(error)}", hint=_RESTORE)
    if isinstance(error, iceberg.ValidationError) and _is_pydantic(error.__cause__):
        return Corruption(f"the table's metadata is damaged: {_first_line(error)}", hint=_RESTORE)
    return None


def _of_disk(error: Exception) -> CalveError | None:
    """What a disk says that has no room, or is not what it was."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _FULL:
        return Unavailable(
            f"there is no room for the table's files: {_first_line(error)}",
            hint="make room where storage.dsn points to, then try again",
        )
    if number in _UNFIT:
        return Unavailable(
            f"the disk of the table's files cannot be used: {_first_line(error)}",
            hint="look at the disk and the directory that it names, then try again",
        )
    return None


def _is_pydantic(error: BaseException | None) -> bool:
    # Pydantic is PyIceberg's, not ours to import.
    return type(error).__module__.startswith("pydantic") and isinstance(error, ValueError)


@contextmanager
def reading_metadata(location: str) -> Iterator[None]:
    """Name the metadata file when it is missing or damaged."""
    try:
        yield
    except FileNotFoundError as error:
        raise Corruption(
            f"the table's metadata is missing: {location}",
            hint=_RESTORE,
            context={"file": location},
        ) from error
    # Text that is no UTF-8 and a damaged gzip are told apart from nothing else here.
    except (iceberg.ValidationError, ValueError, BadGzipFile, EOFError, zlib.error) as error:
        raise Corruption(
            f"the table's metadata is damaged: {location}: {_first_line(error)}",
            hint=_RESTORE,
            context={"file": location},
        ) from error


@contextmanager
def reading_file(what: str) -> Iterator[None]:
    """Say what is damaged where a file of a table is there and makes no sense."""
    try:
        yield
    except CalveError:
        raise
    # Avro's and Arrow's errors are ValueErrors, or OSErrors that no system call has numbered.
    except (ValueError, EOFError, zlib.error, OSError) as error:
        if translated(error) is not None or getattr(error, "errno", None) is not None:
            raise
        raise Corruption(
            f"{what} is damaged: {_first_line(error)}", hint=_RESTORE, context={"file": what}
        ) from error


def require_creatable(
    schema: Schema | pa.Schema,
    *,
    partition_spec: PartitionSpec,
    sort_order: SortOrder,
    properties: Mapping[str, str],
) -> None:
    """Refuse what no catalog would take, before anything is made.

    Works in memory on the caller's values alone, so that whatever fails here is a mistake in them.
    """
    try:
        version = int(properties.get("format-version", 2))
        new_table_metadata(
            _iceberg_schema(schema, version),
            partition_spec,
            sort_order,
            location="",
            properties=dict(properties),
        )
    except (ValueError, TypeError) as error:
        raise _not_creatable(error) from error


def _iceberg_schema(schema: Schema | pa.Schema, version: int) -> Schema:
    if isinstance(schema, Schema):
        return schema
    # Loading them waits until somebody comes with another schema.
    import pyarrow as pa
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    if not isinstance(schema, pa.Schema):
        raise InvalidRequest(
            "a table's schema is a pyarrow.Schema or a pyiceberg Schema, "
            f"not {type(schema).__name__}",
            hint='write pyarrow.schema([("id", pyarrow.int64()), …])',
        )
    try:
        return Catalog._convert_schema_if_needed(schema, version)  # type: ignore[arg-type] # noqa: SLF001
    except UnsupportedPyArrowTypeException as error:
        raise _not_creatable(error) from error


def _not_creatable(error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"the table cannot be created: {_reason(error)}",
        hint="name each column once, and cast what Iceberg has no type for: null columns to a "
        "real type, timestamps to microseconds",
    )


def _reason(error: Exception) -> str:
    """Of pydantic's many lines, the one that tells."""
    details: Any = error
    return str(details.errors()[0]["msg"]) if _is_pydantic(error) else _first_line(error)


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
        # What could not be read is kept out of tracebacks too.
        raise translation from (None if _is_pydantic(error) else error)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
