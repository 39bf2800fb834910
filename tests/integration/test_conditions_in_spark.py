"""DuckDB and Spark decide a condition alike for every row, or Spark's text is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import TimeType
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from calve.condition import SESSION, Condition, parse_condition
from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.settings import load_settings
from calve.tables.condition_columns import condition_columns
from tests.property.condition_grammar import COLUMNS as GENERATED
from tests.property.condition_grammar import INNER, NESTED, SCHEMA, conditions

# Spark has no time of day in Iceberg tables.
KEPT = Schema(*(field for field in SCHEMA.fields if not isinstance(field.field_type, TimeType)))
COLUMNS = condition_columns(KEPT)
ROWS = 150
Truths = dict[int, bool | None]


def some_rows() -> pa.Table:
    chance = random.Random(7)

    def pick(values: list[object]) -> object:
        return None if chance.random() < 0.15 else chance.choice(values)

    rows = []
    for number in range(ROWS):
        columns = [*GENERATED, *NESTED]
        row = {name: pick(values) for name, _, values in columns if name != "clock"}
        inner = {name: pick(values) for name, _, values in INNER} | {"must": number % 3}
        rows.append({"rid": number, **row, "st": pick([inner])})
    return pa.Table.from_pylist(rows, schema=schema_to_pyarrow(KEPT, include_field_ids=False))


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return some_rows()


@pytest.fixture(scope="module")
def spark(
    rows: pa.Table, spark_running: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    data = tmp_path_factory.mktemp("conditions")
    with Lake(load_settings(flags={"data": str(data)}, environ={}).settings) as lake:
        lake.catalog.create_table("rows", KEPT).append(rows)
        session = lake.spark()
        session.table("rows").coalesce(1).cache().createOrReplaceTempView("cached")
        yield session


def by_duckdb(rows: pa.Table, condition: Condition) -> Truths | None:
    with duckdb.connect() as connection:
        connection.execute(SESSION)
        connection.register("lake", rows)
        try:
            return dict(
                connection.execute(f"SELECT rid, {condition.duckdb_sql()} FROM lake").fetchall()
            )
        except duckdb.Error:
            return None


def by_spark(spark: SparkSession, texts: list[str]) -> list[Truths | None]:
    """All at once; one by one where some row of some condition is an error."""
    listed = ", ".join(f"{text} AS c{n}" for n, text in enumerate(texts))
    try:
        found = spark.sql(f"SELECT rid, {listed} FROM cached").collect()
    except PySparkException as error:
        if len(texts) > 1:
            return [truths for text in texts for truths in by_spark(spark, [text])]
        if "OVERFLOW" not in str(error):
            raise
        return [None]
    return [{row[0]: row[1 + n] for row in found} for n in range(len(texts))]


def translated(texts: list[str]) -> list[tuple[Condition, str]]:
    found = []
    for text in texts:
        try:
            condition = parse_condition(text, COLUMNS)
            found.append((condition, condition.spark_sql()))
        except InvalidRequest:
            continue
    return found


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(conditions(), min_size=20, max_size=30))
def test_spark_and_duckdb_decide_alike(
    spark: SparkSession, rows: pa.Table, texts: list[str]
) -> None:
    pairs = [(c, text, by_duckdb(rows, c)) for c, text in translated(texts)]
    pairs = [pair for pair in pairs if pair[2] is not None]
    if not pairs:
        return
    for (condition, text, expected), truths in zip(
        pairs, by_spark(spark, [text for _, text, _ in pairs]), strict=True
    ):
        # Spark fails on an overflow where DuckDB may see that it does not matter.
        assert truths in (None, expected), (condition, text, _difference(rows, expected, truths))


def _difference(rows: pa.Table, expected: Truths | None, found: Truths | None) -> object:
    if expected is None or found is None:
        return expected, found
    wrong = [rid for rid in expected if expected[rid] != found[rid]][:3]
    return [(rows.slice(rid, 1).to_pylist(), expected[rid], found[rid]) for rid in wrong]


@pytest.mark.parametrize(
    "text",
    [
        "i = 5 AND s LIKE 'a%'", "d > 0.1 OR f = 0.1", "tz >= '2020-01-01'", "ts < DATE '2020-01-01'",
        "n BETWEEN 1 AND 5", "i + l % 2 = 5", "u = '00000000-0000-0000-0000-000000000001'", "NOT b",
        "x = 'ab'::BLOB", "st.\"p q\" = 'a'", "\"sp ace \"\"q\"\" ü\" IN (1, 2)", "year(ts) = 2020",
        "s LIKE 'a!%%' ESCAPE '!'", "s LIKE 'a\\%'", "s = 'a\\b'", "length(s) = 2", "i % 2 = 1",
        "CASE WHEN i > 0 THEN b ELSE s = 'a' END", "coalesce(i, 0) = 0", "w = 0.1", "l IS DISTINCT FROM i",
        "\"Select\" = ''''", "day > '2020-01-01'", "f = 'nan'::FLOAT", "d >= 'inf'::DOUBLE",
    ],
)  # fmt: skip
def test_what_people_write_reaches_spark(spark: SparkSession, rows: pa.Table, text: str) -> None:
    condition = parse_condition(text, COLUMNS)
    assert by_spark(spark, [condition.spark_sql()]) == [by_duckdb(rows, condition)]


def test_a_delete_in_spark_deletes_what_duckdb_shows(spark_lake: Lake, rows: pa.Table) -> None:
    table = spark_lake.catalog.create_table("gone", KEPT)
    table.append(rows)
    condition = parse_condition("s LIKE 'a%' OR d >= 1.5 OR NOT b", COLUMNS)
    shown = {rid for rid, truth in (by_duckdb(rows, condition) or {}).items() if truth}
    spark_lake.spark().sql(f"DELETE FROM gone WHERE {condition.spark_sql()}")
    left = spark_lake.catalog.load_table("gone").scan(selected_fields=("rid",)).to_arrow()
    assert shown
    assert set(left["rid"].to_pylist()) == set(range(ROWS)) - shown


@pytest.mark.parametrize(
    "text",
    ["lower(s) = 'a'", "s ILIKE 'a%'", "d / i > 1", "i / 2 > 1", "i % l = 1", "s LIKE \"Select\"",
     "TRY_CAST(s AS INTEGER) = 5", "s = 5", "d + 1 > 2", "n + 1 > 2", "round(d) = 1"],
)  # fmt: skip
def test_what_spark_could_decide_otherwise_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Spark cannot decide"):
        parse_condition(text, COLUMNS).spark_sql()
