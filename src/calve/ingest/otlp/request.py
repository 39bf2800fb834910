"""A request taken apart: resources, their scopes, and the records in these, each side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calve.ingest.otlp.columns import Faults, Level, Places
from calve.ingest.otlp.messages import LEVELS, Reader
from calve.ingest.otlp.origins import KeptOrigin, Origins, keep_origin, kept_origin, sole_origin

if TYPE_CHECKING:
    import pyarrow as pa


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
        name = sole_origin(reader.signal, message)
        kept = kept_origin(name)
        if kept is not None:
            self._origins: Origins | KeptOrigin = kept
            return
        self._origins = found = Origins(resources, scopes, self.resource_of)
        scopes.faults.spread(self.scope_of, self.records.faults)
        keep_origin(name, found)

    def origin(self, records: Places) -> dict[str, pa.Array]:
        """The columns of resource and scope for these records."""
        return self._origins.columns(self.scope_of[records])

    def place(self, record: int) -> tuple[int, int, int]:
        """Where a record lies: the resource, the scope in it, the record in that."""
        scope = int(self.scope_of[record])
        resource = int(self.resource_of[scope])
        first_scope = int(np.searchsorted(self.resource_of, resource))
        first_record = int(np.searchsorted(self.scope_of, scope))
        return resource, scope - first_scope, record - first_record
