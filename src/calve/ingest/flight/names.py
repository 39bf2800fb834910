"""Names in Flight's own places: the path of a descriptor is a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarrow import flight

from calve.errors import InvalidRequest
from calve.model import TableName

if TYPE_CHECKING:
    from calve.access import Caller


def topic_of(descriptor: Any, caller: Caller) -> TableName:
    """The topic that a descriptor names to a caller: [tenant, dataset, name], or [name]."""
    path = descriptor.path or []
    if descriptor.descriptor_type != flight.DescriptorType.PATH or len(path) not in {1, 3}:
        raise InvalidRequest(
            "the descriptor names no topic",
            hint="its path is [tenant, dataset, name], or [name] in one's own dataset",
        )
    try:
        parts = [part.decode() for part in path]
    except UnicodeDecodeError as error:
        raise InvalidRequest("the descriptor's path is not UTF-8") from error
    if len(parts) == 1:
        return caller.topic(parts[0])
    name = TableName(*parts)
    caller.require_seen(name)
    return name


def descriptor_of(name: TableName) -> Any:
    return flight.FlightDescriptor.for_path(name.tenant, name.dataset, name.name)
