"""Where records come from, their resource and scope, as columns.

Senders are true to theirs: those of a request from one resource and one scope are kept, and are
there for the next one without being read again. Few are kept, and only small ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calve.ingest.otlp.attributes import attribute_maps
from calve.ingest.otlp.columns import Level, Places, as_text
from calve.ingest.otlp.messages import LEVELS
from calve.ingest.otlp.tables import ENTITY_REFS, TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

Name: TypeAlias = tuple[bytes, ...]

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

    def __init__(self, origins: Origins, scope: int) -> None:
        self._row = origins.columns(np.array([scope]))
        self._rows: dict[str, pa.Array] | None = None

    def columns(self, count: int) -> dict[str, pa.Array]:
        if count > _ROWS_MAX:
            return _repeated(self._row, count)
        if self._rows is None:  # it came for the second time, and may come again
            self._rows = _repeated(self._row, _ROWS_MAX)
        return {name: column.slice(0, count) for name, column in self._rows.items()}


class KeptOrigins:
    """Those of requests with one resource and one scope each, which came before."""

    def __init__(self, kept: list[KeptOrigin]) -> None:
        self._kept = kept

    def columns(self, scopes: Places) -> dict[str, pa.Array]:
        """For records that lie in these scopes, in the order of the scopes."""
        if len(self._kept) == 1:
            return self._kept[0].columns(len(scopes))
        counts = np.bincount(scopes, minlength=len(self._kept)).tolist()
        parts = [each.columns(count) for each, count in zip(self._kept, counts, strict=True)]
        return {name: pa.concat_arrays([part[name] for part in parts]) for name in parts[0]}


_kept: Final[dict[Name, KeptOrigin]] = {}


def kept_origins(names: Sequence[Name | None]) -> KeptOrigins | None:
    """Those of requests that all came before."""
    kept = [_kept.get(name) for name in names if name is not None]
    known = [each for each in kept if each is not None]
    return KeptOrigins(known) if len(known) == len(names) else None


def keep_origins(names: Sequence[Name | None], origins: Origins) -> None:
    """For when they come again; those of which there is nothing to say."""
    if not origins.is_clean or None in names:
        return
    for scope, name in enumerate(names):  # each request has one
        if name is None or name in _kept:
            continue
        if len(_kept) >= _KEPT_MAX:
            _kept.clear()
        _kept[name] = KeptOrigin(origins, scope)


def sole_origin(signal: str, message: Any) -> Name | None:
    """What tells the origin of a request from others, if all of it has the same."""
    outer, middle, _ = LEVELS[signal]
    resources = getattr(message, outer)
    if len(resources) != 1 or len(getattr(resources[0], middle)) != 1:
        return None
    resource, scope = resources[0], getattr(resources[0], middle)[0]
    parts = (resource.resource.SerializeToString(), scope.scope.SerializeToString())
    name = (*parts, resource.schema_url, scope.schema_url)
    return name if sum(map(len, name)) <= _KEPT_BYTES_MAX else None


def _repeated(row: dict[str, pa.Array], count: int) -> dict[str, pa.Array]:
    first = pa.array(np.zeros(count, np.int64))
    return {name: column.take(first) for name, column in row.items()}


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
