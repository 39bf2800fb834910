"""Rows that were read, each as one object of JSON: where it is, when it came, and its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calve.query.cells import column_values, json_rows
from calve.topics.log_rows import PLACE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_PLACE = [field.name for field in PLACE_FIELDS]


def row_documents(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """`{"partition", "offset", "ingested_at", "value": {…}}` for each row, in order."""
    own = [name for name in rows.schema.names if name not in _PLACE]
    for batch in rows.to_batches():
        places = zip(*(column_values(batch.column(name)) for name in _PLACE), strict=True)
        values = json_rows(batch.select(own))
        for (partition, offset, ingested_at), value in zip(places, values, strict=True):
            yield {
                "partition": partition,
                "offset": offset,
                "ingested_at": ingested_at,
                "value": value,
            }
