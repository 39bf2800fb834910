"""What a topic has set aside, for the audit: its dead letters, and those about to become some.

The topic's table is read first. Its newest commit names files with dead letters that may not be in
their table yet: they count as set aside too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calve.errors import Corruption, NotFound
from calve.maintenance.sweep import Source
from calve.maintenance.verification import told
from calve.tables.dead_letters import named_dead_letters, require_not_set_back
from calve.tables.footers import described_files
from calve.tables.lineage import require_unbroken
from calve.tables.offset_scan import readable_offset_files, staged_files
from calve.tables.positions import committed_positions
from calve.tables.removals import Removals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from pyiceberg.table import Table

    from calve.tables.dead_letters import PendingDeadLetters
    from calve.tables.positions import Position


@dataclass(slots=True)
class SetAside:
    """The files to count, and what is wrong with them. `pending` are rows not committed yet."""

    table: Table | None = None
    sources: list[Source] = field(default_factory=list)
    removals: Removals = field(default_factory=Removals)
    pending: int = 0
    problems: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, table: Table, letters: Table | None) -> SetAside:
        """`letters` was read after the topic's table; None if there is no such table."""
        found = cls(letters)
        positions: dict[int, Position] = {}
        if letters is not None:
            positions = committed_positions(letters)
            ends = {partition: position.offset for partition, position in positions.items()}
            files, damage = readable_offset_files(letters, letters.metadata.current_snapshot_id)
            found.damage += map(told, damage)
            found.sources.append(Source(letters, files, ends))
            found.removals = Removals.parse(letters.properties)
            found.problems += _rewound(letters)
            found.problems += _set_back(letters, table)
        for partition, log, pending in _named(table):
            known = positions.get(partition)
            if known is None or known.log != log or known.offset < pending.end:
                found._add_pending(partition, pending)
        return found

    def _add_pending(self, partition: int, pending: PendingDeadLetters) -> None:
        if self.table is None:
            self.problems.append(
                f"there are dead letters of partition {partition}, in {', '.join(pending.files)}, "
                "and no table for them: somebody has dropped it"
            )
            return
        try:
            files = described_files(self.table, pending.files)
        except (NotFound, Corruption) as error:
            self.problems.append(f"dead letters cannot be read: {error.message}")
            return
        staged = staged_files(self.table, files)
        self.sources.append(Source(self.table, staged, {partition: pending.end}))
        self.pending += sum(file.record_count for file in files)


def _named(table: Table) -> Iterator[tuple[int, UUID, PendingDeadLetters]]:
    """What the newest range of each partition has set aside, and the log that it came from."""
    for partition, position in committed_positions(table).items():
        pending = named_dead_letters(table.properties, partition)
        if pending is not None:
            yield partition, position.log, pending


def _rewound(letters: Table) -> Iterator[str]:
    for partition, position in committed_positions(letters).items():
        try:
            require_unbroken(letters, partition, position, None)
        except Corruption as error:
            yield told(error)


def _set_back(letters: Table, table: Table) -> Iterator[str]:
    for partition in committed_positions(table):
        try:
            require_not_set_back(letters, table, partition)
        except Corruption as error:
            yield told(error)
