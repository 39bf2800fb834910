"""The table of a topic as a reader last saw it: how far it has come, whether it was set back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from calve.errors import Conflict, NotFound
from calve.tables.offset_scan import offset_change
from calve.tables.positions import committed_positions
from calve.tables.removal_history import ancestors
from calve.tables.removals import Removals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from calve.model import TableName
    from calve.subscriptions.stats import Counts
    from calve.tables.catalog import LakeCatalog
    from calve.tables.positions import Position

_OPERATION: Final = "calve.operation"
_ROLLBACK: Final = "rollback-"
# Of these snapshots it is known that no row is gone.
_KEEPING: Final = frozenset({"append", "replace"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A table at one look; None if the topic has none yet."""

    table: Table | None = None
    positions: Mapping[int, Position] = field(default_factory=dict)

    @property
    def snapshot_id(self) -> int | None:
        return self.table.metadata.current_snapshot_id if self.table is not None else None

    @property
    def uuid(self) -> UUID | None:
        return self.table.metadata.table_uuid if self.table is not None else None

    def committed(self, partition: int) -> int:
        """The end of what is in the table."""
        position = self.positions.get(partition)
        return position.offset if position else 0


@dataclass(frozen=True, slots=True)
class SetBack:
    """Rows were taken out of the table from `lowest` on, and may come again from there."""

    lowest: int
    committed: int


class TableWatch:
    """Looks at a topic's table. Safe to share between threads."""

    def __init__(self, catalog: LakeCatalog, name: TableName, counts: Counts) -> None:
        self._catalog = catalog
        self._name = name
        self._counts = counts

    def look(self, before: Seen | None = None) -> Seen:
        """The table as it is now. NotFound if it is gone, Conflict if another took its place."""
        self._counts.add(table_looks=1)
        table = self._catalog.find_table(self._name)
        if table is None:
            if before is not None and before.table is not None:
                raise NotFound(
                    f"the table of topic {self._name} is gone: it was dropped or renamed",
                    hint="give the table its name back, then read on from the same offsets",
                )
            return Seen()
        if before is not None and before.uuid not in {None, table.metadata.table_uuid}:
            raise Conflict(
                f"the table of topic {self._name} is another one than before",
                hint="if it was dropped and made again on purpose, open the reader anew",
            )
        if before is not None and before.snapshot_id == table.metadata.current_snapshot_id:
            # Positions change only together with a snapshot.
            return Seen(table, before.positions)
        return Seen(table, committed_positions(table))


def has_lost_rows(before: Seen, after: Seen) -> bool:
    """Whether rows may have been taken out of the table between two looks."""
    if before.table is None or after.table is None or before.snapshot_id == after.snapshot_id:
        return False
    for each in ancestors(after.table):
        if each.id == before.snapshot_id:
            return False
        if each.removes_rows or each.operation not in _KEEPING:
            return True
    return True


def set_back(before: Seen, after: Seen, partition: int, position: int) -> SetBack | None:
    """From where on rows that a reader has passed were taken out by a rollback, if they were."""
    if before.table is None or after.table is None or before.snapshot_id == after.snapshot_id:
        return None
    committed = after.committed(partition)
    lowest = [committed] if committed < before.committed(partition) else []
    newer = _newer_than(before, after.table)
    for each in after.table.metadata.snapshots:
        if each.snapshot_id in newer and (summary := _rollback(each)):
            lowest += [part.first for part in Removals.parse(summary).ranges(partition).ranges]
    lowest += _unrecorded(before, after.table, partition, newer)
    found = min(lowest, default=position)
    return SetBack(found, committed) if found < position else None


def _newer_than(before: Seen, table: Table) -> set[int]:
    """The snapshots that came after a look, wherever they led."""
    assert before.table is not None
    known = {each.snapshot_id for each in before.table.metadata.snapshots}
    return {each.snapshot_id for each in table.metadata.snapshots} - known


def _rollback(snapshot: Snapshot) -> Mapping[str, str]:
    """The summary of a rollback, which tells what it took out; nothing for other snapshots."""
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    return summary if summary.get(_OPERATION, "").startswith(_ROLLBACK) else {}


def _unrecorded(before: Seen, table: Table, partition: int, newer: set[int]) -> list[int]:
    """Where rows begin that somebody has taken out who went back without a word."""
    if before.snapshot_id is None or table.snapshot_by_id(before.snapshot_id) is None:
        return []
    line = [each.id for each in ancestors(table)]
    if before.snapshot_id in line:
        return []
    since = [each for each in line if each in newer]
    begun = table.snapshot_by_id(since[-1]) if since else None
    if begun is not None and _rollback(begun):
        return []
    target = next((each for each in line if each not in newer), None)
    left = offset_change(table, before.snapshot_id, target).left
    return [first for first, _ in left[partition].pairs()[:1]] if partition in left else []
