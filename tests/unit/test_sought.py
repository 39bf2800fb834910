"""What a statement surely looks for in its tables: texts in columns, and nothing that only seems so."""

from __future__ import annotations

import pytest

from calve.query.statement import parse_statement


def sought(text: str) -> dict[str, dict[str, set[str]]]:
    found = parse_statement(text).sought
    return {
        table.name.name: {name: set(values) for name, values in each.texts.items()}
        for table, each in found.items()
        if each.texts
    }


@pytest.mark.parametrize(
    "condition",
    [
        "trace_id = 'a'",
        "'a' = trace_id",
        "Trace_ID = 'a' AND duration_nano > 5",
        "duration_nano > 5 AND (name LIKE '%x' AND t.trace_id = 'a')",
        "trace_id IN ('a') AND (status = 1 OR status = 2)",
        "trace_id IN ('a', 'b') AND trace_id = 'a'",
    ],
)
def test_a_text_that_a_column_has_to_have(condition: str) -> None:
    assert sought(f"SELECT * FROM traces t WHERE {condition}") == {"traces": {"trace_id": {"a"}}}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM traces",
        "SELECT * FROM traces WHERE trace_id = 'a' OR name = 'b'",
        "SELECT * FROM traces WHERE NOT trace_id = 'a'",
        "SELECT * FROM traces WHERE trace_id <> 'a'",
        "SELECT * FROM traces WHERE trace_id NOT IN ('a')",
        "SELECT * FROM traces WHERE trace_id IS NOT DISTINCT FROM 'a'",
        "SELECT * FROM traces WHERE lower(trace_id) = 'a'",
        "SELECT * FROM traces WHERE trace_id = NULL",
        "SELECT * FROM traces WHERE trace_id IN ('a', NULL)",
        "SELECT * FROM traces WHERE trace_id IN ('a', name)",
        "SELECT * FROM traces WHERE trace_id = name",
        "SELECT * FROM traces WHERE n = 5",
        "SELECT * FROM traces HAVING trace_id = 'a'",
        "SELECT *, trace_id = 'a' FROM traces",
        "SELECT * FROM traces AS t(trace_id) WHERE trace_id = 'a'",
        "SELECT * FROM traces TABLESAMPLE 10% WHERE trace_id = 'a'",
        "SELECT * FROM (SELECT * FROM traces LIMIT 5) AS t WHERE trace_id = 'a'",
        "SELECT * FROM traces, logs WHERE trace_id = 'a'",
        "SELECT * FROM traces JOIN logs USING (trace_id) WHERE trace_id = 'a'",
        "SELECT * FROM traces t ASOF JOIN logs l ON t.at >= l.at WHERE l.trace_id = 'a'",
        "SELECT * FROM traces POSITIONAL JOIN logs WHERE logs.trace_id = 'a'",
        "SELECT * FROM traces t WHERE EXISTS (SELECT 1 FROM range(3) r WHERE t.trace_id = 'a')",
        "SELECT * FROM traces WHERE trace_id = 'a' UNION ALL SELECT * FROM traces",
    ],
)
def test_what_may_also_be_otherwise_is_not_sought(statement: str) -> None:
    assert sought(statement) == {}


def test_each_table_of_a_statement_is_told_apart() -> None:
    both = "SELECT 1 FROM traces t JOIN logs l ON t.span_id = l.span_id WHERE t.trace_id = 'a' AND l.name = 'b'"
    assert sought(both) == {"traces": {"trace_id": {"a"}}, "logs": {"name": {"b"}}}
    united = "SELECT 1 FROM traces WHERE trace_id = 'a' UNION ALL SELECT 1 FROM logs WHERE trace_id = 'b'"
    assert sought(united) == {"traces": {"trace_id": {"a"}}, "logs": {"trace_id": {"b"}}}
    inside = (
        "WITH one AS (SELECT * FROM traces WHERE trace_id = 'a') SELECT * FROM one WHERE name = 'b'"
    )
    assert sought(inside) == {"traces": {"trace_id": {"a"}}}


def test_a_table_that_is_read_twice_is_sought_for_what_either_wants() -> None:
    twice = (
        "SELECT 1 FROM traces WHERE trace_id = 'a' AND name = 'n' "
        "UNION ALL SELECT 1 FROM traces WHERE trace_id IN ('b', 'c')"
    )
    assert sought(twice) == {"traces": {"trace_id": {"a", "b", "c"}}}


def test_the_names_of_all_columns_that_choose_are_known() -> None:
    statement = parse_statement("SELECT 1 FROM traces WHERE trace_id = 'a' AND t > now() - f(Day)")
    (found,) = statement.sought.values()
    assert found.named == {"trace_id", "t", "day"}
