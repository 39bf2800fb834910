"""What became of columns that somebody dropped or renamed in a table that a topic feeds.

Producers may go on sending them. The table remembers, so that whoever writes the topic's rows drops
the column again, or writes it under its new name, and does not bring it back. Kept in two table
properties as JSON, with each column as the list of names that leads to it:
`calve.columns.dropped` = `[["email"],["address","city"]]`,
`calve.columns.renamed` = `[[["name"],["full_name"]]]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

import msgspec

from calve.errors import Corruption

DROPPED: Final = "calve.columns.dropped"
RENAMED: Final = "calve.columns.renamed"

Path: TypeAlias = tuple[str, ...]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ColumnMemory:
    """Columns that are gone, and columns that have another name now."""

    dropped: frozenset[Path] = frozenset()
    renamed: Mapping[Path, Path] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> ColumnMemory:
        dropped = _decoded(properties, DROPPED, list[Path])
        renamed = _decoded(properties, RENAMED, list[tuple[Path, Path]])
        return cls(frozenset(dropped), MappingProxyType(dict(renamed)))

    def entries(self) -> dict[str, str]:
        """As the table's properties have them."""
        return {
            DROPPED: msgspec.json.encode(sorted(self.dropped)).decode(),
            RENAMED: msgspec.json.encode(sorted(self.renamed.items())).decode(),
        }

    def place(self, column: Path) -> Path | None:
        """Where a column that comes in belongs; None if it was dropped."""
        for length in range(1, len(column) + 1):
            head = column[:length]
            if head in self.dropped:
                return None
            if head in self.renamed:
                return self.place(self.renamed[head] + column[length:])
        return column

    def with_dropped(self, column: Path) -> ColumnMemory:
        """Those names too that had become the column's, and its fields' with it."""
        renamed = {old: new for old, new in self.renamed.items() if not _within(new, column)}
        lost = self.renamed.keys() - renamed.keys()
        return ColumnMemory(self.dropped | {column} | lost, MappingProxyType(renamed))

    def with_renamed(self, column: Path, new: Path) -> ColumnMemory:
        kept = self.with_added(new)
        renamed = {
            old: new + to[len(column) :] if _within(to, column) else to
            for old, to in kept.renamed.items()
        }
        renamed[column] = new
        return ColumnMemory(kept.dropped, MappingProxyType(renamed))

    def with_added(self, column: Path) -> ColumnMemory:
        """The name stands for itself again."""
        renamed = {old: to for old, to in self.renamed.items() if old != column}
        return ColumnMemory(self.dropped - {column}, MappingProxyType(renamed))


def _within(column: Path, other: Path) -> bool:
    return column[: len(other)] == other


def _decoded(properties: Mapping[str, str], name: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(properties.get(name, "[]"), type=kind)
    except msgspec.MsgspecError as error:
        raise Corruption(
            f"the table's property {name} is unreadable: {error}",
            hint="set it back to what the metadata file before has, with Spark's ALTER TABLE; "
            "[] forgets what was dropped or renamed",
            context={"property": name},
        ) from error
