"""Makes PyIceberg's catalog and the root of its store from settings. The only place that does."""

from __future__ import annotations

import os
from pathlib import Path

from pyiceberg.catalog import Catalog
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from calve.errors import Denied, InvalidSettings, NotFound
from calve.paths import local_directory
from calve.settings import Settings
from calve.tables import memory_store
from calve.tables.sql import IN_MEMORY, EngineCatalog, sqlite_engine


def require_lake(settings: Settings) -> None:
    """Refuse a lake whose catalog is a file that does not exist, instead of making an empty one."""
    file = _sqlite_file(settings)
    if file is not None and not file.exists():
        raise NotFound(
            f"there is no lake in {settings.data}",
            hint="name its directory with --data, or make one by creating a table",
        )


def warehouse_url(settings: Settings) -> str:
    """The URL below which all tables lie."""
    dsn = str(settings.storage.dsn)
    if dsn.startswith(f"{memory_store.SCHEME}://"):
        return memory_store.own_warehouse(dsn)
    if local_directory(dsn):
        return dsn
    raise InvalidSettings(
        f"storage.dsn: {dsn} is a kind of store that this version cannot open",
        hint="use file:///directory or memory://",
    )


def connect_catalog(settings: Settings, warehouse: str) -> Catalog:
    """PyIceberg's catalog. What is missing is made, after all that can be refused was."""
    properties = {**settings.storage.properties, **settings.catalog.properties}
    properties["warehouse"] = warehouse
    if warehouse.startswith(f"{memory_store.SCHEME}://"):
        properties["py-io-impl"] = memory_store.FILE_IO
    match settings.catalog.type:
        case "sql":
            return _sql_catalog(settings, properties)
        case "memory":
            _make_store(warehouse)
            return EngineCatalog(settings.catalog.name, sqlite_engine(IN_MEMORY), **properties)
        case other:
            raise InvalidSettings(
                f"catalog.type: {other!r} is a kind of catalog that this version cannot open",
                hint="use sql or memory",
            )


def _sqlite_file(settings: Settings) -> Path | None:
    if settings.catalog.type != "sql":
        return None
    url = _database_url(settings)
    in_file = url.get_backend_name() == "sqlite" and url.database not in {None, "", ":memory:"}
    return Path(str(url.database)) if in_file else None


def _sql_catalog(settings: Settings, properties: dict[str, str]) -> Catalog:
    url = _database_url(settings)
    if url.get_backend_name() != "sqlite":
        raise InvalidSettings(
            f"catalog.uri: {settings.catalog.uri} is a database that this version cannot open",
            hint="use sqlite:////absolute/path/catalog.db",
        )
    _make_store(properties["warehouse"])
    if file := _sqlite_file(settings):
        make_directory(file.parent, purpose="catalog.uri")
    uri = url.render_as_string(hide_password=False)
    return EngineCatalog(settings.catalog.name, sqlite_engine(url), uri=uri, **properties)


def _database_url(settings: Settings) -> URL:
    assert settings.catalog.uri is not None
    try:
        return make_url(settings.catalog.uri.reveal())
    except ArgumentError as error:
        raise InvalidSettings(
            f"catalog.uri: {settings.catalog.uri} is not a database URL",
            hint="write sqlite:////absolute/path/catalog.db",
        ) from error


def _make_store(warehouse: str) -> None:
    if directory := local_directory(warehouse):
        make_directory(directory, purpose="storage.dsn")


def make_directory(path: Path, *, purpose: str) -> None:
    """Make a directory that only its owner reads, or say which setting names a bad one."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidSettings(
            f"{purpose}: {path} is not a directory", hint="name a directory, or a new path"
        ) from error
    except OSError as error:
        raise _not_writable(path, purpose) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _not_writable(path, purpose)


def _not_writable(path: Path, purpose: str) -> Denied:
    return Denied(
        f"{purpose}: {path} cannot be written",
        hint="change its permissions, or name another directory (--data)",
    )
