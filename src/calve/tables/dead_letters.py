"""The table of what a topic could not take into its own: each row as it came, and why.

Its rows have offsets of the topic's log. An offset is in the topic's table or in this one.
"""

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
