"""A statement as DuckDB's parser gives it: a tree of dicts and lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

Node: TypeAlias = dict[str, Any]


def walk(node: Any) -> Iterator[Node]:
    """Each node; those inside of others come after them."""
    rest = [node]
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            yield each
            rest.extend(each.values())
        elif isinstance(each, list):
            rest.extend(each)
