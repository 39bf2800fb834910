"""How far a table that a topic feeds has come, where its property alone may not be believed.

Somebody may have edited it, restored an older copy or set the table back. The table's snapshots,
its rows and the state are asked as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from calve.errors import Conflict
from calve.tables.lineage import is_unbroken
from calve.tables.offset_scan import has_offsets, offset_files, read_offsets
from calve.tables.positions import Position, committed_position, committed_positions
from calve.tables.reached import is_on_line, reached_offset, stated_offset
from calve.tables.runs import Runs

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from calve.changes.hold import Known


def borne_out(table: Table, known: Mapping[int, Known]) -> dict[int, Position]:
    """The committed positions, and where they were edited, what the snapshots say instead."""
    return {
        partition: _borne_out(table, partition, position, is_known=partition in known)
        for partition, position in committed_positions(table).items()
    }


def _borne_out(table: Table, partition: int, position: Position, *, is_known: bool) -> Position:
    if is_unbroken(table, partition, position):
        return position
    head = table.metadata.current_snapshot_id
    its_own = table.snapshot_by_id(position.snapshot_id)
    told = [
        stated_offset(its_own, partition) if its_own else None,
        reached_offset(table, head, partition) if head is not None else None,
        # Of a snapshot that is gone nobody can say that it did not bring this.
        position.offset if its_own is None and not is_known else None,
    ]
    offset = max((each for each in told if each is not None), default=position.offset)
    if offset == position.offset:
        return position
    return replace(position, offset=offset, checksum="")


def come_to(
    table: Table, snapshot_id: int, came: Mapping[int, Runs], known: Mapping[int, Known]
) -> dict[int, Position]:
    """How far each partition has come once a snapshot is the newest: never back.

    As far as the table had come before, or the snapshot, whose rows `came` back; or as far as the
    state knows, of a table that somebody else has set back.
    """
    newest = table.metadata.current_snapshot_id or 0
    found = borne_out(table, known)
    for partition, told in known.items():
        position = found.get(partition, Position(told.stream_id, 0, "", newest))
        if position.offset < told.offset:
            found[partition] = replace(
                position, log=told.stream_id, offset=told.offset, checksum=""
            )
    for partition, position in found.items():
        rows = came.get(partition, Runs.empty())
        end = max(reached_offset(table, snapshot_id, partition) or 0, _end(rows))
        if position.offset < end:
            found[partition] = replace(position, offset=end, checksum="")
    return found


def reached_at(table: Table, snapshot_id: int, partition: int) -> int:
    """How far a partition had come in a snapshot: up to where its rows need not come again."""
    found = reached_offset(table, snapshot_id, partition)
    position = committed_position(table, partition)
    if found is None and position is None:
        found = 0  # The property outlives snapshots: nothing of it was ever in this table.
    if found is None and position and snapshot_id == table.metadata.current_snapshot_id:
        found = position.offset if is_on_line(table, position) else None
    if found is None:
        raise Conflict(
            f"nobody knows how far partition {partition} had come in snapshot {snapshot_id}: the "
            "snapshots that told it have expired",
            hint="name a later snapshot, or roll back without --replay",
        )
    beyond = Runs.of_pairs([(found, 2**63 - 1)])
    # None, unless somebody has removed the property or written another one.
    return max(found, _end(rows_within(table, snapshot_id, {partition: beyond})[partition]))


def rows_within(
    table: Table, snapshot_id: int | None, wanted: Mapping[int, Runs]
) -> dict[int, Runs]:
    """Which of some offsets a snapshot has."""
    files = []
    if has_offsets(table) and any(map(len, wanted.values())):
        within = Runs.joined(list(wanted.values()))
        files = [each for each in offset_files(table, snapshot_id) if each.may_hold(within)]
    found = read_offsets(table, files)
    return {
        partition: found.get(partition, Runs.empty()).intersection(runs)
        for partition, runs in wanted.items()
    }


def _end(runs: Runs) -> int:
    return int(runs.ends[-1]) if len(runs) else 0
