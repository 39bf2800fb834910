"""Names in Flight's own places: the path of a descriptor is a topic."""

from __future__ import annotations

from typing import Any

from pyarrow import flight

from calve.errors import InvalidRequest
from calve.model import TableName


def topic_of(descriptor: Any) -> TableName:
    """The topic that a descriptor names: [tenant, dataset, name], or [name]."""
    path = descriptor.path or []
    if descriptor.descriptor_type != flight.DescriptorType.PATH or len(path) not in {1, 3}:
        raise InvalidRequest(
            "the descriptor names no topic",
            hint="its path is [tenant, dataset, name], or [name] in the default dataset",
        )
    try:
        parts = [part.decode() for part in path]
    except UnicodeDecodeError as error:
        raise InvalidRequest("the descriptor's path is not UTF-8") from error
    return TableName(*parts) if len(parts) == 3 else TableName.parse(parts[0])


def descriptor_of(name: TableName) -> Any:
    return flight.FlightDescriptor.for_path(name.tenant, name.dataset, name.name)
