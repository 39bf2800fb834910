"""Rows put by hand into a table that a topic feeds: refused, and forced they have no offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.tables.columns import OWN_PREFIX
from calve.tables.feeding import refuse_fed

if TYPE_CHECKING:
    from pyiceberg.table import Table


def refuse_rows(table: Table, *, force: bool) -> None:
    refuse_fed(
        table,
        "its rows come through the topic",
        hint="`calve produce` sends rows to the topic; forced (--force, force=True), they get no "
        "offset: queries see them, subscriptions do not",
        force=force,
    )


def unnumbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, which must leave Calve's own columns empty: places are the topic's to give."""
    for batch in batches:
        require_unnumbered(batch)
        yield batch


def require_unnumbered(rows: pa.RecordBatch | pa.Table) -> None:
    for name in rows.schema.names:
        if name.startswith(OWN_PREFIX) and rows.column(name).null_count < rows.num_rows:
            raise InvalidRequest(
                f"the rows have values in {name!r}, which is Calve's own",
                hint="leave that column out",
                context={"column": name},
            )
