"""Attributes of telemetry that a topic wants as columns of their own: what it may ask for.

The property `otlp.promoted_attributes` names them, with commas in between: `http.route` becomes the
column `attribute_http_route`, and `resource:k8s.pod.name` of the resource's attributes the column
`resource_attribute_k8s_pod_name`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

PROPERTY: Final = "otlp.promoted_attributes"
_OTLP: Final = "otlp."
_RESOURCE: Final = "resource:"
_KEY: Final = re.compile(r"[A-Za-z0-9][\x21-\x2b\x2d-\x7e]{0,254}")  # visible, and no comma
_NO_LETTERS: Final = re.compile(r"[^a-z0-9]+")
_TAKEN: Final = frozenset({"attribute_types", "resource_attribute_types"})
_HINT: Final = "name keys of attributes, such as http.route,resource:k8s.pod.name"


class Promoted(NamedTuple):
    """One that is wanted: its column, the map that it is looked up in, and its key there."""

    column: str
    attributes: str
    key: str


@lru_cache(maxsize=256)
def promoted(wanted: str) -> tuple[Promoted, ...]:
    """What a value of the property asks for."""
    found = []
    for each in filter(None, map(str.strip, wanted.split(","))):
        key = each.removeprefix(_RESOURCE)
        prefix = "resource_" if each.startswith(_RESOURCE) else ""
        column = f"{prefix}attribute_{_NO_LETTERS.sub('_', key.lower()).strip('_')}"
        found.append(Promoted(column, f"{prefix}attributes", key))
    return tuple(found)


def check_promotion(properties: Mapping[str, str | None]) -> None:
    """InvalidRequest for a value that would not become the columns that were meant."""
    for name in properties:
        if name.startswith(_OTLP) and name != PROPERTY:
            raise InvalidRequest(f"there is no property {name!r}", hint=f"there is {PROPERTY}")
    columns: dict[str, str] = {}
    for each in promoted(properties.get(PROPERTY) or ""):
        if not _KEY.fullmatch(each.key):
            raise InvalidRequest(f"{PROPERTY} names {each.key!r}, which is no key", hint=_HINT)
        if each.column in _TAKEN:
            raise InvalidRequest(
                f"{each.key!r} would become the column {each.column}, which telemetry has already",
                hint="leave it in its map",
            )
        if each.column in columns:
            raise InvalidRequest(
                f"{columns[each.column]!r} and {each.key!r} would both become the column "
                f"{each.column}",
                hint="name one of them; the other stays in its map",
            )
        columns[each.column] = each.key
