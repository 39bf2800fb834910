"""A condition without any brackets chooses the rows that DuckDB chooses for the same text."""

from __future__ import annotations

import duckdb
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow

from calve.condition import SESSION, Column, parse_condition
from calve.errors import InvalidRequest
from calve.tables.condition_columns import condition_columns
from tests.property.condition_grammar import SCHEMA, arrow_tables, conditions, files

WORDS = [
    *("a", "b", "p", "q", "s", "l", "1", "2", "-3", "0.5", "'x'", "NULL", "true", "-a", "- -b", "a::DOUBLE"),
    *("l[1]", "-l[1]", "l[a:b]", "abs(a)", "-abs(b)", "s[1]", "~a", "+b", "-a::INTEGER", "INTERVAL 1 DAY"),
    *("CASE WHEN p THEN a ELSE b END", "a IN (1, 2)", "DATE '2020-01-01'", "NOT p", "(a)", "(p)", "[1, 2]"),
]  # fmt: skip
BETWEEN = [
    *("+", "-", "*", "/", "//", "%", "**", "^", "||", "&", "|", "<<", ">>", "=", "<>", "<", ">=", "=="),
    *("AND", "OR", "AND NOT", "OR NOT", "IS DISTINCT FROM", "IS NOT DISTINCT FROM", "LIKE", "NOT LIKE"),
    *("IS NULL AND", "IS NOT NULL OR", "IS TRUE AND", "IS NULL =", "BETWEEN 1 AND", "NOT BETWEEN a AND"),
    *("IN (1, 2) AND", "NOT IN (1, b) OR", "::INTEGER +", "::VARCHAR ||", "ILIKE 'x' OR", "= ANY", "NOTNULL AND"),
    *("AT TIME ZONE 'UTC' =", "COLLATE nocase =", "IS NOT TRUE =", "LIKE 'x' ESCAPE '!' AND", "- -", "+ -"),
]  # fmt: skip
COLUMNS = (
    Column("rid", "BIGINT"),
    Column("a", "INTEGER"),
    Column("b", "INTEGER"),
    Column("p", "BOOLEAN"),
    Column("q", "BOOLEAN"),
    Column("s", "VARCHAR"),
    Column("l", "INTEGER[]"),
)
ROWS = """
    SELECT row_number() OVER () AS rid, * FROM
      (VALUES (1), (2), (-3), (NULL)) AS t1(a), (VALUES (2), (5), (NULL)) AS t2(b),
      (VALUES (true), (false), (NULL)) AS t3(p), (VALUES (true), (NULL)) AS t4(q),
      (VALUES ('x'), ('7'), (NULL)) AS t5(s), (VALUES ([4, 6]), (NULL)) AS t6(l)
"""


@st.composite
def soups(draw: st.DrawFn) -> str:
    pieces = [draw(st.sampled_from(["", "", "NOT "])), draw(st.sampled_from(WORDS))]
    for _ in range(draw(st.integers(1, 5))):
        pieces += [draw(st.sampled_from(BETWEEN)), draw(st.sampled_from(WORDS))]
    return " ".join(pieces) + draw(st.sampled_from(["", "", " IS NULL", " > 1", " IS NOT TRUE"]))


def chosen(connection: duckdb.DuckDBPyConnection, condition: str) -> list[tuple[int]] | None:
    try:
        found = connection.execute(
            f"SELECT rid FROM lake WHERE {condition} ORDER BY rid"
        ).fetchall()
    except duckdb.Error:
        return None
    return found


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=soups())
def test_operators_bind_as_in_duckdb(text: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(SESSION)
        connection.execute(f"CREATE TABLE lake AS {ROWS}")
        check(connection, text, COLUMNS)


def check(connection: duckdb.DuckDBPyConnection, text: str, columns: tuple[Column, ...]) -> None:
    raw = chosen(connection, text)
    try:
        condition = parse_condition(text, columns)
    except InvalidRequest:
        return
    if raw is not None:
        assert chosen(connection, condition.duckdb_sql()) == raw, condition.duckdb_sql()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=files(), texts=st.lists(conditions(), min_size=20, max_size=40))
def test_conditions_over_all_types_mean_the_same(
    rows: list[list[dict[str, object]]], texts: list[str]
) -> None:
    arrow = schema_to_pyarrow(SCHEMA, include_field_ids=False)
    with duckdb.connect() as connection:
        connection.execute(SESSION)
        connection.register("lake", pa.concat_tables(arrow_tables(rows, arrow)))
        for text in texts:
            check(connection, text, condition_columns(SCHEMA))
