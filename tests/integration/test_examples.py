"""The examples do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def table(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without rules and summaries."""
    return [
        line.split() for line in text.splitlines() if "-" not in line and "snapshot" not in line
    ]


def test_basic_operations(capsys: pytest.CaptureFixture[str]) -> None:
    said = run("basic_operations", capsys)
    assert "2 rows inserted" in said
    assert "1 row updated" in said
    assert "1 row inserted, 1 row updated" in said
    assert said.count("2 rows deleted") == 1
    *_, first, second, _, left = (line.split() for line in said.splitlines())
    assert [first, second] == [["Alan", "42"], ["Edsger", "45"]]
    assert left == ["tables", "left:", "[]"]


def test_time_travel(capsys: pytest.CaptureFixture[str]) -> None:
    said = run("time_travel", capsys)
    assert [line for line in said.splitlines() if line.endswith("rows") and ":" in line] == [
        "append: 2 rows", "overwrite: 2 rows", "overwrite: 1 rows",
    ]  # fmt: skip
    assert ["180"] in table(said)
    assert "the tagged one kept" in said


def test_schema_evolution(capsys: pytest.CaptureFixture[str]) -> None:
    said = run("schema_evolution", capsys)
    assert "id long" in said
    assert "full_name string" in said
    assert "St James's Square" in said
    assert str(2**40) in said


def test_reading_topics(capsys: pytest.CaptureFixture[str]) -> None:
    said = run("reading_topics", capsys)
    assert said.splitlines() == [
        "total 25.0 at offset 5",
        "total 70.0 at offset 8",
        "[{'id': 7, '_calve_offset': 7}]",
    ]


def test_the_eight_steps(capsys: pytest.CaptureFixture[str]) -> None:
    said = run("eight_steps", capsys)
    old = [["id", "name"], ["1", "Ada"]]
    assert table(said)[:2] == [["id", "name"], ["2", "Alan"]]
    assert table(said)[2:4] == old
    assert table(said)[-2:] == old
    assert ["3", "Grace", "grace@example.com"] in table(said)


def test_other_engines(capsys: pytest.CaptureFixture[str], spark_running: None) -> None:
    said = [line.split(maxsplit=1) for line in run("other_engines", capsys).splitlines()]
    assert [name for name, _ in said] == ["calve", "spark", "datafusion", "polars", "pyiceberg"]
    assert {found for _, found in said} == {"[('de', 2), ('fr', 1)]"}
