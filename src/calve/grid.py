"""Small tables of text: lines for a terminal, HTML for a notebook.

Whatever is told of tables, as against what is in them, is shown so, by commands and by the objects
themselves.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SHOWN_ROWS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows under the names of columns, and a line of words below them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    words: str | None = None

    def lines(self) -> list[str]:
        """Columns as wide as they need to be, the last one free to run on."""
        cells = [list(self.columns), *(list(map(_text, row)) for row in self.rows)]
        widths = [max(width_of(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = ["  ".join(map(_padded, row, widths)).rstrip() for row in cells]
        return lines if self.words is None else [*lines, self.words]

    def html(self) -> str:
        head = "".join(map(_head, self.columns))
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        words = "" if self.words is None else f"<p>{html.escape(self.words)}</p>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{words}"

    def bounded(self) -> Grid:
        """With the first rows alone, if there are many."""
        left_out = len(self.rows) - _SHOWN_ROWS_MAX
        if left_out <= 0:
            return self
        words = f"{left_out:,} more row{'' if left_out == 1 else 's'}"
        words = words if self.words is None else f"{words}; {self.words}"
        return Grid(self.columns, self.rows[:_SHOWN_ROWS_MAX], words)


def width_of(text: str) -> int:
    """How many places a terminal gives to a text."""
    if text.isascii():
        return len(text)
    return sum(map(sign_width, text))


def sign_width(sign: str) -> int:
    if unicodedata.combining(sign) or unicodedata.category(sign) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(sign) in {"W", "F"} else 1


class ShownAsGrids:
    """Shows itself as small tables, where it is printed and in a notebook."""

    __slots__ = ()

    def grids(self) -> Sequence[Grid]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n\n".join("\n".join(grid.bounded().lines()) for grid in self.grids())

    def _repr_html_(self) -> str:
        return "".join(grid.bounded().html() for grid in self.grids())


def _head(name: str) -> str:
    return f"<th>{html.escape(name)}</th>"


def _cell(value: object) -> str:
    return f"<td>{html.escape(_text(value))}</td>"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - width_of(cell))
