"""Where records come from, their resource and scope, as columns.

Senders are true to theirs: those of a request from one resource and one scope are kept, and are
there for the next one without being read again. Few are kept, and only small ones.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calve.ingest.otlp.attributes import attribute_maps
from calve.ingest.otlp.columns import Level, Places, as_text
from calve.ingest.otlp.messages import LEVELS
from calve.ingest.otlp.tables import ENTITY_REFS, TEXT

_SERVICE: Final = "service.name"
_KEPT_MAX: Final = 32
_KEPT_BYTES_MAX: Final = 2 << 10  # of one, as the sender wrote it
_ROWS_MAX: Final = 512  # for which it is kept: what SDKs send at once


class Origins:
    """The columns of the resources and scopes of one request."""

    def __init__(self, resources: Level, scopes: Level, resource_of: Places) -> None:
        self._resource_of = resource_of
        self._of_resources = _resource_columns(resources)
        self._of_scopes = _scope_columns(scopes)
        resources.faults.spread(resource_of, scopes.faults)
        self.is_clean = not (scopes.faults.reasons or scopes.faults.remarks)

    def columns(self, scopes: Places) -> dict[str, pa.Array]:
        """For records that lie in these scopes."""
        of_scope, of_resource = pa.array(scopes), pa.array(self._resource_of[scopes])
        return {
            **{name: column.take(of_resource) for name, column in self._of_resources.items()},
            **{name: column.take(of_scope) for name, column in self._of_scopes.items()},
        }


class KeptOrigin:
    """The columns of one resource with one scope, for any number of records."""

    def __init__(self, origins: Origins) -> None:
        self._rows = origins.columns(np.zeros(_ROWS_MAX, np.int64))

    def columns(self, scopes: Places) -> dict[str, pa.Array]:
        count = len(scopes)
        if count <= _ROWS_MAX:
            return {name: column.slice(0, count) for name, column in self._rows.items()}
        first = pa.array(np.zeros(count, np.int64))
        return {name: column.take(first) for name, column in self._rows.items()}


_kept: Final[dict[tuple[bytes, ...], KeptOrigin]] = {}


def sole_origin(signal: str, message: Any) -> tuple[bytes, ...] | None:
    """What tells the origin of a request from others, if all of it has the same."""
    outer, middle, _ = LEVELS[signal]
    resources = getattr(message, outer)
    if len(resources) != 1 or len(getattr(resources[0], middle)) != 1:
        return None
    resource, scope = resources[0], getattr(resources[0], middle)[0]
    parts = (resource.resource.SerializeToString(), scope.scope.SerializeToString())
    name = (*parts, resource.schema_url, scope.schema_url)
    return name if sum(map(len, name)) <= _KEPT_BYTES_MAX else None


def kept_origin(name: tuple[bytes, ...] | None) -> KeptOrigin | None:
    return None if name is None else _kept.get(name)


def keep_origin(name: tuple[bytes, ...] | None, origins: Origins) -> None:
    """Those of which there is nothing to say."""
    if name is None or not origins.is_clean:
        return
    if len(_kept) >= _KEPT_MAX:
        _kept.clear()
    _kept[name] = KeptOrigin(origins)


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
