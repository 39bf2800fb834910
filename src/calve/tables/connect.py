"""Makes PyIceberg's catalog and the root of its store from settings. The only place that does."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from pyiceberg.catalog import Catalog
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from calve.errors import Denied, InvalidSettings, NotFound
from calve.parts import load_part
from calve.paths import local_directory, make_private
from calve.settings import Settings
from calve.tables.catalogs.sql import EngineCatalog
from calve.tables.catalogs.sqlite import IN_MEMORY, sqlite_engine
from calve.tables.stores import local, memory, s3

_URI_HINT: Final = "write sqlite:////absolute/path/catalog.db or postgresql://user@host/database"


def require_lake(settings: Settings) -> None:
    """Refuse a lake whose catalog is a file that does not exist, instead of making an empty one."""
    file = _sqlite_file(settings)
    if file is not None and not _is_there(file):
        raise NotFound(
            f"there is no lake in {settings.data}",
            hint="name its directory with --data, or make one by creating a table",
        )


def warehouse_url(settings: Settings) -> str | None:
    """The URL below which all tables lie; None where the catalog's server chooses their places."""
    dsn = settings.storage.dsn
    return memory.own_warehouse(dsn) if dsn and dsn.startswith(f"{memory.SCHEME}://") else dsn


def connect_catalog(settings: Settings, warehouse: str | None, *, create: bool = True) -> Catalog:
    """PyIceberg's catalog. What is missing is made, after all that can be refused was."""
    properties = {
        **_store_properties(settings, warehouse),
        **settings.storage.properties,
        **settings.catalog.properties,
    }
    if settings.catalog.type == "rest":
        return _rest_catalog(settings, properties)
    assert warehouse is not None
    properties["warehouse"] = warehouse
    match settings.catalog.type:
        case "sql":
            return _sql_catalog(settings, properties, create=create)
        case "memory":
            _make_store(warehouse)
            engine = sqlite_engine(IN_MEMORY)
            return EngineCatalog(settings.catalog.name, engine, properties, retry=settings.retry)
        case "glue":
            return _glue_catalog(settings, properties)


def _store_properties(settings: Settings, warehouse: str | None) -> dict[str, str]:
    if warehouse and warehouse.startswith(f"{memory.SCHEME}://"):
        return {"py-io-impl": memory.FILE_IO}
    # Where the server chooses, it may well choose S3.
    if warehouse is None or warehouse.startswith(f"{s3.SCHEME}://"):
        return s3.store_properties(settings.storage)
    return {} if local_directory(warehouse) is None else {"py-io-impl": local.FILE_IO}


def _sqlite_file(settings: Settings) -> Path | None:
    if settings.catalog.type != "sql":
        return None
    url = _database_url(settings)
    in_file = url.get_backend_name() == "sqlite" and url.database not in {None, "", ":memory:"}
    return Path(str(url.database)) if in_file else None


def _sql_catalog(settings: Settings, properties: dict[str, str], *, create: bool) -> Catalog:
    url = _database_url(settings)
    match url.get_backend_name():
        case "sqlite":
            # First, so that the directory above the catalog's file is its owner's alone.
            _make_store(properties["warehouse"])
            if file := _sqlite_file(settings):
                make_directory(file.parent, purpose="catalog.uri")
            engine = sqlite_engine(url)
        case "postgresql" | "postgres":
            postgres = load_part("postgres", "calve.tables.catalogs.postgres")
            engine = postgres.postgres_engine(url, settings.catalog.pool)
        case other:
            raise InvalidSettings(
                f"catalog.uri: {settings.catalog.uri} is a database of the unknown kind {other}",
                hint=_URI_HINT,
            )
    try:
        if create:
            _make_store(properties["warehouse"])
        return EngineCatalog(
            settings.catalog.name, engine, properties, retry=settings.retry, create=create
        )
    except BaseException:
        # Nobody else knows the engine yet, and its pool has threads.
        engine.dispose()
        raise


def _database_url(settings: Settings) -> URL:
    assert settings.catalog.uri is not None
    try:
        return make_url(settings.catalog.uri.reveal())
    except (ArgumentError, ValueError) as error:  # the second for a port that is no number
        raise InvalidSettings(
            f"catalog.uri: {settings.catalog.uri} is not a database URL", hint=_URI_HINT
        ) from error


def _rest_catalog(settings: Settings, properties: dict[str, str]) -> Catalog:
    if settings.catalog.uri is None:
        raise InvalidSettings(
            "catalog.uri: a REST catalog needs the address of its server",
            hint='write catalog.uri = "https://host/path", without the /v1',
        )
    bundle = properties.get("ssl.cabundle")
    if bundle and not Path(bundle).is_file():
        raise NotFound(
            f"catalog.properties.ssl.cabundle: there is no file {bundle}",
            hint="name the PEM file of the server's CA by its absolute path",
        )
    # Loading it costs what only users of a REST catalog should pay.
    from calve.tables.catalogs.rest import CalveRestCatalog

    return CalveRestCatalog(
        settings.catalog.name,
        retry=settings.retry,
        signing_session=_signing_session(settings, properties),
        uri=settings.catalog.uri.reveal(),
        **properties,
    )


def _signing_session(settings: Settings, properties: dict[str, str]) -> object | None:
    """Who signs the requests, if they are to be signed."""
    if properties.get("rest.sigv4-enabled", "").lower() != "true":
        return None
    aws = load_part("aws", "calve.tables.aws")
    return aws.signing_session(settings.storage)  # type: ignore[no-any-return]


def _glue_catalog(settings: Settings, properties: dict[str, str]) -> Catalog:
    glue = load_part("aws", "calve.tables.catalogs.glue")
    catalog: Catalog = glue.glue_catalog(settings, properties)
    _make_store(properties["warehouse"])
    return catalog


def _make_store(warehouse: str) -> None:
    if directory := local_directory(warehouse):
        make_directory(directory, purpose="storage.dsn")


def make_directory(path: Path, *, purpose: str) -> None:
    """Make a directory that only its owner reads, or say which setting names a bad one."""
    try:
        make_private(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidSettings(
            f"{purpose}: {path} is not a directory", hint="name a directory, or a new path"
        ) from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _too_long(path, purpose) from error
        raise _not_writable(path, purpose) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _not_writable(path, purpose)


def _is_there(file: Path) -> bool:
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _too_long(file, "catalog.uri") from error
        raise Denied(
            f"catalog.uri: {file} cannot be looked at: {error.strerror}",
            hint="change the permissions above it, or name another directory (--data)",
        ) from error
    return True


def _too_long(path: Path, purpose: str) -> InvalidSettings:
    return InvalidSettings(
        f"{purpose}: {path} has a name that is too long for this file system",
        hint="name a directory with a shorter path (--data)",
    )


def _not_writable(path: Path, purpose: str) -> Denied:
    return Denied(
        f"{purpose}: {path} cannot be written",
        hint="change its permissions, or name another directory (--data)",
    )
