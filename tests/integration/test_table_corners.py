"""Corners of a table's life in which rows or columns could get lost without anybody noticing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from calve.changes import Expression
from calve.errors import InvalidRequest, NotFound
from calve.manager import IcebergManager
from calve.settings import load_settings

NAN = math.nan
YEAR = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[IcebergManager]:
    chosen = load_settings(flags={"data": str(tmp_path / "lake")}, environ={}).settings
    with IcebergManager(chosen) as manager:
        yield manager


def found(manager: IcebergManager, where: str | None = None) -> list[tuple[Any, ...]]:
    rows = manager.query_table("t", where).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def test_a_column_is_shown_as_soon_as_it_is_there(manager: IcebergManager) -> None:
    manager.create_table("t", {"id": "long"})
    made = manager.insert_data("t", [{"id": 1}])
    manager.create_tag("t", "before")
    manager.add_column("t", "name", "string")
    assert manager.query_table("t").columns == ["id", "name"]
    assert manager.query_table("t", branch="main").columns == ["id", "name"]
    assert found(manager, "name IS NULL") == [(1, None)]
    assert manager.query_table("t", tag="before").columns == ["id"]
    assert made.snapshot_id is not None
    assert manager.query_snapshot("t", made.snapshot_id).columns == ["id"]


@pytest.mark.parametrize("kind", ["float", "double"])
def test_upsert_finds_nan_and_zero_among_other_keys(manager: IcebergManager, kind: str) -> None:
    manager.create_table("t", {"key": kind, "n": "int"})
    manager.insert_data("t", [{"key": key, "n": 1} for key in (NAN, 0.0, 1.0, math.inf)])
    change = manager.upsert_data("t", [{"key": k, "n": 2} for k in (NAN, -0.0, 5.0)], ["key"])
    assert (change.updated_rows, change.inserted_rows) == (2, 1)
    assert sorted(map(repr, found(manager))) == sorted(
        map(repr, [(NAN, 2), (-0.0, 2), (1.0, 1), (5.0, 2), (math.inf, 1)])
    )


def test_a_time_with_a_zone_can_be_a_key(manager: IcebergManager) -> None:
    manager.create_table("t", {"at": "timestamptz", "n": "int"})
    manager.insert_data("t", [{"at": YEAR, "n": 1}])
    rows = [{"at": YEAR, "n": 2}, {"at": YEAR.replace(year=2025), "n": 2}]
    change = manager.upsert_data("t", rows, ["at"])
    assert (change.updated_rows, change.inserted_rows) == (1, 1)
    with pytest.raises(InvalidRequest, match=r"2024.*2 times"):
        manager.upsert_data("t", [rows[0], rows[0]], ["at"])


@pytest.mark.parametrize("is_lost", [False, True], ids=["by duckdb", "by pyiceberg"])
@pytest.mark.parametrize(
    "condition",
    [
        "x > 5",
        "x = 'nan'::DOUBLE",
        "seen IN ('2024-01-01 00:00:00+00', '2025-01-01 00:00:00+00')",
        "s = 'b' OR s IS NOT DISTINCT FROM 'a'",
    ],
)
def test_a_condition_means_the_same_over_arrow_rows(
    manager: IcebergManager, condition: str, is_lost: bool
) -> None:
    columns = {"p": "int", "x": "double", "seen": "timestamptz", "s": "string"}
    manager.create_table("t", columns, partition_by=["p"])
    manager.insert_data("t", [{"p": 1, "x": NAN, "seen": YEAR, "s": "a"}, {"p": 1, "x": 1.0}])
    if is_lost:
        manager.alter_partition("t", drop=["p"])
        manager.drop_column("t", "p")
    assert manager.query_table("t").engine == ("pyiceberg" if is_lost else "duckdb")
    assert [row[-1] for row in found(manager, condition)] == ["a"]
    assert len(manager.sql(f"SELECT s FROM t WHERE {condition}")) == 1
    assert len(manager.sql("SELECT t.s FROM t JOIN t AS u USING (x) WHERE t.s = 'a'")) == 1
    assert manager.update_data("t", {"s": "c"}, condition).updated_rows == 1
    assert manager.delete_data("t", "s = 'c'").deleted_rows == 1


@pytest.mark.parametrize("name", ["plain", "name with spaces"])
@pytest.mark.parametrize("kind", ["list<struct<a: int>>", "map<string, struct<a: int>>"])
def test_a_missing_list_stays_missing(manager: IcebergManager, name: str, kind: str) -> None:
    manager.create_table("t", {"n": "int", name: kind})
    manager.insert_data("t", [{"n": 1, name: None}, {"n": 2, name: []}, {"n": 3, name: None}])
    assert found(manager) == [(1, None), (2, []), (3, None)]
    manager.update_data("t", {"n": 4}, "n = 3")
    assert found(manager) == [(1, None), (2, []), (4, None)]
    manager.delete_data("t", "n = 2")
    assert found(manager) == [(1, None), (4, None)]


@pytest.mark.parametrize("name", ["order no", "Größe", 'q"uote', "日本", "9"])
def test_a_table_can_be_partitioned_by_any_name(manager: IcebergManager, name: str) -> None:
    manager.create_table("t", {name: "int", "n": "int"}, partition_by=[name])
    manager.insert_data("t", [{name: 1, "n": 1}, {name: 2, "n": 2}, {name: None, "n": 3}])
    rows = manager.query_table("t")
    assert rows.engine == "duckdb"
    assert found(manager) == [(1, 1), (2, 2), (None, 3)]
    manager.delete_data("t", "n = 2")
    assert found(manager) == [(1, 1), (None, 3)]


def test_files_partitioned_by_a_column_that_is_gone_can_be_changed(manager: IcebergManager) -> None:
    manager.create_table("t", {"p": "int", "n": "int"}, partition_by=["p"])
    manager.insert_data("t", [{"p": p, "n": n} for p, n in [(1, 1), (1, 2), (2, 3), (None, 4)]])
    manager.insert_data("t", [{"p": 3, "n": 5}])
    manager.alter_partition("t", drop=["p"])
    manager.drop_column("t", "p")
    assert manager.update_data("t", {"n": 6}, "n = 1").updated_rows == 1
    assert manager.delete_data("t", "n = 3").deleted_rows == 1
    assert manager.upsert_data("t", [{"n": 4}, {"n": 7}], ["n"]).inserted_rows == 1
    assert found(manager) == [(2,), (4,), (5,), (6,), (7,)]


@pytest.mark.parametrize("is_list", [False, True], ids=["struct", "list of structs"])
@pytest.mark.parametrize("sort_by", [[], ["n"]], ids=["unsorted", "sorted"])
def test_a_struct_with_a_required_field_can_be_missing(
    manager: IcebergManager, is_list: bool, sort_by: list[str]
) -> None:
    struct = StructType(NestedField(4, "a", IntegerType(), required=True))
    kind = ListType(3, struct, element_required=False) if is_list else struct
    schema = Schema(NestedField(1, "n", IntegerType()), NestedField(2, "s", kind))
    manager.create_table("t", schema, sort_by=sort_by)
    values: list[Any] = [None, [None], [{"a": 1}]] if is_list else [None, {"a": 1}]
    manager.insert_data("t", [{"n": n, "s": value} for n, value in enumerate(values)])
    assert found(manager) == list(enumerate(values))
    manager.update_data("t", {"n": 9}, "n = 1")
    assert found(manager) == sorted((9 if n == 1 else n, value) for n, value in enumerate(values))
    with pytest.raises(InvalidRequest, match="required"):
        manager.insert_data("t", [{"n": 1, "s": [{"a": None}] if is_list else {"a": None}}])


def test_a_time_whose_snapshot_has_expired_leads_to_no_other(manager: IcebergManager) -> None:
    manager.create_table("t", {"n": "int"})
    for n in range(3):
        manager.insert_data("t", [{"n": n}])
        if n == 0:
            manager.create_tag("t", "first")
    first, second, third = manager.list_snapshots("t")
    assert manager.expire_snapshots("t", 0).snapshot_ids == (second.id,)
    assert manager.query_as_of("t", third.timestamp).snapshot_id == third.id
    with pytest.raises(NotFound, match=f"known when it was current is {third.id}"):
        manager.query_as_of("t", second.timestamp)
    assert manager.query_table("t", tag="first").snapshot_id == first.id


def test_two_partitions_may_be_of_one_type(manager: IcebergManager) -> None:
    value = Decimal("1.50")
    manager.create_table("t", {"a": "decimal(9,2)", "b": "decimal(9,2)"}, partition_by=["a", "b"])
    manager.insert_data("t", [{"a": value, "b": value}, {"a": value, "b": None}])
    assert manager.query_table("t").engine == "duckdb"
    assert found(manager) == sorted([(value, value), (value, None)], key=repr)


def test_a_table_that_spark_could_not_read_is_refused(manager: IcebergManager) -> None:
    with pytest.raises(InvalidRequest, match="fixed"):
        manager.create_table("t", {"a": "fixed[2]"}, partition_by=["a"])


def test_an_expression_may_give_a_time_with_a_zone(manager: IcebergManager) -> None:
    manager.create_table("t", {"seen": "timestamptz"})
    manager.insert_data("t", [{"seen": None}])
    given = Expression("coalesce(seen, '2024-01-01 00:00:00+00'::TIMESTAMPTZ)")
    assert manager.update_data("t", {"seen": given}).updated_rows == 1
    assert found(manager) == [(YEAR,)]


@pytest.mark.parametrize(
    "condition",
    [
        "k IS DISTINCT FROM 1 OR k = 2",
        "k IS NOT DISTINCT FROM 1 OR k IS DISTINCT FROM 2",
        "NOT (k IS NOT DISTINCT FROM 1) OR k = 2",
        "k IS NOT DISTINCT FROM NULL OR k = 2",
    ],
)
def test_null_is_distinct_beside_another_comparison(
    manager: IcebergManager, condition: str
) -> None:
    manager.create_table("t", {"k": "int"})
    manager.insert_data("t", [{"k": None}, {"k": None}])
    assert found(manager, condition) == [(None,), (None,)]
    assert manager.delete_data("t", condition).deleted_rows == 2


def test_a_number_too_low_to_be_truncated_is_refused(manager: IcebergManager) -> None:
    manager.create_table("t", {"c": "decimal(9,2)"}, partition_by=["truncate(50, c)"])
    with pytest.raises(InvalidRequest, match="too far out to be partitioned"):
        manager.insert_data("t", [{"c": Decimal("-9999999.99")}])
    manager.insert_data("t", [{"c": Decimal("-9999999.00")}])
    assert len(found(manager)) == 1


@pytest.mark.parametrize("name", ["id_bucket", "country"])
def test_a_column_does_not_get_the_name_of_a_partition(manager: IcebergManager, name: str) -> None:
    manager.create_table(
        "t", {"id": "long", "country": "string"}, partition_by=["bucket(4, id)", "country"]
    )
    manager.rename_column("t", "country", "land")
    with pytest.raises(InvalidRequest, match=f"partition of the table has the name '{name}'"):
        manager.add_column("t", name, "string")
    with pytest.raises(InvalidRequest, match=f"partition of the table has the name '{name}'"):
        manager.rename_column("t", "id", name)
    manager.alter_partition("t", drop=[name])
    with pytest.raises(InvalidRequest, match="choose another name"):
        manager.add_column("t", name, "string")
    assert manager.rename_column("t", "land", "country").columns[1].name == "country"


def test_a_moment_that_is_none_is_not_taken_for_now(manager: IcebergManager) -> None:
    manager.create_table("t", {"id": "long"})
    made = manager.insert_data("t", [{"id": 1}])
    nothing = manager.delete_data("t", "id = 2").snapshot_id
    assert nothing is None
    wrong: Any
    for wrong in (nothing, str(made.snapshot_id)):
        with pytest.raises(InvalidRequest, match="is not a snapshot's id"):
            manager.query_snapshot("t", wrong)
        with pytest.raises(InvalidRequest, match="is not a snapshot's id"):
            manager.rollback("t", wrong)
    assert len(manager.query_as_of("t", date(9999, 1, 1))) == 1
    number: Any = 5
    with pytest.raises(InvalidRequest, match="'5' is not a time"):
        manager.query_as_of("t", number)


def test_what_python_lets_pass_is_refused(manager: IcebergManager) -> None:
    manager.create_table("t", {"id": "long"})
    manager.insert_data("t", [{"id": 1}])
    nothing: Any = None
    fraction: Any = 1.5
    word: Any = "email string"
    for work, match in (
        (lambda: manager.delete_data("t", nothing), "a condition is text"),
        (lambda: manager.query_table("t", limit=fraction), "limit is 1.5"),
        (lambda: manager.evolve_schema("t", word), "is not a change of a schema"),
        (lambda: manager.create_table(nothing, {"id": "long"}), "None is not a table name"),
        (lambda: manager.update_data("t", word), "does not say what columns become"),
        (lambda: manager.expire_snapshots("t", word), "is no number of days"),
    ):
        with pytest.raises(InvalidRequest, match=match) as refused:
            work()
        assert refused.value.hint
    assert len(manager.query_table("t", limit=10**30)) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format-version", "3"),
        ("format-version", "x"),
        ("write.target-file-size-bytes", "512 MB"),
        ("write.target-file-size-bytes", "0"),
        ("write.parquet.compression-codec", "zip"),
    ],
)
def test_a_property_with_which_nobody_could_write_is_refused(
    manager: IcebergManager, key: str, value: str
) -> None:
    with pytest.raises(InvalidRequest, match=key) as refused:
        manager.create_table("t", {"id": "long"}, properties={key: value})
    assert refused.value.hint
    assert manager.list_tables() == []


@pytest.mark.parametrize("codec", ["zstd", "gzip", "snappy", "lz4", "brotli", "uncompressed"])
def test_every_codec_that_is_offered_can_be_written(manager: IcebergManager, codec: str) -> None:
    manager.create_table("t", {"id": "long"}, properties={"write.parquet.compression-codec": codec})
    manager.insert_data("t", [{"id": 1}])
    assert found(manager) == [(1,)]
