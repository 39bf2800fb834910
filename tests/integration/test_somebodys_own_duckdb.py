"""A DuckDB that knows nothing of Calve opens a table by its directory, now and at a snapshot."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import duckdb
import pyarrow as pa

from calve.lake import Lake

USERS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def own_duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        home = importlib.resources.files(f"duckdb_extension_{name}")
        file = home / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        connection.load_extension(str(file))
    return connection


def test_a_table_is_opened_by_its_directory(lake: Lake) -> None:
    table = lake.catalog.create_table("users", USERS)
    for number in range(3):
        table.append(pa.table({"id": [number], "name": [f"n{number}"]}, schema=USERS))
    directory = Path(lake.settings.data, "users")
    first = table.metadata.snapshots[0].snapshot_id
    with own_duckdb() as connection:
        found = connection.execute(f"SELECT id FROM iceberg_scan('{directory}') ORDER BY id")
        assert found.fetchall() == [(0,), (1,), (2,)]
        found = connection.execute(
            f"SELECT id FROM iceberg_scan('{directory}', snapshot_from_id={first}) WHERE id < 5"
        )
        assert found.fetchall() == [(0,)]
