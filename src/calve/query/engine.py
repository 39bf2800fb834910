"""A DuckDB that reads Iceberg and downloads nothing: its extensions come as packages."""

from __future__ import annotations

import importlib.resources
from typing import Final

import duckdb

from calve.errors import Corruption, MissingPart

_EXTENSIONS: Final = ("avro", "iceberg")


def connect() -> duckdb.DuckDBPyConnection:
    """A new in-memory DuckDB that can `iceberg_scan` and fetches nothing by itself."""
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )
    for name in _EXTENSIONS:
        _load(connection, name)
    return connection


def _load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    try:
        home = importlib.resources.files(f"duckdb_extension_{name}")
    except ModuleNotFoundError as error:
        raise MissingPart(
            f"DuckDB's extension {name!r} is not installed", hint="reinstall Calve"
        ) from error
    file = home / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
    try:
        connection.load_extension(str(file))
    except duckdb.Error as error:
        raise Corruption(
            f"DuckDB's extension {name!r} does not load: {str(error).splitlines()[0]}",
            hint="reinstall Calve; its packages duckdb and duckdb-extension-* must be one version",
        ) from error
