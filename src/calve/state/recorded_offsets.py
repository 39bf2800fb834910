"""Committed offsets as records, how often each was set back, and what was asked for up to where.

Each function runs inside of a transaction of its caller's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from calve.errors import Conflict
from calve.state.records import (
    COMMITTED,
    FLUSHES,
    KEEPERS,
    RESETS,
    REWOUND,
    SKIPS,
    Key,
    Records,
    Row,
    Table,
    from_us,
    number,
    text,
    to_us,
)
from calve.state.store import CommittedOffset
from calve.state.work import TopicPartition


class Kept(Exception):
    """An offset cannot be set back now: somebody lets go of what lies below it."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the table of a topic has come to, as somebody says who has read it."""

    log_id: UUID
    offset: int
    resets: int | None
    is_commit: bool


def committed(records: Records, at: TopicPartition) -> CommittedOffset | None:
    row = records.find(COMMITTED, key_of(at))
    return None if row is None else _committed(row, _resets(records, at)[0])


def reached(records: Records, at: TopicPartition) -> int:
    left = records.find(REWOUND, key_of(at))
    if left is not None:
        return number(left[0])
    known = committed(records, at)
    return known.offset if known else 0


def all_committed(records: Records, partition: int) -> dict[UUID, CommittedOffset]:
    """Those of a partition, by topic; of a table that was set back, what is left in it."""
    left = {row[:2]: row[2] for row in records.scan(REWOUND)}
    resets = {row[:2]: number(row[2]) for row in records.scan(RESETS)}
    return {
        UUID(text(row[0])): _committed(
            (row[2], left.get(row[:2], row[3]), row[4]), resets.get(row[:2], 0)
        )
        for row in records.scan(COMMITTED)
        if row[1] == partition
    }


def publish(records: Records, at: TopicPartition, said: Published) -> CommittedOffset:
    known = committed(records, at)
    if known is None:
        return _set(records, at, said.log_id, said.offset)
    if known.log_id != said.log_id:
        raise _other_log(known, said)
    if said.resets not in {None, known.resets}:
        return known
    count, held_until_us = _resets(records, at)
    if to_us(records.now) < held_until_us:
        if not said.is_commit:
            return known
        # The hold is over, and nobody has to be told of that.
        records.put(RESETS, key_of(at), count, 0)
    if known.offset == said.offset and records.find(REWOUND, key_of(at)) is not None:
        records.drop(REWOUND, key_of(at))
    if known.offset >= said.offset:
        return known
    return _set(records, at, said.log_id, said.offset)


def note_rewound(records: Records, at: TopicPartition, said: Published) -> bool:
    known = committed(records, at)
    if known is None or known.log_id != said.log_id or known.resets != said.resets:
        return False
    if known.offset <= said.offset:
        return False
    if records.find(REWOUND, key_of(at)) != (said.offset,):
        records.put(REWOUND, key_of(at), said.offset)
    return True


def reset(records: Records, at: TopicPartition, log_id: UUID, offset: int) -> CommittedOffset:
    _require_unkept(records, at.partition)
    known = committed(records, at)
    if known is None or known.log_id != log_id:
        # Those were offsets of another log.
        for table in (FLUSHES, SKIPS):
            records.drop(table, key_of(at))
    _count_reset(records, at)
    return _set(records, at, log_id, offset)


def hold(
    records: Records, at: TopicPartition, log_id: UUID, *, offset: int, seconds: float
) -> CommittedOffset:
    _require_unkept(records, at.partition)
    known = committed(records, at)
    lowest = offset if known is None else min(offset, known.offset)
    _count_reset(records, at, held_until_us=to_us(records.now + timedelta(seconds=seconds)))
    return _set(records, at, log_id, lowest)


def release(records: Records, at: TopicPartition, *, resets: int) -> None:
    known = committed(records, at)
    if known is not None and known.resets == resets:
        _count_reset(records, at)


def raise_request(records: Records, table: Table, at: TopicPartition, offset: int) -> int:
    """Keep the highest offset that was asked for, unless the topic's table is there already.

    The one that holds now.
    """
    row = records.find(table, key_of(at))
    if row is not None and number(row[0]) >= offset:
        return number(row[0])
    known = committed(records, at)
    if known is None or known.offset < offset:
        records.put(table, key_of(at), offset)
    return offset


def requests(records: Records, table: Table) -> dict[TopicPartition, int]:
    return {partition_of(row): number(row[2]) for row in records.scan(table)}


def key_of(at: TopicPartition) -> Key:
    return (str(at.topic_id), at.partition)


def partition_of(row: Row) -> TopicPartition:
    return TopicPartition(UUID(text(row[0])), number(row[1]))


def _set(records: Records, at: TopicPartition, log_id: UUID, offset: int) -> CommittedOffset:
    records.put(COMMITTED, key_of(at), str(log_id), offset, to_us(records.now))
    records.drop(REWOUND, key_of(at))
    for table in (FLUSHES, SKIPS):
        row = records.find(table, key_of(at))
        if row is not None and number(row[0]) <= offset:
            records.drop(table, key_of(at))
    found = committed(records, at)
    assert found is not None
    return found


def _resets(records: Records, at: TopicPartition) -> tuple[int, int]:
    """How often it was set back, and until when it is held."""
    row = records.find(RESETS, key_of(at))
    return (0, 0) if row is None else (number(row[0]), number(row[1]))


def _count_reset(records: Records, at: TopicPartition, *, held_until_us: int = 0) -> None:
    """Have everybody who follows the table read it again; a hold that there was is over."""
    records.put(RESETS, key_of(at), _resets(records, at)[0] + 1, held_until_us)


def _require_unkept(records: Records, partition: int) -> None:
    if records.find(KEEPERS, (partition,)) is not None:
        raise Kept


def _committed(row: Row, resets: int) -> CommittedOffset:
    log_id, offset, at_us = row
    return CommittedOffset(UUID(text(log_id)), number(offset), from_us(at_us), resets)


def _other_log(known: CommittedOffset, said: Published) -> Conflict:
    return Conflict(
        f"offset {said.offset} of log {said.log_id} was to be published as committed, but the "
        f"state knows offset {known.offset} of log {known.log_id}",
        hint="the topic has another log now, or the state was set back; look at the topic again",
        context={"found": str(known.log_id), "expected": str(said.log_id)},
    )
