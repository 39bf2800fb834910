"""Chooses among Arrow rows by a condition, in DuckDB's eyes, whoever has read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa

from calve.query.engine import NO_LIMITS, connect_confined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.condition import Condition
    from calve.query.engine import Limits

_ROW: Final = "row"


class RowFilter:
    """Keeps the rows for which a condition is true. A context manager, for one thread.

    DuckDB gets the columns of the condition and gives back which rows; the others it need not know.
    """

    def __init__(self, condition: Condition, limits: Limits = NO_LIMITS) -> None:
        self._names = condition.columns
        self._row = next(
            name
            for name in (f"{_ROW}{n}" for n in range(len(self._names) + 1))
            if name not in self._names
        )
        self._text = (
            f"SELECT {self._row} FROM batch WHERE {condition.duckdb_filter()} "  # noqa: S608
            f"ORDER BY {self._row}"
        )
        self._connection = connect_confined(limits=limits, reads_arrow=True)

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that satisfy the condition, in their order."""
        seen = pa.table(
            [*(batch.column(name) for name in self._names), pa.array(np.arange(len(batch)))],
            names=[*self._names, self._row],
        )
        self._connection.register("batch", seen)
        kept = self._connection.execute(self._text).to_arrow_table()[self._row]
        self._connection.unregister("batch")
        return batch.take(kept.combine_chunks()) if len(kept) < len(batch) else batch

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def filtered(
    batches: Iterator[pa.RecordBatch], condition: Condition, limits: Limits
) -> Iterator[pa.RecordBatch]:
    """The rows for which the condition is true; the columns that it names must be there once."""
    with RowFilter(condition, limits) as rows:
        for batch in batches:
            yield rows.chosen(batch)
