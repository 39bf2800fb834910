"""Finds tables that have come to less than the state knows: set back without anybody saying so.

The state is told after a table's commit, and is set back before the table where rows are to come
again (`resets` counts that). So it is never ahead by itself: a catalog was restored from an older
copy, or the table was made again. A second look at the table decides, because others commit
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calve.errors import Corruption
from calve.tables.positions import committed_position

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.table import Table

    from calve.model import TableName
    from calve.state import CommittedOffset, State
    from calve.topics.topic import Topic


@dataclass(frozen=True, slots=True)
class Rewound:
    """A partition of which a table has less than it had; None: nothing at all."""

    topic: TableName
    partition: int
    log_id: UUID
    reached: int | None
    known: CommittedOffset
    snapshot_id: int | None  # the table's current one

    @property
    def message(self) -> str:
        is_left = self.reached is not None
        has = f"{self.reached} as committed offset" if is_left else "no committed offset"
        return (
            f"{self.topic}: partition {self.partition} was set back: it has {has}, and the state "
            f"knows that it had come to {self.known.offset}"
        )

    @property
    def hint(self) -> str:
        back = (
            "if an older copy of the catalog was restored, or the table exchanged, bring the newer "
            "one back: the topic goes on by itself. "
        )
        if self.snapshot_id is None:
            return (
                f"{back}If the rows that were in it are not wanted any more, `calve topic delete "
                f"{self.topic}` and create the topic again"
            )
        return (
            f"{back}To go on with this one, `calve table rollback {self.topic} --snapshot "
            f"{self.snapshot_id} --replay` takes the rows from offset {self.reached or 0} on from "
            "the log again, also those that were deleted since, unless some of them are dead "
            "letters by now; without --replay they are recorded as removed"
        )

    @property
    def error(self) -> Corruption:
        return Corruption(
            self.message,
            hint=self.hint,
            context={
                "table": str(self.topic),
                "partition": str(self.partition),
                "found": str(self.reached or 0),
                "expected": str(self.known.offset),
            },
        )


def known_offset(state: State, topic: Topic, partition: int) -> CommittedOffset | None:
    """What the state knows of the topic's table; None if that is about another log, or nothing."""
    bound = topic.partitions.get(partition)
    known = state.committed(topic.id, partition) if bound else None
    return known if known and bound and known.log_id == bound.log_id else None


def had_rows(topic: Topic, partition: int, known: CommittedOffset | None) -> bool:
    """Whether anything of a partition was ever in the topic's table.

    Where a replay has set an offset back to 0 there were rows too; where a log took over from one
    that was lost before anything was committed, there were none.
    """
    if known is None:
        return False
    return bool(known.offset or (known.resets and partition not in topic.first_offsets))


def find_rewound(
    state: State, topic: Topic, partition: int, *, reached: int, look_again: Callable[[], Table]
) -> Rewound | None:
    """Hold how far a table has come against the state; None unless the table was set back.

    `reached` was read before. Changes nothing.
    """
    known = known_offset(state, topic, partition)
    if known is None or known.offset <= reached:
        return None
    table = look_again()
    position = committed_position(table, partition)
    if position is not None and position.offset >= known.offset:
        return None
    now = known_offset(state, topic, partition)
    if now is None or now.resets != known.resets:
        return None  # On purpose, meanwhile.
    snapshot = table.current_snapshot()
    return Rewound(
        topic.name,
        partition,
        known.log_id,
        position.offset if position else None,
        known,
        snapshot.snapshot_id if snapshot else None,
    )
