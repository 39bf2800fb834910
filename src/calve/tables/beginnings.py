"""At which offsets the logs that feed a table began in it, where one took over from another.

After a replay, a log may begin before offsets that the table once had from the log before it. Then
two rows had one offset, and only the snapshots of before still have the earlier one. The property
`calve.begun.<partition>` tells them apart, also when the snapshot in which the table changed hands
has expired: `1@5,9@20` says that from the snapshot with the sequence number 5 on, the rows from
offset 1 on are of another log than before; and from 20 on, those from 9 on of yet another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyiceberg.table.snapshots import ancestors_of

from calve.errors import Corruption
from calve.tables.commit_times import earliest_ms
from calve.tables.lineage import is_unbroken
from calve.tables.positions import committed_position
from calve.tables.reached import stated_offset
from calve.tables.snapshots import ancestor_ids

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_BEGUN: Final = "calve.begun."
_TEXT: Final = re.compile(r"(\d+)@(\d+)(ms)?", re.ASCII)
_KEPT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class _Beginning:
    """From which offset on, and from which snapshot on: by its sequence number, or by its time in
    tables of format 1, whose snapshots are not numbered."""

    offset: int
    number: int
    is_time: bool

    def __str__(self) -> str:
        return f"{self.offset}@{self.number}{'ms' if self.is_time else ''}"

    def is_before(self, snapshot: Snapshot) -> bool:
        number = snapshot.timestamp_ms if self.is_time else snapshot.sequence_number or 0
        return self.number <= number


def taken_over(table: Table, partition: int, log: UUID, offset: int) -> dict[str, str]:
    """The property, if the table's next snapshot gives the partition, from an offset on, to another
    log than the one that it has been fed by; else nothing."""
    position = committed_position(table, partition)
    if position is None or position.log == log:
        return {}
    # Whatever is from before an earlier one, and beyond it, is so of this one too, if it is lower.
    begun = [each for each in _beginnings(table.properties, partition) if each.offset < offset]
    begun.append(_next(table, offset))
    if len(begun) > _KEPT_MAX:  # Two as one refuse more of what is old, and never less.
        begun[:2] = [replace(begun[1], offset=begun[0].offset)]
    return {f"{_BEGUN}{partition}": ",".join(map(str, begun))}


def later_beginnings(table: Table, snapshot_id: int) -> dict[int, int]:
    """The partitions that another log has taken over since a snapshot, and the lowest offset from
    which on."""
    partitions = [
        int(name.removeprefix(_BEGUN))
        for name in table.properties
        if name.startswith(_BEGUN) and name.removeprefix(_BEGUN).isdecimal()
    ]
    found: dict[int, int] = {}
    for partition in sorted(partitions):
        for each in _beginnings(table.properties, partition):
            if not _leads_to(table, partition, each, snapshot_id):
                found[partition] = min(each.offset, found.get(partition, each.offset))
    return found


def _next(table: Table, offset: int) -> _Beginning:
    """With the number that a snapshot gets which is staged on the table as it was read.

    If a branch gets a snapshot in between, a catalog does not take that number any more.
    """
    if table.format_version == 1:
        return _Beginning(offset, earliest_ms(table.metadata), is_time=True)
    return _Beginning(offset, table.metadata.next_sequence_number(), is_time=False)


def _leads_to(table: Table, partition: int, begun: _Beginning, snapshot_id: int) -> bool:
    """Whether a snapshot continues what was main's then.

    One of a branch may be later, and continue an earlier one. So one counts that tells of an offset
    of the partition, which those of main do alone, or that is in main's line. In doubt it is no.
    """
    position = committed_position(table, partition)
    line = ancestor_ids(table) if is_unbroken(table, partition, position) else set()
    for each in ancestors_of(table.snapshot_by_id(snapshot_id), table.metadata):
        if not begun.is_before(each):
            return False
        if each.snapshot_id in line or stated_offset(each, partition) is not None:
            return True
    return False


def _beginnings(properties: Mapping[str, str], partition: int) -> list[_Beginning]:
    name = f"{_BEGUN}{partition}"
    text = properties.get(name, "")
    found = [_TEXT.fullmatch(each) for each in text.split(",")] if text else []
    if None in found:
        raise Corruption(
            f"{name}, which says where another log took the table over, is unreadable: {text}",
            hint="set the table's property to what an older metadata file says, such as '1@5'",
            context={"property": name},
        )
    return [_Beginning(int(each[1]), int(each[2]), bool(each[3])) for each in found if each]
