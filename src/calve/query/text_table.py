"""An answer as lines for a terminal: aligned by what is seen, cut where it would not fit.

A plan, which is what EXPLAIN answers, is lines already and is shown as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from calve.grid import sign_width, width_of
from calve.query.cells import cell_text, column_values

_CUT: Final = "…"
_GAP: Final = "  "
_CELL_WIDTH_MAX: Final = 60
_COLUMN_WIDTH_MIN: Final = 6
_PLAN_COLUMNS: Final = ["explain_key", "explain_value"]


def is_plan(schema: pa.Schema) -> bool:
    """Whether the rows are what EXPLAIN answers, by the names that DuckDB gives it."""
    return list(schema.names) == _PLAN_COLUMNS


def plan_lines(plan: pa.Table | pa.RecordBatch) -> list[str]:
    texts = (str(text).rstrip("\n") for text in plan.column(1).to_pylist())
    return [line for text in texts for line in text.split("\n")]


def text_table(table: pa.Table, *, width_max: int | None = None) -> list[str]:
    """Lines of at most `width_max`; columns that no longer fit are left out and counted."""
    cells = [[cell_text(value) for value in column_values(column)] for column in table.columns]
    widths = column_widths(table.schema, cells)
    shown, widths = _fitted(widths, width_max)
    names = table.column_names[:shown]
    right = [is_right(table.schema.field(n).type) for n in range(shown)]
    lines = [line(names, widths, [False] * shown), line(["-" * w for w in widths], widths, right)]
    lines += [line(row, widths, right) for row in zip(*cells[:shown], strict=True)]
    if shown < table.num_columns:
        left_out = table.num_columns - shown
        lines.append(f"({left_out:,} more column{'' if left_out == 1 else 's'})")
    return lines


def column_widths(schema: pa.Schema, cells: Sequence[Sequence[str]]) -> list[int]:
    """As wide as the widest of these cells and the name, up to a bound."""
    return [
        min(max([width_of(_clean(name)), 1, *map(width_of, column)]), _CELL_WIDTH_MAX)
        for name, column in zip(schema.names, cells, strict=True)
    ]


def line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        padded_cell(_clean(cell), width, is_right=to_right)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return _GAP.join(padded).rstrip()


def is_right(kind: pa.DataType) -> bool:
    """Numbers stand to the right."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def padded_cell(text: str, width: int, *, is_right: bool) -> str:
    cut = _cut(text, width)
    space = " " * (width - width_of(cut))
    return space + cut if is_right else cut + space


def _cut(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    kept, used = [], 0
    for sign in text:
        used += sign_width(sign)
        if used > width - 1:
            break
        kept.append(sign)
    return "".join(kept) + _CUT


def _fitted(widths: list[int], width_max: int | None) -> tuple[int, list[int]]:
    """How many columns fit, and their widths; the widest give way first."""
    if width_max is None:
        return len(widths), widths
    count = len(widths)
    while count > 1 and count * (_COLUMN_WIDTH_MIN + len(_GAP)) > width_max:
        count -= 1
    kept = widths[:count]
    while sum(kept) + len(_GAP) * (count - 1) > width_max and max(kept) > _COLUMN_WIDTH_MIN:
        kept[kept.index(max(kept))] -= 1
    return count, kept


def _clean(text: str) -> str:
    return text if text.isprintable() else cell_text(text)
