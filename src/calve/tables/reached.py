"""Which offset a table had come to at one of its snapshots.

A commit of a range says it in its summary, and a rollback says what it left:
`calve.reached.<partition>`.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from calve.tables.positions import Position, summarised_range

_REACHED: Final = "calve.reached."


def reached_summary(partition: int, offset: int) -> dict[str, str]:
    """What a snapshot says that leaves a partition at an offset without bringing a range."""
    return {f"{_REACHED}{partition}": str(offset)}


def reached_offset(table: Table, snapshot_id: int, partition: int) -> int | None:
    """How far the table had come in a snapshot; None if the snapshots that knew it have expired."""
    oldest: Snapshot | None = None
    for oldest in ancestors_of(table.snapshot_by_id(snapshot_id), table.metadata):
        found = stated_offset(oldest, partition)
        if found is not None:
            return found
    if oldest is not None and oldest.sequence_number == 1:
        return 0
    return _before_what_followed(table, snapshot_id, partition)


def stated_offset(snapshot: Snapshot, partition: int) -> int | None:
    """Where a snapshot says that it left a partition, if it speaks of it."""
    summary = _summary(snapshot)
    brought = summarised_range(summary, partition)
    text = summary.get(f"{_REACHED}{partition}", "")
    if brought is not None:
        return brought[1]
    return int(text) if text.isascii() and text.isdecimal() else None


def is_on_line(table: Table, position: Position) -> bool:
    """Whether the snapshot that brought a position led to the newest one, as far as can be seen."""
    if table.snapshot_by_id(position.snapshot_id) is None:
        return True
    line = ancestors_of(table.current_snapshot(), table.metadata)
    return any(each.snapshot_id == position.snapshot_id for each in line)


def _before_what_followed(table: Table, snapshot_id: int, partition: int) -> int | None:
    line = list(ancestors_of(table.current_snapshot(), table.metadata))
    if all(each.snapshot_id != snapshot_id for each in line):
        return None  # What follows in the line did not follow it.
    later = list(takewhile(lambda each: each.snapshot_id != snapshot_id, line))
    for each in reversed(later):
        brought = summarised_range(_summary(each), partition)
        if brought is not None:
            return brought[0]
        if stated_offset(each, partition) is not None:
            return None
    return None


def _summary(snapshot: Snapshot) -> dict[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}
