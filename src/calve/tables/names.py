"""Calve's names as a catalog spells them, and back.

Catalogs with nested namespaces have a tenant with its datasets below; flat ones have
`tenant__dataset`, which cannot be mistaken, because no part of a name holds a double underscore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from calve.errors import InvalidRequest
from calve.model import TableName

_JOINT: Final = "__"


@dataclass(frozen=True, slots=True)
class NameMap:
    is_flat: bool

    def identifier(self, name: TableName) -> tuple[str, ...]:
        return (*self.namespaces(name)[-1], name.name)

    def namespaces(self, name: TableName) -> list[tuple[str, ...]]:
        """The namespaces a table needs, outermost first; some catalogs want the outer one made."""
        if self.is_flat:
            return [(f"{name.tenant}{_JOINT}{name.dataset}",)]
        return [(name.tenant,), name.namespace]

    def name(self, identifier: tuple[str, ...]) -> TableName | None:
        """The table's name, or None for one that is not Calve's."""
        *namespace, table = identifier
        parts = namespace[0].split(_JOINT) if self.is_flat and len(namespace) == 1 else namespace
        if len(parts) != 2:
            return None
        try:
            return TableName(parts[0], parts[1], table)
        except InvalidRequest:
            return None
