"""What a query gives: rows that any library takes, and that a person can read."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from calve.errors import MissingPart

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

SHOWN_ROWS: Final = 20
SHOWN_WIDTH: Final = 40


class Rows:
    """An answer in memory. Iterating gives dicts; a notebook shows a table."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def columns(self) -> list[str]:
        names: list[str] = self._table.column_names
        return names

    def to_arrow(self) -> pa.Table:
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        try:
            import pandas as pd  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingPart("pandas is not installed", hint="run `pip install pandas`") from error
        return self._table.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        try:
            import polars as pl
        except ModuleNotFoundError as error:
            raise MissingPart("polars is not installed", hint="run `pip install polars`") from error
        frame = pl.from_arrow(self._table)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        rows: int = self._table.num_rows
        return rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches():
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        shown = [self.columns, *self._shown()]
        widths = [max(len(row[i]) for row in shown) for i in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in shown
        ]
        return "\n".join([*lines, self._count()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._shown()
        )
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{escape(self._count())}</p>"
        )

    def _shown(self) -> list[list[str]]:
        columns = [column.to_pylist() for column in self._table.slice(0, SHOWN_ROWS).columns]
        return [[_cell(value) for value in row] for row in zip(*columns, strict=True)]

    def _count(self) -> str:
        count = f"{len(self):,} row{'' if len(self) == 1 else 's'}"
        return count if len(self) <= SHOWN_ROWS else f"{count}, the first {SHOWN_ROWS} shown"


def _cell(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= SHOWN_WIDTH else text[: SHOWN_WIDTH - 1] + "…"
