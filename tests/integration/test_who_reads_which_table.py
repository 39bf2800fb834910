"""For each kind of table, the engine that reads it, the right rows, and why DuckDB or why not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import duckdb
import pytest
from pyiceberg.table import Table

from calve.errors import MissingPart
from calve.lake import Lake
from calve.query.engine import connect
from calve.query.scan import read_table
from calve.tables.engine_choice import choose_engine
from calve.tables.views import view_table
from tests.integration.table_kinds import KINDS, Kind, Row

BY_ITSELF = """
import sys
from calve.query.engine import connect
connect().execute(f"SELECT * FROM iceberg_scan('{sys.argv[1]}')").fetchall()
"""


def texts(rows: Iterable[Row]) -> list[str]:
    """Rows in a form that is the same whoever read them; zones have several."""
    return sorted(
        str(row)
        .replace("zoneinfo.ZoneInfo(key='UTC')", "UTC")
        .replace("datetime.timezone.utc", "UTC")
        .replace("<UTC>", "UTC")
        for row in rows
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_of_table_is_read_by_who_can(spark_lake: Lake, kind: Kind) -> None:
    table = kind.build(spark_lake)
    choice = choose_engine(view_table(table))
    assert choice.engine == kind.engine, choice.reason
    rows = read_table(table, spark=spark_lake.spark)
    found = rows.to_arrow()
    found.validate(full=True)
    assert (rows.engine, texts(found.to_pylist())) == (kind.engine, texts(kind.rows))
    assert len(rows) == len(kind.rows)
    if "case" not in kind.name:  # which SQL refuses, as it cannot tell them apart
        asked = spark_lake.sql("SELECT * FROM t").to_arrow()
        assert texts(asked.to_pylist()) == texts(kind.rows)
    if kind.engine != "duckdb":
        check_duckdb_by_itself(table, kind)
    if kind.engine == "spark":
        with pytest.raises(MissingPart, match="only Spark can read"):
            read_table(table)


def check_duckdb_by_itself(table: Table, kind: Kind) -> None:
    """Once this fails, DuckDB has learnt to read the kind, and can be chosen for it."""
    query = f"SELECT * FROM iceberg_scan('{table.metadata_location}')"
    match kind.duckdb:
        case "right" | "wrong":
            found = texts(connect().execute(query).to_arrow_table().to_pylist())
            assert (found == texts(kind.rows)) == (kind.duckdb == "right")
        case "fails":
            with pytest.raises(duckdb.Error):
                connect().execute(query).fetchall()
        case "crashes":
            ask = [sys.executable, "-c", BY_ITSELF, table.metadata_location]
            assert subprocess.run(ask, capture_output=True, check=False).returncode < 0


def test_equality_deletes_are_read_at_a_snapshot_and_with_a_condition(spark_lake: Lake) -> None:
    build = next(kind.build for kind in KINDS if kind.name == "equality_deletes")
    table = build(spark_lake)
    before, after, _ = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    assert read_table(table, snapshot_id=before).engine == "duckdb"
    assert len(read_table(table, snapshot_id=before)) == 4
    old = read_table(table, snapshot_id=after, spark=spark_lake.spark)
    assert sorted(old.to_arrow()["id"].to_pylist()) == [3, 4]
    # Spark has no such function of the same meaning; DuckDB decides.
    for where in ("id >= 3", "strip_accents(name) = 'd' OR id = 3"):
        rows = read_table(table, where=where, columns=["id"], spark=spark_lake.spark)
        assert sorted(rows.to_arrow()["id"].to_pylist()) == [3, 4]


def test_once_spark_has_rewritten_its_files_a_table_is_read_without_spark(
    spark_lake: Lake,
) -> None:
    build = next(kind.build for kind in KINDS if kind.name == "equality_deletes")
    build(spark_lake)
    spark_lake.spark().sql(
        "CALL system.rewrite_data_files(table => 'default.default.t', options => "
        "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
    )
    rows = read_table(spark_lake.catalog.load_table("t"))
    assert sorted(rows.to_arrow()["id"].to_pylist()) == [1, 3, 4]


def test_names_that_differ_in_case_are_filtered(lake: Lake) -> None:
    build = next(kind.build for kind in KINDS if kind.name == "names_that_differ_in_case")
    table = build(lake)
    assert read_table(table, where="b = 3").to_arrow().to_pylist() == [{"a": 1, "A": 2, "b": 3}]
    assert read_table(table, where="b = 4").to_arrow().to_pylist() == []


def test_the_page_names_every_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "internals" / "reads.md").read_text()
    for kind in KINDS:
        line = next(line for line in page.splitlines() if f"`{kind.name}`" in line)
        assert line.split("|")[2].strip().lower() == kind.engine, line
