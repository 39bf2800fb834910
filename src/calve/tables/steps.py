"""The snapshots that lead from one of a table to its newest, for those who follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import ancestors_of

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class Step:
    """A snapshot on the way to the newest one; `has_parent` if the one before it is kept too."""

    id: int
    parent_id: int | None
    has_parent: bool
    operation: str
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Line:
    """Snapshots that lead from `begin` to the newest one, oldest first; None is before them all."""

    begin: int | None
    steps: Sequence[Step]


def line_since(table: Table, snapshot_id: int | None) -> Line:
    """What leads on from a snapshot, as far as it is kept.

    From where the ways part, if the table was set back; from the oldest, if it has expired.
    """
    kept = {each.snapshot_id for each in table.metadata.snapshots}
    seen = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    passed = {each.snapshot_id for each in ancestors_of(seen, table.metadata)} if seen else set()
    steps: list[Step] = []
    begin: int | None = None
    for each in ancestors_of(table.current_snapshot(), table.metadata):
        if each.snapshot_id in passed:
            begin = each.snapshot_id
            break
        parent = each.parent_snapshot_id
        steps.append(
            Step(
                each.snapshot_id,
                parent,
                parent in kept,
                each.summary.operation.value if each.summary else "unknown",
                datetime.fromtimestamp(each.timestamp_ms / 1000, UTC),
            )
        )
    return Line(begin, steps[::-1])
