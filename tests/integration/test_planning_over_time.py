"""The files to read are right for old snapshots and after a schema has changed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, LongType, StringType

from calve.condition import parse_condition
from calve.lake import Lake
from calve.tables.condition_columns import condition_columns
from calve.tables.planning import files_to_read


def ids(table: Table, text: str, snapshot_id: int | None = None) -> list[int]:
    """The ids in the files that are kept."""
    schema = table.scan(snapshot_id=snapshot_id).projection()
    condition = parse_condition(text, condition_columns(schema))
    tasks = files_to_read(table, condition, snapshot_id=snapshot_id)
    paths = [task.file.file_path.removeprefix("file://") for task in tasks]
    return sorted(
        n for path in paths for n in pq.read_table(path, columns=["id"])["id"].to_pylist()
    )


def test_files_are_skipped(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int32()), ("name", pa.string())])
    table = lake.catalog.create_table("t", schema)
    assert ids(table, "id = 1") == []
    for number, name in enumerate(["ada", "bob", None]):
        table.append(
            pa.table({"id": pa.array([number], pa.int32()), "name": [name]}, schema=schema)
        )
    assert ids(table, "id >= 1") == [1, 2]
    assert ids(table, "name LIKE 'a%'") == [0]
    assert ids(table, "NOT name LIKE 'a%'") == [0, 1]
    assert ids(table, "name IS NULL") == [2]
    assert ids(table, "id IN (0, 2) AND name IS NOT NULL") == [0]
    assert ids(table, "id > 1.5") == [2]
    assert ids(table, "false") == []
    assert ids(table, "lower(name) = 'ada'") == [0, 1, 2]


def test_a_name_that_was_given_to_another_column_means_each_snapshots_own(lake: Lake) -> None:
    table = lake.catalog.create_table("t", pa.schema([("id", pa.int64()), ("a", pa.int64())]))
    table.append(pa.table({"id": [1], "a": [10]}))
    table.append(pa.table({"id": [2], "a": [20]}))
    old = table.current_snapshot()
    assert old is not None
    with table.update_schema() as update:
        update.delete_column("a")
    with table.update_schema() as update:
        update.add_column("a", StringType())
    table.append(pa.table({"id": [3], "a": ["x"]}))
    assert ids(table, "a = 10", old.snapshot_id) == [1]
    assert ids(table, "a = 'x'") == [1, 2, 3]
    assert ids(table, "a = 'y'") == [1, 2]


def test_files_of_a_narrower_type_are_kept_where_they_match(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("i", pa.int32()), ("f", pa.float32())])
    table = lake.catalog.create_table("t", schema)
    table.append(pa.Table.from_pylist([{"id": 1, "i": 5, "f": 0.5}], schema=schema))
    with table.update_schema() as update:
        update.update_column("i", LongType())
        update.update_column("f", DoubleType())
    wide = pa.schema([("id", pa.int64()), ("i", pa.int64()), ("f", pa.float64())])
    table.append(pa.Table.from_pylist([{"id": 2, "i": 2**40, "f": 0.1}], schema=wide))
    assert ids(table, "i = 5") == [1]
    assert ids(table, "i > 2147483647") == [2]
    assert ids(table, "f = 0.5") == [1]
    assert ids(table, "f < 0.2") == [2]
