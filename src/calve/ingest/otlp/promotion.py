"""Attributes that a topic wants as columns of their own, because they are asked for often.

The property `otlp.promoted_attributes` names them, with commas in between: `http.route` becomes the
column `attribute_http_route`, and `resource:k8s.pod.name` of the resource's attributes the column
`resource_attribute_k8s_pod_name`. The maps keep them, too. Rows from before have null.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from calve.topics.topic import Topic

PROPERTY: Final = "otlp.promoted_attributes"
_RESOURCE: Final = "resource:"
_NO_LETTERS: Final = re.compile(r"[^a-z0-9]+")


def with_promoted(rows: pa.RecordBatch, topic: Topic) -> pa.RecordBatch:
    """The rows with the columns that the topic asks for; a name that is taken is left out."""
    for wanted in filter(None, map(str.strip, topic.properties.get(PROPERTY, "").split(","))):
        key = wanted.removeprefix(_RESOURCE)
        prefix = "resource_" if wanted.startswith(_RESOURCE) else ""
        name = f"{prefix}attribute_{_NO_LETTERS.sub('_', key.lower()).strip('_')}"
        if name not in rows.schema.names:
            texts = pc.map_lookup(rows.column(f"{prefix}attributes"), pa.scalar(key), "first")
            rows = rows.append_column(name, texts)
    return rows
