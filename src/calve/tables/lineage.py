"""Whether a table still is what its committed offset says: neither rewound, edited nor exchanged.

Only what is kept can be looked at: once the snapshots of a partition's commits have expired, its
property is believed. Rollbacks by Calve write the property anew and are no rewinding.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from calve.errors import Corruption
from calve.tables.positions import Position, differ, summarised_range
from calve.tables.reached import stated_offset

_EMPTY: Final = (
    "somebody has replaced the table, which is empty now; `calve table rollback --force` to one of "
    "its kept snapshots (`calve table list-snapshots`) brings back the rows of that time"
)
_WAY_OUT: Final = (
    "restore the catalog's newer state, if it was set back; otherwise `calve topic verify` tells "
    "what the table holds and lacks, and `calve table rollback` to its current snapshot records "
    "what is gone, or with --replay takes it from the log again"
)


def require_unbroken(
    table: Table, partition: int, position: Position | None, last_seen: Position | None
) -> None:
    """Raise Corruption unless the table's snapshots and the caller's memory bear it out."""
    if position is None:
        _require_untouched(table, partition)
    else:
        _require_led_to(table, partition, position)
    if last_seen is not None:
        _require_not_behind(table, partition, position, last_seen)


def is_unbroken(table: Table, partition: int, position: Position | None) -> bool:
    """Whether the table's snapshots bear it out."""
    try:
        require_unbroken(table, partition, position, None)
    except Corruption:
        return False
    return True


def snapshots_before(table: Table, partition: int, offset: int) -> list[Snapshot]:
    """The newest snapshot with which the partition had not passed the offset, and its ancestors.

    What a range from that offset on has brought is in none of them: whoever sets a partition back
    continues a snapshot from before the range.
    """

    def is_after(snapshot: Snapshot) -> bool:
        brought = _brought(snapshot, partition)
        return brought is None or brought > offset

    return list(dropwhile(is_after, _ancestors(table)))


def _require_led_to(table: Table, partition: int, position: Position) -> None:
    """Its snapshot is the newest that says where it left the partition, or came before them."""
    oldest: Snapshot | None = None
    for oldest in _ancestors(table):
        brought = stated_offset(oldest, partition)
        if oldest.snapshot_id == position.snapshot_id and brought in {None, position.offset}:
            return
        if brought is not None:
            raise _broken(
                table,
                partition,
                f"it has {position.offset} as committed offset, from snapshot "
                f"{position.snapshot_id}, but its snapshot {oldest.snapshot_id} brought it to "
                f"{brought}",
            )
    if not _is_explained_by_expiry(table, position, oldest):
        raise _broken(
            table,
            partition,
            f"it has {position.offset} as committed offset, from snapshot {position.snapshot_id}, "
            "which does not lead to its newest one",
        )


def _ancestors(table: Table) -> Iterator[Snapshot]:
    """The snapshots that led to the newest, from it on, as far back as none is missing."""
    kept = {each.snapshot_id: each for each in table.metadata.snapshots}
    each = table.current_snapshot()
    while each is not None:
        yield each
        each = kept.get(each.parent_snapshot_id) if each.parent_snapshot_id is not None else None


def _brought(snapshot: Snapshot, partition: int) -> int | None:
    """The end of the partition's range that came with a snapshot, if one did."""
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    found = summarised_range(summary, partition)
    return found[1] if found else None


def _is_explained_by_expiry(table: Table, position: Position, oldest: Snapshot | None) -> bool:
    """Whether the position's snapshot may have come before the oldest one of the line."""
    if oldest is None or _was_left(table, position):
        return False
    if table.format_version == 1:
        return True  # Its snapshots are not numbered.
    line_begins = oldest.sequence_number or 0
    kept = table.snapshot_by_id(position.snapshot_id)
    came_before = kept is None or (kept.sequence_number or 0) < line_begins
    return line_begins > 1 and came_before


def _was_left(table: Table, position: Position) -> bool:
    """Whether its snapshot was the newest, and the one that followed does not continue it.

    Expiry takes out of the table's log all that was the newest before a snapshot that goes. So what
    is in it, and not in the line, was rolled back, or replaced by another table of the same name.
    """
    return any(entry.snapshot_id == position.snapshot_id for entry in table.metadata.snapshot_log)


def _require_untouched(table: Table, partition: int) -> None:
    for each in _ancestors(table):
        brought = _brought(each, partition)
        if brought is not None:
            raise _broken(
                table,
                partition,
                f"its snapshot {each.snapshot_id} brought it to {brought}, but it has no "
                "committed offset",
            )


def _require_not_behind(
    table: Table, partition: int, position: Position | None, last_seen: Position
) -> None:
    if position is None and not last_seen.offset:
        return  # A table that was made again lacks nothing, if there was nothing of the log.
    if position is None:
        raise _broken(
            table,
            partition,
            f"it has no committed offset, and had {last_seen.offset} before",
        )
    if position.offset < last_seen.offset and not _is_rollback(
        table, partition, since=last_seen, now=position
    ):
        raise _broken(
            table,
            partition,
            f"it has {position.offset} as committed offset, and had {last_seen.offset} before",
        )
    if position.offset == last_seen.offset and differ(position.checksum, last_seen.checksum):
        raise _broken(
            table,
            partition,
            f"before offset {position.offset} it had rows with the checksum {last_seen.checksum}, "
            f"and now others, with {position.checksum}",
        )


def _is_rollback(table: Table, partition: int, *, since: Position, now: Position) -> bool:
    """Whether Calve has set the position back on purpose: with a snapshot that brought no range."""
    before, after = (table.snapshot_by_id(each.snapshot_id) for each in (since, now))
    if before is None or after is None or _brought(after, partition) is not None:
        return False
    return (before.sequence_number or 0) < (after.sequence_number or 0)


def _broken(table: Table, partition: int, what: str) -> Corruption:
    return Corruption(
        f"{'.'.join(table.name())}: partition {partition} was set back or edited: {what}",
        hint=_WAY_OUT if table.current_snapshot() else _EMPTY,
        context={"table": ".".join(table.name()), "partition": str(partition)},
    )
