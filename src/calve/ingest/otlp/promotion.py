"""Attributes that a topic wants as columns of their own, because they are asked for often.

The maps keep them, too. Rows from before have null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from calve.topics.promotion import PROPERTY, promoted

if TYPE_CHECKING:
    from calve.topics.topic import Topic


def with_promoted(rows: pa.RecordBatch, topic: Topic) -> pa.RecordBatch:
    """The rows with the columns that the topic asks for; a name that is taken is left out."""
    for wanted in promoted(topic.properties.get(PROPERTY, "")):
        if wanted.column not in rows.schema.names:
            attributes = rows.column(wanted.attributes)
            texts = pc.map_lookup(attributes, pa.scalar(wanted.key), "first")
            rows = rows.append_column(wanted.column, texts)
    return rows
