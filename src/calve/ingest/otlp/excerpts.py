"""Single records out of a request, as requests of their own: what a rejected one is kept as."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calve.ingest.otlp.messages import LEVELS
from calve.ingest.otlp.tables import REJECTED_TYPE
from calve.wal import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.ingest.otlp.columns import Places
    from calve.ingest.otlp.request import Request

_BYTES_MIN: Final = 1 << 20
_TIMES: Final = 4


class Excerpts:
    """Of a request that was decoded alone. Bounded: together they take a few times the request,
    however large its resource is.

    Beyond that, a record is kept without its resource and scope, a point without its metadata.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        (self._message,) = request.messages
        self._levels = LEVELS[request.reader.signal]
        self._left: int | None = None

    def record(self, place: int, reason: str) -> Rejected:
        return self._rejected(self._single(place, self._original(place)), reason)

    def points(self, kind: str, metric_of: Places) -> Callable[[int, str], Rejected]:
        """For the points of the metrics of one kind."""

        def point(place: int, reason: str) -> Rejected:
            metric = int(metric_of[place])
            original = self._original(metric)
            within = place - int(np.searchsorted(metric_of, metric))
            single = type(original)()
            for name in ("name", "description", "unit"):
                setattr(single, name, getattr(original, name))
            if self._has_room(sum(each.ByteSize() for each in original.metadata)):
                single.metadata.MergeFrom(original.metadata)
            whole, part = getattr(original, kind), getattr(single, kind)
            part.SetInParent()
            part.data_points.add().CopyFrom(whole.data_points[within])
            for field, value in whole.ListFields():
                if field.name != "data_points":
                    setattr(part, field.name, value)
            return self._rejected(self._single(metric, single), reason)

        return point

    def _original(self, record: int) -> Any:
        outer, middle, inner = self._levels
        resource, scope, within = self._request.place(record)
        scopes = getattr(getattr(self._message, outer)[resource], middle)
        return getattr(scopes[scope], inner)[within]

    def _single(self, record: int, content: Any) -> Any:
        """A request with this record alone."""
        outer, middle, inner = self._levels
        resource_at, scope_at, _ = self._request.place(record)
        resource = getattr(self._message, outer)[resource_at]
        scope = getattr(resource, middle)[scope_at]
        single = self._request.reader.wide()
        new_resource = getattr(single, outer).add()
        new_scope = getattr(new_resource, middle).add()
        if self._has_room(resource.resource.ByteSize() + scope.scope.ByteSize()):
            new_resource.resource.CopyFrom(resource.resource)
            new_resource.schema_url = resource.schema_url
            new_scope.scope.CopyFrom(scope.scope)
            new_scope.schema_url = scope.schema_url
        getattr(new_scope, inner).add().CopyFrom(content)
        return single

    def _has_room(self, more_bytes: int) -> bool:
        if self._left is None:
            self._left = max(_BYTES_MIN, _TIMES * self._message.ByteSize())
        self._left -= more_bytes
        return self._left >= 0

    @staticmethod
    def _rejected(single: Any, reason: str) -> Rejected:
        content_type = f"{REJECTED_TYPE}{single.DESCRIPTOR.full_name}"
        return Rejected(single.SerializeToString(), content_type, reason)
