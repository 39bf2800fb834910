"""Deletes, updates and upserts do what a plain model in Python, and a query, say they do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform

from calve import IcebergManager
from calve.changes import Expression, delete_rows, insert_rows, update_rows, upsert_rows
from calve.condition import SESSION, Condition, parse_condition
from calve.errors import InvalidRequest
from calve.settings import load_settings
from calve.tables.catalog import LakeCatalog
from calve.tables.condition_columns import condition_columns
from calve.tables.schemas import arrow_schema, define_table
from tests.commands import run_command
from tests.property.condition_grammar import SCHEMA, arrow_tables, conditions, files

_number = itertools.count()
QUIET = list(HealthCheck)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("changes"))


@pytest.fixture(scope="module")
def catalog(data: str) -> Iterator[LakeCatalog]:
    with LakeCatalog(load_settings(flags={"data": data}, environ={}).settings) as catalog:
        yield catalog


@pytest.fixture(scope="module")
def manager(data: str) -> Iterator[IcebergManager]:
    with IcebergManager(data) as manager:
        yield manager


def true_rows(rows: pa.Table, text: str) -> set[int] | None:
    """The rows that DuckDB chooses; None for what is no condition, or fails on some row."""
    try:
        condition: Condition = parse_condition(text, condition_columns(SCHEMA))
    except InvalidRequest:
        return None
    with duckdb.connect() as connection:
        connection.execute(SESSION)
        connection.register("arrow", rows)
        connection.execute("CREATE TABLE lake AS FROM arrow")
        try:
            sql = f"SELECT rid FROM lake WHERE {condition.duckdb_sql()}"
            return {rid for (rid,) in connection.execute(sql).fetchall()}
        except duckdb.Error:
            return None


def filled(
    catalog: LakeCatalog, rows: list[list[dict[str, object]]], spec: PartitionSpec
) -> tuple[str, pa.Table]:
    """A new table with a file for each list, and all its rows."""
    name = f"d{next(_number)}"
    catalog.create_table(name, SCHEMA, partition_spec=spec)
    parts = arrow_tables(rows, arrow_schema(SCHEMA))
    for part in parts:
        insert_rows(catalog, name, part)
    return name, pa.concat_tables(parts)


def check_deletes(
    catalog: LakeCatalog,
    manager: IcebergManager,
    rows: list[list[dict[str, object]]],
    texts: list[str],
    spec: PartitionSpec,
) -> None:
    name, whole = filled(catalog, rows, spec)
    for number, text in enumerate(texts):
        chosen = true_rows(whole, text)
        if chosen is None:
            continue
        shown = manager.query_table(name, text, columns=["rid"]).to_arrow()["rid"].to_pylist()
        assert sorted(shown) == sorted(chosen), text
        branch = f"b{number}"
        manager.create_branch(name, branch)
        change = manager.delete_data(name, text, branch=branch)
        assert change.deleted_rows == len(shown)
        table = catalog.load_table(name)
        head = table.snapshot_by_name(branch)
        assert head is not None
        left = table.scan(snapshot_id=head.snapshot_id).to_arrow()
        expected = set(whole["rid"].to_pylist()) - chosen
        assert set(left["rid"].to_pylist()) == expected, text
        assert manager.query_table(name, text, branch=branch).to_arrow().num_rows == 0, text
        kept = whole.filter(pa.compute.is_in(whole["rid"], pa.array(sorted(expected), pa.int64())))
        assert repr(left.sort_by("rid").to_pylist()) == repr(kept.to_pylist())


@settings(max_examples=2, deadline=None, suppress_health_check=QUIET)
@given(rows=files(), texts=st.lists(conditions(), min_size=3, max_size=3))
def test_the_command_to_delete_removes_exactly_what_the_one_to_query_shows(
    catalog: LakeCatalog,
    data: str,
    capsys: pytest.CaptureFixture[str],
    rows: list[list[dict[str, object]]],
    texts: list[str],
) -> None:
    name, whole = filled(catalog, rows, PartitionSpec())
    left = set(whole["rid"].to_pylist())

    def run(command: str, *arguments: str) -> Any:
        words = ["calve", "table", command, name, *arguments, "--json", "--data", data]
        with pytest.MonkeyPatch.context() as patch:
            done = run_command(words, patch, capsys)
        assert done.code == 0, done.err
        return done.json()

    for text in texts:
        if true_rows(whole, text) is None:
            continue
        shown = {row["rid"] for row in run("query", "--where", text, "--columns", "rid")}
        assert run("delete", "--where", text)["deleted_rows"] == len(shown)
        left -= shown
        assert {row["rid"] for row in run("query", "--columns", "rid")} == left, text


@settings(max_examples=4, deadline=None, suppress_health_check=QUIET)
@given(rows=files(), texts=st.lists(conditions(), min_size=6, max_size=12))
def test_a_delete_removes_exactly_what_a_query_shows(
    catalog: LakeCatalog,
    manager: IcebergManager,
    rows: list[list[dict[str, object]]],
    texts: list[str],
) -> None:
    check_deletes(catalog, manager, rows, texts, PartitionSpec())


@settings(max_examples=3, deadline=None, suppress_health_check=QUIET)
@given(
    rows=files(),
    texts=st.lists(conditions(), min_size=6, max_size=12),
    column=st.sampled_from(["d", "s", "i", "tz"]),
)
def test_a_delete_in_partitions_removes_exactly_what_a_query_shows(
    catalog: LakeCatalog,
    manager: IcebergManager,
    rows: list[list[dict[str, object]]],
    texts: list[str],
    column: str,
) -> None:
    source = SCHEMA.find_field(column).field_id
    spec = PartitionSpec(PartitionField(source, 1000, IdentityTransform(), "part"))
    check_deletes(catalog, manager, rows, texts, spec)


@pytest.mark.torture
@settings(max_examples=300, deadline=None, suppress_health_check=QUIET)
@given(
    rows=files(),
    texts=st.lists(conditions(), min_size=10, max_size=30),
    spec=st.sampled_from(
        [
            PartitionSpec(),
            PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "part")),
            PartitionSpec(PartitionField(6, 1000, IdentityTransform(), "part")),
        ]
    ),
)
def test_many_deletes_remove_exactly_what_queries_show(
    catalog: LakeCatalog,
    manager: IcebergManager,
    rows: list[list[dict[str, object]]],
    texts: list[str],
    spec: PartitionSpec,
) -> None:
    check_deletes(catalog, manager, rows, texts, spec)


KEYS = st.integers(0, 5)
NAMES = st.sampled_from(["a", "b", None])
ROW = st.tuples(KEYS, NAMES, st.one_of(st.none(), st.integers(-3, 3)))
STEPS = st.one_of(
    st.tuples(st.just("insert"), st.lists(ROW, max_size=4)),
    st.tuples(st.just("upsert"), st.lists(ROW, max_size=4, unique_by=lambda row: row[0])),
    st.tuples(
        st.just("upsert2"),
        st.lists(
            ROW.filter(lambda row: row[1] is not None),
            max_size=4,
            unique_by=lambda row: (row[0], row[1]),
        ),
    ),
    st.tuples(st.just("add"), st.integers(-4, 4)),
    st.tuples(st.just("name"), NAMES),
    st.tuples(st.just("delete"), st.integers(-3, 3)),
)
Row = tuple[int, str | None, int | None]


class Model:
    """A table as a list of rows, and the rules as anybody would write them down."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def insert(self, rows: list[Row]) -> tuple[int, int, int]:
        self.rows += rows
        return len(rows), 0, 0

    def upsert(self, rows: list[Row], width: int) -> tuple[int, int, int]:
        new = {row[:width]: row for row in rows}
        updated = [row for row in self.rows if row[:width] in new and new[row[:width]] != row]
        known = {row[:width] for row in self.rows}
        self.rows = [new.get(row[:width], row) for row in self.rows]
        added = [row for row in rows if row[:width] not in known]
        self.rows += added
        return len(added), len(updated), 0

    def add(self, limit: int) -> tuple[int, int, int]:
        meant = [row for row in self.rows if row[2] is not None and row[2] < limit]
        self.rows = [
            (k, n, v + k) if v is not None and v < limit else (k, n, v) for k, n, v in self.rows
        ]
        return 0, sum(row[0] != 0 for row in meant), 0

    def name(self, name: str | None) -> tuple[int, int, int]:
        meant = [row for row in self.rows if row[1] is None]
        self.rows = [(k, name if n is None else n, v) for k, n, v in self.rows]
        return 0, 0 if name is None else len(meant), 0

    def delete(self, value: int) -> tuple[int, int, int]:
        kept = [row for row in self.rows if row[2] is None or row[2] > value]
        gone = len(self.rows) - len(kept)
        self.rows = kept
        return 0, 0, gone


