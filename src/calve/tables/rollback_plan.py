"""What a rollback would do to a table, as plain values for those who show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calve.grid import Grid, ShownAsGrids
from calve.tables.ranges import Range
from calve.tables.snapshots import current_snapshot, require_rollback
from calve.tables.translate import translating

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition of the topic: its committed offset before and after, and what goes.

    `removed` would be recorded as removed, `replayed` would come from the log again.
    """

    partition: int
    committed: int
    committed_after: int
    removed: tuple[Range, ...]
    replayed: Range | None


@dataclass(frozen=True, slots=True, repr=False)
class RollbackPlan(ShownAsGrids):
    """From which snapshot to which, with the rows that each says it has.

    `partitions` are those of the topic that feeds the table; rows that come from the log again are
    not among `rows_after`. Without `has_effect` the table is there already.
    """

    from_snapshot_id: int | None
    to_snapshot_id: int
    rows_before: int | None
    rows_after: int | None
    has_effect: bool
    topic: str | None = None
    partitions: tuple[PartitionPlan, ...] = ()
    is_dry_run: bool = True

    def grids(self) -> list[Grid]:
        snapshots = Grid(
            ("", "SNAPSHOT", "ROWS"),
            [
                ("now", self.from_snapshot_id, _number(self.rows_before)),
                ("then", self.to_snapshot_id, _number(self.rows_after)),
            ],
        )
        return [snapshots, self.partition_grid()] if self.topic else [snapshots]

    def partition_grid(self) -> Grid:
        columns = ("PARTITION", "OFFSETS", "COUNT", "WOULD BE")
        return Grid(columns, [cells for each in self.partitions for cells in _cells(each)])


def plan_rollback(table: Table, snapshot_id: int, *, force: bool) -> RollbackPlan:
    """What becomes of the table itself, if the rollback would be taken."""
    with translating():
        wanted = require_rollback(table, snapshot_id, force=force)
        current = current_snapshot(table)
        return RollbackPlan(
            from_snapshot_id=current.id if current else None,
            to_snapshot_id=snapshot_id,
            rows_before=current.total_rows if current else 0,
            rows_after=wanted.total_rows,
            has_effect=not wanted.is_current,
        )


def _cells(plan: PartitionPlan) -> Iterator[tuple[object, ...]]:
    for each in plan.removed:
        yield _row(plan, each, "recorded as removed")
    if plan.replayed is not None:
        yield _row(plan, plan.replayed, "taken from the log again")


def _row(plan: PartitionPlan, each: Range, what: str) -> tuple[object, ...]:
    return plan.partition, f"{each.first}-{each.end}", f"{each.count:,}", what


def _number(count: int | None) -> str | None:
    return None if count is None else f"{count:,}"
