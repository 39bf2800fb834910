"""The guide to conditions: its examples are accepted, its list of functions is the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calve.condition import FUNCTIONS, Column, parse_condition

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "conditions.md").read_text("utf-8")
EXAMPLES = re.findall(r"^\| `(.+?)` \| \S", GUIDE.partition("## Null")[0], re.MULTILINE)
COLUMNS = (
    *(Column(name, "VARCHAR") for name in ("name", "country")),
    *(Column(name, "INTEGER") for name in ("order", "discount")),
    *(Column(name, "DECIMAL(10,2)") for name in ("price", "unit price")),
    Column("vip", "BOOLEAN"),
    Column("day", "DATE"),
    Column("seen", "TIMESTAMP WITH TIME ZONE"),
    Column("score", "DOUBLE"),
    Column("tags", "VARCHAR[]"),
    Column("attributes", "MAP(VARCHAR, VARCHAR)"),
    Column("address", "STRUCT(city VARCHAR)"),
)


def test_the_guide_has_examples() -> None:
    assert len(EXAMPLES) >= 14


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_of_the_guide_is_a_condition(text: str) -> None:
    parse_condition(text, COLUMNS)


def test_the_guide_lists_the_functions() -> None:
    listed = GUIDE.partition("<!-- functions")[2]
    for purpose, names in FUNCTIONS.items():
        assert f"| {purpose} | {' '.join(f'`{name}`' for name in names)} |" in listed
