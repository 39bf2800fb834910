"""Skipping files by a condition's facts never skips a row for which the condition is true."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from calve.condition import SESSION, Condition, parse_condition
from calve.errors import InvalidRequest
from calve.tables.condition_columns import condition_columns
from calve.tables.planning import files_to_read
from calve.tables.pruning import to_iceberg
from tests.property.condition_grammar import COLUMNS as GENERATED
from tests.property.condition_grammar import (
    NUMBER_TEXTS,
    OPERATORS,
    SCHEMA,
    STAMP_TEXTS,
    arrow_tables,
    conditions,
    files,
)

COLUMNS = condition_columns(SCHEMA)
ARROW = schema_to_pyarrow(SCHEMA, include_field_ids=False)
_number = itertools.count()

CALENDAR: list[Transform[Any, Any]] = [YearTransform(), MonthTransform(), DayTransform()]
HOUR: Transform[Any, Any] = HourTransform()
BUCKET: Transform[Any, Any] = BucketTransform(4)
# PyIceberg cannot write NaN into a partition of its own, nor truncate binary values.
PARTITIONS: list[tuple[str, Transform[Any, Any]]] = [
    *((name, IdentityTransform()) for name in ("b", "i", "l", "s", "day", "n", "tz", "ts")),
    *((name, BUCKET) for name in ("i", "l", "s", "n", "day", "ts", "u", "x", "k")),
    *((name, TruncateTransform(2)) for name in ("i", "l", "s", "n")),
    *((name, kind) for name in ("day", "ts", "tz") for kind in CALENDAR),
    *((name, HOUR) for name in ("ts", "tz")),
]  # fmt: skip


Ask = Callable[[str, str], set[int] | None]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    root: Path = tmp_path_factory.mktemp("pruning")
    catalog = SqlCatalog("c", uri=f"sqlite:///{root}/c.db", warehouse=f"file://{root}")
    catalog.create_namespace("n")
    yield catalog
    catalog.close()


def make_table(catalog: SqlCatalog, parts: list[pa.Table], spec: PartitionSpec) -> Table:
    table = catalog.create_table(f"n.t{next(_number)}", SCHEMA, partition_spec=spec)
    for part in parts:
        table.append(part)
    return table


def parsed(texts: list[str]) -> list[Condition]:
    found = []
    for text in texts:
        try:
            found.append(parse_condition(text, COLUMNS))
        except InvalidRequest:
            continue
    return found


@contextmanager
def duckdb_over(rows: pa.Table) -> Iterator[Ask]:
    """Which of the rows DuckDB chooses; None where it fails on some row, as on an overflow."""
    with duckdb.connect() as connection:
        connection.execute(SESSION)
        connection.register("arrow", rows)
        # DuckDB hands filters on Arrow data to Arrow, to which NaN is above nothing.
        connection.execute("CREATE TABLE lake AS FROM arrow")

        def ask(place: str, condition: str) -> set[int] | None:
            try:
                found = connection.execute(f"SELECT rid FROM {place} WHERE {condition}")
                return {rid for (rid,) in found.fetchall()}
            except duckdb.Error:
                return None

        yield ask


def check(table: Table, rows: pa.Table, texts: list[str]) -> None:
    paths = [task.file.file_path for task in table.scan().plan_files()]
    held = {
        path: set(pq.read_table(path.removeprefix("file://"), columns=["rid"])["rid"].to_pylist())
        for path in paths
    }
    with duckdb_over(rows) as ask:
        for condition in parsed(texts):
            true = ask("lake", condition.duckdb_sql())
            if true is not None:
                kept = [held[task.file.file_path] for task in files_to_read(table, condition)]
                assert true <= set().union(*kept), (condition, to_iceberg(condition, SCHEMA))


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=files(), texts=st.lists(conditions(), min_size=20, max_size=40))
def test_bounds_lose_no_row(
    catalog: SqlCatalog, rows: list[list[dict[str, object]]], texts: list[str]
) -> None:
    parts = arrow_tables(rows, ARROW)
    table = make_table(catalog, parts, UNPARTITIONED_PARTITION_SPEC)
    check(table, pa.concat_tables(parts), texts)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=files(),
    texts=st.lists(conditions(), min_size=20, max_size=40),
    partition=st.sampled_from(PARTITIONS),
)
def test_partitions_lose_no_row(
    catalog: SqlCatalog,
    rows: list[list[dict[str, object]]],
    texts: list[str],
    partition: tuple[str, Transform[Any, Any]],
) -> None:
    parts = arrow_tables(rows, ARROW)
    source = SCHEMA.find_field(partition[0]).field_id
    spec = PartitionSpec(PartitionField(source, 1000, partition[1], "part"))
    table = make_table(catalog, parts, spec)
    check(table, pa.concat_tables(parts), texts)


@pytest.mark.parametrize(
    "name",
    ["f", *(pytest.param(name, marks=pytest.mark.torture) for name in ("d", "i", "n", "ts"))],
)
def test_every_comparison_with_a_special_value_loses_no_row(catalog: SqlCatalog, name: str) -> None:
    """Each file holds two neighbours of the list of special values, NaN beside a number too."""
    values = next(values for column, _, values in GENERATED if column == name)
    rows = [[{name: value}, {name: other}] for value, other in itertools.pairwise([*values, None])]
    parts = arrow_tables(rows, ARROW)
    table = make_table(catalog, parts, UNPARTITIONED_PARTITION_SPEC)
    literals = STAMP_TEXTS if name == "ts" else NUMBER_TEXTS
    texts = [f"{name} {operator} {text}" for operator in OPERATORS for text in literals]
    check(table, pa.concat_tables(parts), texts)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=files(), texts=st.lists(conditions(), min_size=20, max_size=40))
def test_a_filter_on_files_and_arrow_chooses_what_the_condition_means(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[dict[str, object]]], texts: list[str]
) -> None:
    data = pa.concat_tables(arrow_tables(rows, ARROW))
    path = tmp_path_factory.mktemp("filter") / "rows.parquet"
    pq.write_table(data, path)
    with duckdb_over(data) as ask:
        for condition in parsed(texts):
            true = ask("lake", condition.duckdb_sql())
            for place in (f"'{path}'", "arrow"):
                found = ask(place, condition.duckdb_filter())
                if true is not None and found is not None:
                    assert found == true, (place, condition.duckdb_filter())