def apply(catalog: LakeCatalog, table: str, kind: str, given: Any) -> Any:
    if kind in {"insert", "upsert", "upsert2"}:
        data = [dict(zip(("k", "n", "v"), row, strict=True)) for row in given]
        if kind == "insert":
            return insert_rows(catalog, table, data)
        return upsert_rows(catalog, table, data, ["k"] if kind == "upsert" else ["k", "n"])
    if kind == "add":
        return update_rows(catalog, table, {"v": Expression("v + k")}, f"v < {given}")
    if kind == "name":
        return update_rows(catalog, table, {"n": given}, "n IS NULL")
    return delete_rows(catalog, table, f"v <= {given}")


def check_steps(catalog: LakeCatalog, steps: list[tuple[str, Any]], partition: list[str]) -> None:
    name = f"m{next(_number)}"
    defined = define_table({"k": "long", "n": "string", "v": "int"}, partition_by=partition)
    catalog.create_table(name, defined.schema, partition_spec=defined.partition_spec)
    model = Model()
    for kind, given_value in steps:
        match kind:
            case "upsert":
                counts = model.upsert(given_value, 1)
            case "upsert2":
                counts = model.upsert(given_value, 2)
            case _:
                counts = getattr(model, kind)(given_value)
        change = apply(catalog, name, kind, given_value)
        assert (change.inserted_rows, change.updated_rows, change.deleted_rows) == counts
        found = catalog.load_table(name).scan().to_arrow().to_pylist()
        assert sorted(map(repr, (tuple(row.values()) for row in found))) == sorted(
            map(repr, model.rows)
        )


@settings(max_examples=12, deadline=None, suppress_health_check=QUIET)
@given(
    steps=st.lists(STEPS, min_size=3, max_size=7),
    partition=st.sampled_from([[], ["n"], ["truncate(2, v)", "bucket(2, k)"]]),
)
def test_a_table_follows_the_model(
    catalog: LakeCatalog, steps: list[tuple[str, Any]], partition: list[str]
) -> None:
    check_steps(catalog, steps, partition)


@pytest.mark.torture
@settings(max_examples=1000, deadline=None, suppress_health_check=QUIET)
@given(
    steps=st.lists(STEPS, min_size=3, max_size=25),
    partition=st.sampled_from([[], ["n"], ["v"], ["truncate(2, v)", "bucket(2, k)"]]),
)
def test_a_table_follows_the_model_for_long(
    catalog: LakeCatalog, steps: list[tuple[str, Any]], partition: list[str]
) -> None:
    check_steps(catalog, steps, partition)
