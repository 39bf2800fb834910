"""How far a table that a topic feeds has come, where its property alone may not be believed.

Somebody may have edited it, restored an older copy or set the table back. The table's snapshots,
its rows and the state are asked as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from calve.errors import Conflict
from calve.tables.beginnings import later_beginnings
from calve.tables.feeding import feeding_topic
from calve.tables.lineage import is_unbroken
from calve.tables.offset_scan import has_offsets, offset_files, read_offsets
from calve.tables.positions import Position, committed_position, committed_positions
from calve.tables.reached import is_on_line, reached_offset, stated_offset
from calve.tables.runs import Runs

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from calve.changes.hold import Known

_OFFSET_END: Final = 2**63 - 1


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
        _reached_of_own(table, head, partition) if head is not None else None,
        # Of a snapshot that is gone nobody can say that it did not bring this.
        position.offset if its_own is None and not is_known else None,
    ]
    offset = max((each for each in told if each is not None), default=position.offset)
    if offset == position.offset:
        return position
    return replace(position, offset=offset, checksum="")


def _reached_of_own(table: Table, snapshot_id: int, partition: int) -> int | None:
    """How far a snapshot had come, without what it has of a log before that of now."""
    found = reached_offset(table, snapshot_id, partition)
    begun = later_beginnings(table, snapshot_id).get(partition)
    return found if found is None or begun is None else min(found, begun)


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


def require_own_rows(table: Table, snapshot_id: int, known: Mapping[int, Known]) -> None:
    """Refuse a snapshot that has come beyond where another log has taken the table over since.

    Its rows have offsets of which the log of now has others: these would be taken for committed,
    or be replaced without a record.
    """
    for partition, begun in _begun_since(table, snapshot_id, known).items():
        beyond = {partition: Runs.of_pairs([(begun, _OFFSET_END)])}
        rows = rows_within(table, snapshot_id, beyond)[partition]
        end = max(reached_offset(table, snapshot_id, partition) or 0, _end(rows))
        if end > begun:
            topic = feeding_topic(table)
            where = f"_calve_partition = {partition} AND _calve_offset >= {begun}"
            raise Conflict(
                f"snapshot {snapshot_id} had come to offset {end} of partition {partition}, in "
                f"another log than that of now, which began at offset {begun} and gives the same "
                "offsets to other rows",
                hint="keep the rows of that time with `calve table query "
                f'{topic} --snapshot {snapshot_id} --where "{where}" --output rows.parquet`, and '
                f"send them again with `calve produce {topic} --data rows.parquet`; or name a "
                "snapshot from after the topic was bound again or given a new log, or one that had "
                f"not come beyond offset {begun}",
                context={"partition": str(partition), "offset": str(begun)},
            )


def _begun_since(table: Table, snapshot_id: int, known: Mapping[int, Known]) -> dict[int, int]:
    """From which offsets on partitions have had rows of another log since a snapshot."""
    found = later_beginnings(table, snapshot_id)
    for partition, position in committed_positions(table).items():
        told = known.get(partition)
        if told and told.stream_id != position.log and told.offset > position.offset:
            # The table was restored from a copy of before that, which cannot tell of it.
            found[partition] = min(position.offset, found.get(partition, position.offset))
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
    beyond = Runs.of_pairs([(found, _OFFSET_END)])
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
