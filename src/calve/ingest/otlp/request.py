"""A request taken apart: resources, their scopes, and the records in these, each side by side."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calve.ingest.otlp.attributes import attribute_maps
from calve.ingest.otlp.columns import Faults, Level, Places, as_text
from calve.ingest.otlp.messages import LEVELS, Reader
from calve.ingest.otlp.tables import ENTITY_REFS, TEXT

_SERVICE: Final = "service.name"


class Request:
    """What records have in common, and where each lies: `scope_of` its scope, and so on."""

    def __init__(self, reader: Reader, message: Any) -> None:
        self.reader = reader
        self.message = message
        outer, middle, inner = LEVELS[reader.signal]
        lists = reader.batch(message).column(outer)
        resources = Level(lists.values, np.arange(len(lists.values)), Faults())
        scopes, self.resource_of = resources.below(middle)
        self.records, self.scope_of = scopes.below(inner)
        self._of_resources = _resource_columns(resources)
        self._of_scopes = _scope_columns(scopes)
        resources.faults.spread(self.resource_of, scopes.faults)
        scopes.faults.spread(self.scope_of, self.records.faults)

    def origin(self, records: Places) -> dict[str, pa.Array]:
        """The columns of resource and scope for these records."""
        scopes = self.scope_of[records]
        of_scope, of_resource = pa.array(scopes), pa.array(self.resource_of[scopes])
        return {
            **{name: column.take(of_resource) for name, column in self._of_resources.items()},
            **{name: column.take(of_scope) for name, column in self._of_scopes.items()},
        }

    def place(self, record: int) -> tuple[int, int, int]:
        """Where a record lies: the resource, the scope in it, the record in that."""
        scope = int(self.scope_of[record])
        resource = int(self.resource_of[scope])
        first_scope = int(np.searchsorted(self.resource_of, resource))
        first_record = int(np.searchsorted(self.scope_of, scope))
        return resource, scope - first_scope, record - first_record


def _resource_columns(resources: Level) -> dict[str, pa.Array]:
    resource = resources.one("resource")
    attributes = attribute_maps(resource, "attributes")
    return {
        "service_name": pc.map_lookup(attributes.texts, pa.scalar(_SERVICE), "first"),
        "resource_attributes": attributes.texts,
        "resource_attribute_types": attributes.kinds,
        "resource_dropped_attributes_count": resource.count("dropped_attributes_count"),
        "resource_entity_refs": _entity_refs(resource),
        "resource_schema_url": resources.text("schema_url"),
    }


def _scope_columns(scopes: Level) -> dict[str, pa.Array]:
    scope = scopes.one("scope")
    attributes = attribute_maps(scope, "attributes")
    return {
        "scope_name": scope.text("name"),
        "scope_version": scope.text("version"),
        "scope_attributes": attributes.texts,
        "scope_attribute_types": attributes.kinds,
        "scope_dropped_attributes_count": scope.count("dropped_attributes_count"),
        "scope_schema_url": scopes.text("schema_url"),
    }


def _entity_refs(resource: Level) -> pa.ListArray:
    lists = resource.many("entity_refs")
    if (empty := lists.without_any(ENTITY_REFS)) is not None:
        return empty
    refs = lists.inner
    return lists.array(
        ENTITY_REFS,
        {
            "schema_url": refs.text("schema_url"),
            "type": refs.text("type"),
            "id_keys": _texts(refs, "id_keys"),
            "description_keys": _texts(refs, "description_keys"),
        },
    )


def _texts(refs: Level, name: str) -> pa.ListArray:
    lists = refs.many(name)
    flat = as_text(refs.field(name).values, lists.inner, name)
    kind = pa.list_(pa.field("element", TEXT))
    return pa.ListArray.from_arrays(pa.array(lists.offsets), flat, type=kind)
