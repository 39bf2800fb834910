"""Columns come with the rows: in the same commit, and right also when others change them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from calve.errors import InvalidRequest, SchemaConflict
from calve.lake import Lake
from calve.tables.commit import Committed, TableCommit
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.evolution import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    SchemaChange,
    WidenColumn,
    evolve_schema,
)
from calve.tables.schema_growth import grown
from calve.tables.schemas import arrow_schema, define_table, schema_from_arrow
from calve.tables.staging import Edit

Columns = dict[str, Any]


def make(lake: Lake, columns: Columns) -> Table:
    return lake.catalog.create_table("t", define_table(columns).schema)


def grow(table: Table, columns: Columns, **options: Any) -> Schema:
    incoming = define_table(columns).schema
    return grown(table.schema(), incoming, last_column_id=table.metadata.last_column_id, **options)


def commit_rows(table: Table, schema: Schema, rows: list[dict[str, Any]]) -> Committed:
    """Files for the schema, written before the commit and committed together with it."""
    commit = TableCommit(table)
    return commit.append(Edit(added=files_for(table, schema, rows), schema=schema))


def files_for(table: Table, schema: Schema, rows: list[dict[str, Any]]) -> list[Any]:
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
    return write_data_files(table, [batch], operation_id=new_operation_id("test"), schema=schema)


def ids(table: Table) -> dict[str, int]:
    return {name: table.schema().find_field(name).field_id for name in table.schema().column_names}


def read(lake: Lake) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.catalog.load_table("t").scan().to_arrow().to_pylist()
    return found


def test_columns_and_rows_come_in_one_commit(lake: Lake) -> None:
    table = make(lake, {"id": "long", "place": "struct<city: string>"})
    schema = grow(table, {"id": "long", "place": "struct<zip: int>", "tags": "list<string>"})
    row = {"id": 1, "place": {"city": "Bonn", "zip": 53111}, "tags": ["a"]}
    done = commit_rows(table, schema, [row])
    loaded = lake.catalog.load_table("t")
    assert read(lake) == [row]
    assert loaded.schema().fields == schema.fields
    snapshot = loaded.current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == done.snapshot_id
    assert snapshot.schema_id == loaded.metadata.current_schema_id
    assert len(loaded.metadata.metadata_log) == 1
    assert ids(loaded) == {"id": 1, "place": 2, "place.city": 3, "place.zip": 4, "tags": 5, "tags.element": 6}  # fmt: skip
    assert loaded.metadata.last_column_id == 6


@pytest.mark.parametrize(
    ("before", "incoming", "after"),
    [
        ("int", "long", "long"),
        ("float", "double", "double"),
        ("decimal(9,2)", "decimal(12,2)", "decimal(12,2)"),
        ("decimal(9,2)", "decimal(12,0)", "decimal(14,2)"),
        ("decimal(9,2)", "decimal(38,4)", "decimal(9,2)"),
        ("decimal(38,2)", "decimal(38,0)", "decimal(38,2)"),
        ("list<int>", "list<long>", "list<long>"),
        ("map<int, float>", "map<long, double>", "map<int, double>"),
        ("struct<a: int>", "struct<a: long, b: date>", "struct<a: long, b: date>"),
        ("list<struct<a: int>>", "list<struct<b: int>>", "list<struct<a: int, b: int>>"),
        ("long", "int", "long"),
        ("date", "string", "date"),
    ],
)
def test_types_become_wider_and_nothing_else(
    lake: Lake, before: str, incoming: str, after: str
) -> None:
    table = make(lake, {"c": before})
    wanted = define_table({"c": after}).schema
    found = grow(table, {"c": incoming})
    assert arrow_schema(found) == arrow_schema(wanted)
    if before == after:
        assert found is table.schema()


def test_what_is_not_to_be_widened_stays(lake: Lake) -> None:
    table = make(lake, {"a": "int"})
    schema = grow(table, {"a": "long", "b": "int"}, widens=False)
    assert [str(field.field_type) for field in schema.fields] == ["int", "int"]


def test_new_columns_are_optional(lake: Lake) -> None:
    table = make(lake, {"a": "int"})
    incoming = schema_from_arrow(pa.schema([pa.field("b", pa.int32(), nullable=False)]))
    schema = grown(table.schema(), incoming, last_column_id=table.metadata.last_column_id)
    assert not schema.find_field("b").required


@pytest.mark.parametrize("name", ["A", "_file", "_calve_offset", " "])
def test_columns_that_no_table_may_have_are_refused(lake: Lake, name: str) -> None:
    table = make(lake, {"a": "int"})
    with pytest.raises(InvalidRequest):
        grown(
            table.schema(),
            schema_from_arrow(pa.schema([(name, pa.int32())])),
            last_column_id=table.metadata.last_column_id,
        )


def test_an_id_that_was_used_is_not_used_again(lake: Lake) -> None:
    table = make(lake, {"a": "int", "b": "int"})
    evolve_schema(table, [DropColumn("b")])
    schema = grow(table, {"c": "int"})
    commit_rows(table, schema, [{"a": 1, "c": 2}])
    assert ids(lake.catalog.load_table("t")) == {"a": 1, "c": 3}


def meanwhile(lake: Lake, *changes: SchemaChange) -> None:
    evolve_schema(lake.catalog.load_table("t"), changes)


ROW = {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([AddColumn("b", "long")], [ROW]),
        ([AddColumn("b", "int")], [ROW]),
        ([AddColumn("b", "long"), AddColumn("c", "int")], [{**ROW, "c": None}]),
        ([RenameColumn("a", "z")], [{"z": 1, "b": 2}]),
        ([WidenColumn("a", "long")], [ROW]),
        ([MakeOptional("a")], [ROW]),
        ([AddColumn("b", "long"), RenameColumn("b", "z")], None),
    ],
)
def test_files_that_still_fit_are_committed_as_they_are(
    lake: Lake, changes: list[SchemaChange], expected: list[dict[str, Any]] | None
) -> None:
    table = make(lake, {"a": "int"})
    schema = grow(table, {"b": "long"})
    files = files_for(table, schema, [ROW])
    for change in changes:
        meanwhile(lake, change)
    TableCommit(table).append(Edit(added=files, schema=schema))
    assert read(lake) == (expected or [{"a": 1, "z": 2}])
    loaded = lake.catalog.load_table("t")
    assert loaded.metadata.last_column_id == max(ids(loaded).values())


def test_a_column_that_somebody_drops_stays_dropped(lake: Lake) -> None:
    table = make(lake, {"a": "int", "b": "int"})
    files = files_for(table, table.schema(), [ROW])
    schema = table.schema()
    meanwhile(lake, DropColumn("b"))
    TableCommit(table).append(Edit(added=files, schema=schema))
    assert read(lake) == [{"a": 1}]


def make_required(lake: Lake) -> None:
    with lake.catalog.load_table("t").update_schema(allow_incompatible_changes=True) as update:
        update.update_column("a", required=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lake: meanwhile(lake, AddColumn("other", "long")), "'b' was to have is now"),
        (lambda lake: meanwhile(lake, AddColumn("b", "string")), "'b' is now string"),
        (lambda lake: meanwhile(lake, RenameColumn("a", "b")), "'b' is there twice"),
        (lambda lake: meanwhile(lake, RenameColumn("a", "B")), "differ in case only"),
        (make_required, "'a' has come to be required"),
    ],
)
def test_files_whose_ids_mean_something_else_are_refused_at_once(
    lake: Lake, change: Callable[[Lake], None], said: str
) -> None:
    table = make(lake, {"a": "int"})
    schema = grow(table, {"b": "long"})
    files = files_for(table, schema, [ROW])
    change(lake)
    with pytest.raises(SchemaConflict, match=said):
        TableCommit(table).append(Edit(added=files, schema=schema))
    assert lake.catalog.load_table("t").current_snapshot() is None


def test_an_id_that_came_and_went_is_taken(lake: Lake) -> None:
    table = make(lake, {"a": "int"})
    schema = grow(table, {"b": "long"})
    files = files_for(table, schema, [ROW])
    meanwhile(lake, AddColumn("other", "long"))
    meanwhile(lake, DropColumn("other"))
    with pytest.raises(SchemaConflict, match="'b' was to have is taken"):
        TableCommit(table).append(Edit(added=files, schema=schema))


def test_nested_columns_grow_on_both_sides(lake: Lake) -> None:
    table = make(lake, {"p": "struct<a: int>", "l": "list<struct<a: int>>"})
    schema = grow(table, {"p": "struct<b: int>", "l": "list<struct<a: long>>"})
    files = files_for(table, schema, [{"p": {"a": 1, "b": 2}, "l": [{"a": 2**40}]}])
    meanwhile(lake, WidenColumn("p.a", "long"), RenameColumn("l", "many"))
    TableCommit(table).append(Edit(added=files, schema=schema))
    assert read(lake) == [{"p": {"a": 1, "b": 2}, "many": [{"a": 2**40}]}]


def test_spark_and_duckdb_read_what_grew(spark_lake: Lake) -> None:
    table = make(spark_lake, {"a": "int"})
    commit_rows(table, table.schema(), [{"a": 7}])
    schema = grow(table, {"a": "long", "s": "struct<x: double>"})
    commit_rows(table, schema, [{"a": 2**40, "s": {"x": 0.5}}])
    found = spark_lake.spark().sql("SELECT a, s.x FROM t ORDER BY a").collect()
    assert [tuple(row) for row in found] == [(7, None), (2**40, 0.5)]
    rows = spark_lake.sql("SELECT a, s.x AS x FROM t ORDER BY a").to_arrow().to_pylist()
    assert rows == [{"a": 7, "x": None}, {"a": 2**40, "x": 0.5}]
