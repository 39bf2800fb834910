"""How a table's files are reached, as plain data for an engine that brings its own client.

Credentials are those the table's own file access has at this moment: from settings, a profile, a
role, or handed out by the catalog for this table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pyiceberg.io import (
    AWS_ACCESS_KEY_ID,
    AWS_REGION,
    AWS_ROLE_ARN,
    AWS_SECRET_ACCESS_KEY,
    AWS_SESSION_TOKEN,
    S3_ACCESS_KEY_ID,
    S3_ANONYMOUS,
    S3_ENDPOINT,
    S3_FORCE_VIRTUAL_ADDRESSING,
    S3_REGION,
    S3_ROLE_ARN,
    S3_SECRET_ACCESS_KEY,
    S3_SESSION_TOKEN,
    S3_SIGNER,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Properties

from calve.errors import MissingPart
from calve.settings import StorageSettings
from calve.tables.stores import s3

_LOCAL: Final = frozenset({"", "file"})
_S3: Final = frozenset({"s3", "s3a", "s3n"})


@dataclass(frozen=True, slots=True)
class S3Keys:
    endpoint: str | None
    region: str | None
    key_id: str | None
    secret: str | None = field(repr=False)
    token: str | None = field(repr=False)
    is_path_style: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """The directories of one table, and the keys to them if it is not on a local disk."""

    directories: tuple[str, ...]
    s3: S3Keys | None = None


def access_to(table: Table) -> Access | None:
    """None where only the table's own file access can open its files."""
    metadata = table.metadata_location.rpartition("/")[0]
    directories = tuple(sorted({place.rstrip("/") + "/" for place in (table.location(), metadata)}))
    schemes = {urlsplit(place).scheme for place in directories}
    if schemes <= _LOCAL:
        return Access(directories)
    if schemes <= _S3:
        keys = _s3_keys(table)
        return Access(directories, keys) if keys else None
    return None


def _s3_keys(table: Table) -> S3Keys | None:
    given = table.io.properties
    if given.get(S3_SIGNER) or given.get(S3_ROLE_ARN) or given.get(AWS_ROLE_ARN):
        return None
    held = _held(table)
    if held is None:
        return None
    key_id, secret, token = held
    return S3Keys(
        endpoint=given.get(S3_ENDPOINT),
        region=given.get(S3_REGION) or given.get(AWS_REGION),
        key_id=key_id,
        secret=secret,
        token=token,
        is_path_style=given.get(S3_FORCE_VIRTUAL_ADDRESSING, "").lower() != "true",
    )


def _held(table: Table) -> tuple[str | None, str | None, str | None] | None:
    """Key, secret and token; nothing in them for a store that is open to everybody."""
    # A local table need not wait for it.
    from calve.tables.stores.s3_files import RenewingFileIO

    given = table.io.properties
    if given.get(S3_ANONYMOUS, "").lower() == "true":
        return None, None, None
    if isinstance(table.io, RenewingFileIO) and (own := table.io.own_credentials()):
        return own
    key_id = given.get(S3_ACCESS_KEY_ID) or given.get(AWS_ACCESS_KEY_ID)
    secret = given.get(S3_SECRET_ACCESS_KEY) or given.get(AWS_SECRET_ACCESS_KEY)
    if key_id and secret:
        return key_id, secret, given.get(S3_SESSION_TOKEN) or given.get(AWS_SESSION_TOKEN)
    return _of_machine(given)


def _of_machine(given: Properties) -> tuple[str, str, str | None] | None:
    try:
        return s3.machine_credentials(StorageSettings(region=given.get(S3_REGION)))
    except MissingPart:
        return None
