"""The columns of a topic as a service understands them, whatever they are told in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calve.tables.schemas import SchemaSource


def columns_document(source: SchemaSource) -> Any:
    """What JSON can hold stays as it is; else Iceberg's own form, with what a file says beside."""
    if isinstance(source, list) or (isinstance(source, Mapping) and _is_plain(source)):
        return source
    # Loading it waits until it is needed.
    from calve.tables.schemas import define_table, schema_to_json

    definition = define_table(source)
    return {
        **json.loads(schema_to_json(definition.schema)),
        "partition_by": list(definition.partition_by),
        "sort_by": list(definition.sort_by),
        "properties": dict(definition.properties),
    }


def _is_plain(columns: Mapping[Any, Any]) -> bool:
    """Types by name, or what a schema file holds."""
    if any(isinstance(columns.get(key), list) for key in ("columns", "fields")):
        return True
    return all(isinstance(kind, str | list | dict) for kind in columns.values())
