"""Tables that only Spark can read: of the snapshot that was planned, and never all of it at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema

from calve.errors import Unavailable
from calve.lake import Lake
from calve.query import by_spark
from calve.query.rows import Rows
from calve.tables.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn
from tests.integration.table_kinds import ALL, EVERYTHING, KEY, all_rows, delete_equal
from tests.integration.test_who_reads_which_table import texts

ROWS = pa.table(
    {
        "id": range(8),
        "small": pa.array(range(8), pa.int32()),
        "name": [f"n{n}" for n in range(8)],
        "gone": ["x"] * 8,
        "place": [{"city": f"c{n}", "no": n} for n in range(8)],
    }
)


def make(lake: Lake, *, files: int = 1) -> None:
    """Eight rows in as many files as asked for, without those of the ids 0 and 5."""
    table = lake.catalog.create_table("t", ROWS.schema)
    for n in range(files):
        table.append(ROWS.slice(n * 8 // files, 8 // files))
    field_id = table.schema().find_field("id").field_id
    delete_equal(lake, "id", pa.int64(), field_id, [0, 5])


def test_a_read_is_of_the_snapshot_that_was_planned(spark_lake: Lake) -> None:
    make(spark_lake)
    tables = spark_lake.tables
    tables.create_branch("t", "b")
    asked: dict[str, Callable[[], Rows]] = {
        "main": lambda: tables.query_table("t"),
        "branch": lambda: tables.query_table("t", "id > 0", branch="b"),
    }
    planned = {"branch": asked["branch"]()}
    tables.add_column("t", "later", "string")  # so that snapshots are older than their columns
    planned |= {f"{what}, later": ask() for what, ask in asked.items()}
    tables.insert_data("t", [{"id": 100}])
    tables.add_column("t", "later_still", "string")
    tables.delete_data("t", "id = 3", engine="spark", branch="b")
    for what, rows in planned.items():
        assert rows.engine == "spark"
        found = rows.to_arrow()
        assert sorted(found["id"].to_pylist()) == [1, 2, 3, 4, 6, 7], what
        assert ("later" in found.column_names) == what.endswith("later")


def test_columns_that_are_newer_than_the_rows_are_found_by_their_ids(spark_lake: Lake) -> None:
    make(spark_lake)
    tables = spark_lake.tables
    tables.evolve_schema(
        "t",
        RenameColumn("name", "title"),
        WidenColumn("small", "long"),
        RenameColumn("place.city", "town"),
        AddColumn("place.zip", "int"),
        DropColumn("gone"),
    )
    tables.add_column("t", "name", "long")
    found = tables.query_table("t", "small >= 6 and name is null").to_arrow()
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {
            "id": n,
            "small": n,
            "title": f"n{n}",
            "place": {"town": f"c{n}", "no": n, "zip": None},
            "name": None,
        }
        for n in (6, 7)
    ]
    assert tables.query_table("t", "title = 'n6'", ["name"]).to_arrow().to_pylist() == [
        {"name": None}
    ]
    assert len(tables.query_table("t", columns=["name"])) == 6
    found = tables.sql("select max(small), count(name), max(place.town) from t").to_arrow()
    assert [column[0].as_py() for column in found.columns] == [7, 0, "c7"]


def test_every_type_that_spark_has_comes_as_it_is(spark_lake: Lake) -> None:
    """Spark has uuids as text, and no times of day."""
    kept = [field for field in ALL.fields if field.name != "time"]
    table = spark_lake.catalog.create_table("t", Schema(*kept))
    table.append(all_rows().drop_columns("time"))
    table.append(pa.table({"i": pa.array([7], pa.int32())}))
    delete_equal(spark_lake, "i", pa.int32(), table.schema().find_field("i").field_id, [7])
    expected = [{k: v for k, v in row.items() if k != "time"} for row in EVERYTHING]
    rows = spark_lake.tables.query_table("t")
    assert rows.engine == "spark"
    assert texts(rows) == texts(expected)
    spark_lake.tables.add_column("t", "later", "uuid")
    (found,) = spark_lake.tables.query_table("t", "u is not null", ["u", "st", "li", "later"])
    assert found == {name: EVERYTHING[0].get(name) for name in ("u", "st", "li", "later")}
    (row,) = spark_lake.tables.sql(f"select u, st.u as inner_u from t where u = '{KEY}'")
    assert row == {"u": KEY, "inner_u": KEY}


def test_rows_come_partition_after_partition(
    spark_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(spark_lake, files=4)
    monkeypatch.setattr(by_spark, "_PARTITION_BYTES", 1)
    tables = spark_lake.tables
    assert len(tables.query_table("t", limit=2).to_arrow()) == 2
    assert len(tables.query_table("t", "strip_accents(name) >= 'n3'", limit=3).to_arrow()) == 3
    assert len(tables.query_table("t")) == 6
    stream = tables.query_table("t").batches()
    assert len(next(stream)) <= 2
    place = Path(spark_lake.catalog.load_table("t").location().removeprefix("file://"))
    for file in place.rglob("data/*.parquet"):
        file.unlink()
    with pytest.raises(Unavailable):  # most of the files had not been opened yet
        list(stream)
