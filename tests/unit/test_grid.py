"""Small tables of text, aligned by what is seen."""

from __future__ import annotations

from calve.grid import Grid, width_of


def test_columns_are_aligned_whatever_script_is_in_them() -> None:
    grid = Grid(("NAME", "ROWS"), [("日本語", 1), ("e\u0301tude", 2), ("ab", None)])
    *lines, last = grid.lines()
    assert last == "ab      -"
    assert {width_of(line[: line.rindex("  ") + 2]) for line in lines} == {8}
