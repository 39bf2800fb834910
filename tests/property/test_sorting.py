"""Rows are sorted as Iceberg wants it: text by its bytes, NaN above every number, nulls as asked."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.tables.schemas import schema_from_arrow
from calve.tables.sorting import sorted_rows
from calve.tables.transforms import sort_order

TEXTS = st.text(st.sampled_from("ab\0éÿ😀"), max_size=12)
ROWS = st.lists(
    st.tuples(
        st.none() | TEXTS,
        st.none() | st.floats(),
    ),
    max_size=40,
)


def sorted_by(rows: pa.Table, *terms: str) -> list[dict[str, Any]]:
    schema = schema_from_arrow(rows.schema)
    found: list[dict[str, Any]] = sorted_rows(rows, sort_order(terms, schema), schema).to_pylist()
    return found


@given(st.lists(TEXTS), st.sampled_from(["", "user", "é" * 5]), st.sampled_from(["asc", "desc"]))
def test_text_goes_by_its_bytes(texts: list[str], prefix: str, direction: str) -> None:
    names = [prefix + text for text in texts]
    rows = pa.table({"name": pa.array(names, pa.large_string()), "at": range(len(names))})
    found = sorted_by(rows, f"name {direction}")
    wanted = sorted(
        rows.to_pylist(), key=lambda row: row["name"].encode(), reverse=direction == "desc"
    )
    assert [row["name"] for row in found] == [row["name"] for row in wanted]
    places: dict[str, list[int]] = {}
    for row in found:
        places.setdefault(row["name"], []).append(row["at"])
    assert all(each == sorted(each) for each in places.values()), "equal ones stay as they came"


@pytest.mark.parametrize("nulls", ["first", "last"])
@given(rows=ROWS)
def test_nulls_are_where_they_are_wanted_and_nan_is_highest(rows: list[Any], nulls: str) -> None:
    texts, numbers = [text for text, _ in rows], [number for _, number in rows]
    table = pa.table(
        {"text": pa.array(texts, pa.large_string()), "number": pa.array(numbers, pa.float64())}
    )

    def key(row: dict[str, Any]) -> Any:
        text, number = row["text"], row["number"]
        null = 0 if nulls == "first" else 2
        return (
            (1, text.encode()) if text is not None else (null, b""),
            (null, 0.0)
            if number is None
            else (1, math.inf, 1)
            if math.isnan(number)
            else (1, number, 0),
        )

    found = sorted_by(table, f"text nulls {nulls}", f"number nulls {nulls}")
    assert list(map(repr, map(key, found))) == list(map(repr, sorted(map(key, table.to_pylist()))))
