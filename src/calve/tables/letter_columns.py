"""The columns of a table of dead letters besides Calve's own, as Arrow has them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

# `original` is the row as it was sent, `content_type` what it is: NDJSON, CSV, or an Arrow stream.
DEAD_LETTER_COLUMNS: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("original", pa.binary(), nullable=False),
    ]
)
