"""Committed offsets in the registry's SQLite file, and how often each was set back.

Each function runs inside of a transaction of its caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from calve.state.sqlite_work import Run, clear_reached, from_us, to_us
from calve.state.store import CommittedOffset

if TYPE_CHECKING:
    from datetime import datetime

    from calve.state.work import TopicPartition

_SELECT: Final = (
    "SELECT topic_id, log_id, log_offset, at_us, coalesce(count, 0) "
    "FROM committed LEFT JOIN resets USING (topic_id, partition)"
)


def committed(run: Run, at: TopicPartition) -> CommittedOffset | None:
    rows = run(f"{_SELECT} WHERE (topic_id, partition) = (?, ?)", _key(at))
    return _committed(rows[0]) if rows else None


def all_committed(run: Run, partition: int) -> dict[UUID, CommittedOffset]:
    """Those of a partition, by topic."""
    rows = run(f"{_SELECT} WHERE partition = ?", (partition,))
    return {UUID(row[0]): _committed(row) for row in rows}


def set_committed(
    run: Run, at: TopicPartition, log_id: UUID, offset: int, *, now: datetime
) -> CommittedOffset:
    run(
        "INSERT OR REPLACE INTO committed VALUES (?, ?, ?, ?, ?)",
        (*_key(at), str(log_id), offset, to_us(now)),
    )
    clear_reached(run, at, offset)
    found = committed(run, at)
    assert found is not None
    return found


def count_reset(run: Run, at: TopicPartition, *, held_until: datetime | None = None) -> None:
    """Have everybody who follows the table read it again; a hold that there was is over."""
    run(
        "INSERT INTO resets VALUES (?, ?, 1, ?) ON CONFLICT DO UPDATE "
        "SET count = count + 1, held_until_us = excluded.held_until_us",
        (*_key(at), to_us(held_until) if held_until else 0),
    )


def is_held(run: Run, at: TopicPartition, *, now: datetime) -> bool:
    rows = run("SELECT held_until_us FROM resets WHERE (topic_id, partition) = (?, ?)", _key(at))
    return bool(rows) and to_us(now) < rows[0][0]


def release(run: Run, at: TopicPartition) -> None:
    """End a hold that nobody has to be told of."""
    run("UPDATE resets SET held_until_us = 0 WHERE (topic_id, partition) = (?, ?)", _key(at))


def _key(at: TopicPartition) -> tuple[str, int]:
    return (str(at.topic_id), at.partition)


def _committed(row: tuple[Any, ...]) -> CommittedOffset:
    _, log_id, offset, at_us, resets = row
    return CommittedOffset(UUID(log_id), offset, from_us(at_us), resets)
