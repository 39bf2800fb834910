"""Requests taken apart: resources, their scopes, and the records in these, each side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calve.ingest.otlp.columns import Faults, Level, Places
from calve.ingest.otlp.messages import LEVELS, Reader
from calve.ingest.otlp.origins import Origins, keep_origins, kept_origins, sole_origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from calve.ingest.otlp.origins import KeptOrigins


class Request:
    """What records have in common, and where each lies: `scope_of` its scope, and so on.

    Of one message, or of several as if they had been sent as one.
    """

    def __init__(self, reader: Reader, messages: Sequence[Any]) -> None:
        self.reader = reader
        self.messages = messages
        outer, middle, inner = LEVELS[reader.signal]
        names = [sole_origin(reader.signal, message) for message in messages]
        kept = kept_origins(names)
        lists = reader.batch(messages, has_origins=kept is None).column(outer)
        resources = Level(lists.values, np.arange(len(lists.values)), Faults())
        scopes, self.resource_of = resources.below(middle)
        self.records, self.scope_of = scopes.below(inner)
        if kept is not None:
            self._origins: Origins | KeptOrigins = kept
            return
        self._origins = found = Origins(resources, scopes, self.resource_of)
        scopes.faults.spread(self.scope_of, self.records.faults)
        keep_origins(names, found)

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
