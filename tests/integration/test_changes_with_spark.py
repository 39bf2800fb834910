"""Spark does the same changes, and sees those that Python did."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from calve.changes import (
    Change,
    Expression,
    delete_rows,
    delete_with_spark,
    insert_rows,
    update_rows,
    update_with_spark,
    upsert_rows,
    upsert_with_spark,
)
from calve.errors import InvalidRequest, NotFound
from calve.lake import Lake
from calve.manager import IcebergManager
from calve.tables.references import create_branch
from calve.tables.schemas import define_table
from tests.integration.table_kinds import delete_equal

COLUMNS = {
    "id": "long",
    "we `ird": "string",
    "d": "double",
    "f": "float",
    "n": "decimal(9, 2)",
    "ts": "timestamp",
    "tz": "timestamptz",
    "u": "uuid",
    "l": "list<int>",
}
STAMP = dt.datetime(2024, 2, 29, 12, 30, 0, 1)  # noqa: DTZ001


def row(number: int, **values: Any) -> dict[str, Any]:
    return {
        "id": number,
        "we `ird": f"r{number}",
        "d": math.nan if number % 2 else 0.5,
        "f": math.nan if number % 2 else 0.5,
        "n": Decimal(number),
        "ts": STAMP,
        "tz": STAMP.replace(tzinfo=dt.UTC),
        "u": None,
        "l": [number],
        **values,
    }


def seen(lake: Lake, table: str = "t") -> list[str]:
    found = lake.catalog.load_table(table).scan().to_arrow().to_pylist()
    return sorted(map(repr, found))


def make(lake: Lake, *names: str) -> None:
    defined = define_table(COLUMNS, partition_by=["bucket(2, id)"])
    for name in names:
        lake.catalog.create_table(name, defined.schema, partition_spec=defined.partition_spec)
        insert_rows(lake.catalog, name, [row(n) for n in range(6)])


def test_spark_and_python_change_alike(spark_lake: Lake) -> None:
    make(spark_lake, "own", "sparks")
    spark, catalog = spark_lake.spark(), spark_lake.catalog

    def both(own: Change, sparks: Change) -> None:
        assert seen(spark_lake, "own") == seen(spark_lake, "sparks")
        head = catalog.load_table("sparks").metadata.current_snapshot_id
        assert sparks.snapshot_id == head
        assert sparks.operation == own.operation

    own = delete_rows(catalog, "own", "d > 1 AND f > 1 AND id < 2")
    sparks = delete_with_spark(catalog, spark, "sparks", "d > 1 AND f > 1 AND id < 2")
    both(own, sparks)
    assert sparks.deleted_rows == own.deleted_rows == 1
    updates: dict[str, object] = {
        "we `ird": "it's",
        "id": Expression("id + 100"),
        "d": Expression("id"),
        "n": Decimal("1.25"),
    }
    both(
        update_rows(catalog, "own", updates, "id >= 4"),
        update_with_spark(catalog, spark, "sparks", updates, "id >= 4"),
    )
    data = [row(0), row(2, d=7.0, u="00000000-0000-0000-0000-000000000007"), row(9)]
    own = upsert_rows(catalog, "own", data, ["id"])
    sparks = upsert_with_spark(catalog, spark, "sparks", data, ["id"])
    both(own, sparks)
    assert sparks.inserted_rows == own.inserted_rows == 1
    # Spark makes a snapshot even so.
    assert delete_with_spark(catalog, spark, "sparks", "id = 77").deleted_rows == 0


def test_spark_writes_to_branches(spark_lake: Lake) -> None:
    make(spark_lake, "t")
    create_branch(spark_lake.catalog.load_table("t"), "b")
    before = seen(spark_lake)
    change = delete_with_spark(spark_lake.catalog, spark_lake.spark(), "t", "id < 3", branch="b")
    assert (change.branch, change.deleted_rows) == ("b", 3)
    assert seen(spark_lake) == before
    with pytest.raises(NotFound):
        delete_with_spark(spark_lake.catalog, spark_lake.spark(), "t", "true", branch="nope")


def test_keys_are_checked_for_spark_too(spark_lake: Lake) -> None:
    make(spark_lake, "t")
    with pytest.raises(InvalidRequest, match="same key"):
        upsert_with_spark(spark_lake.catalog, spark_lake.spark(), "t", [row(1), row(1)], ["id"])


EQUAL_COLUMNS = {"id": "long", "name": "string"}


def make_with_equality_deletes(lake: Lake) -> None:
    """Rows 0 to 5, of which 1 and 4 are deleted by their id, and 4 is inserted once more."""
    lake.catalog.create_table("t", define_table(EQUAL_COLUMNS).schema)
    for numbers in ([0, 1, 2], [3, 4, 5]):
        insert_rows(lake.catalog, "t", [{"id": n, "name": f"r{n}"} for n in numbers])
    delete_equal(lake, "id", pa.int64(), 1, [1, 4])
    insert_rows(lake.catalog, "t", [{"id": 4, "name": "again"}])


def told(lake: Lake) -> list[tuple[int, str | None]]:
    return sorted((row["id"], row["name"]) for row in lake.tables.query_table("t"))


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda tables: tables.delete_data("t", "id IN (1, 2, 4)", engine="spark"),
         [(0, "r0"), (3, "r3"), (5, "r5")]),
        (lambda tables: tables.update_data("t", {"name": "new"}, "id < 5", engine="spark"),
         [(0, "new"), (2, "new"), (3, "new"), (4, "new"), (5, "r5")]),
        (lambda tables: tables.upsert_data(
            "t", [{"id": 1, "name": "one"}, {"id": 2}, {"id": 4, "name": "four"}], ["id"],
            engine="spark"),
         [(0, "r0"), (1, "one"), (2, "r2"), (3, "r3"), (4, "four"), (5, "r5")]),
    ],
    ids=["delete", "update", "upsert"],
)  # fmt: skip
def test_spark_changes_a_table_with_equality_deletes(
    spark_lake: Lake, work: Callable[[IcebergManager], Change], expected: list[tuple[int, str]]
) -> None:
    make_with_equality_deletes(spark_lake)
    with pytest.raises(InvalidRequest, match="equality deletes"):
        spark_lake.tables.delete_data("t", "id = 0")
    assert told(spark_lake) == [(0, "r0"), (2, "r2"), (3, "r3"), (4, "again"), (5, "r5")]
    change = work(spark_lake.tables)
    assert change.snapshot_id == spark_lake.tables.list_snapshots("t")[-1].id
    assert told(spark_lake) == expected
    # Spark counts rows of files, also those that were deleted before.
    counts = {"delete": (0, None), "update": (0, 0), "upsert": (None, 0)}
    assert (change.inserted_rows, change.deleted_rows) == counts[change.operation]
