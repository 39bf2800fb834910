"""Leases, requests, orders and progress in the registry's SQLite file.

Each function runs inside of a transaction of its caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from calve.state.work import Lease, PipelineOrders, Progress, ProgressReport, TopicPartition

Run: TypeAlias = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]

_ALL: Final = ""
_DECODER: Final = msgspec.json.Decoder(Progress)


def take_lease(run: Run, name: str, owner: str, *, seconds: float, now: datetime) -> bool:
    held = lease(run, name, now=now)
    if held is not None and held.owner != owner:
        return False
    length_us = int(seconds * 1_000_000)
    run("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", (name, owner, to_us(now), length_us))
    return True


def release_lease(run: Run, name: str, owner: str) -> None:
    run("DELETE FROM leases WHERE (name, owner) = (?, ?)", (name, owner))


def lease(run: Run, name: str, *, now: datetime) -> Lease | None:
    rows = run("SELECT owner, taken_us, length_us FROM leases WHERE name = ?", (name,))
    if not rows:
        return None
    owner, taken_us, length_us = rows[0]
    # By as much before as after: a clock that was set back must not keep a lease for ever.
    if abs(to_us(now) - taken_us) >= length_us:
        return None
    return Lease(owner, from_us(taken_us) + timedelta(microseconds=length_us))


def raise_offset(run: Run, table: str, at: TopicPartition, offset: int) -> None:
    """Keep the highest offset that was asked for, unless the table is there already."""
    run(
        f"INSERT INTO {table} SELECT ?1, ?2, ?3 WHERE NOT EXISTS ("  # noqa: S608
        "  SELECT 1 FROM committed WHERE (topic_id, partition) = (?1, ?2) AND log_offset >= ?3) "
        "ON CONFLICT DO UPDATE SET log_offset = max(log_offset, excluded.log_offset)",
        (str(at.topic_id), at.partition, offset),
    )


def clear_reached(run: Run, at: TopicPartition, offset: int) -> None:
    """Forget what was asked for up to an offset that the table has reached."""
    for table in ("flush_requests", "skips"):
        run(
            f"DELETE FROM {table} "  # noqa: S608
            "WHERE (topic_id, partition) = (?, ?) AND log_offset <= ?",
            (str(at.topic_id), at.partition, offset),
        )


def clear_requests(run: Run, at: TopicPartition) -> None:
    """Forget whatever was asked for: those were offsets of another log."""
    for table in ("flush_requests", "skips"):
        run(
            f"DELETE FROM {table} WHERE (topic_id, partition) = (?, ?)",  # noqa: S608
            (str(at.topic_id), at.partition),
        )


def offsets(run: Run, table: str) -> dict[TopicPartition, int]:
    rows = run(f"SELECT topic_id, partition, log_offset FROM {table}", ())  # noqa: S608
    return {TopicPartition(UUID(topic_id), number): offset for topic_id, number, offset in rows}


def pause(run: Run, topic_id: UUID | None) -> None:
    run("INSERT OR IGNORE INTO paused VALUES (?)", (_ALL if topic_id is None else str(topic_id),))


def resume(run: Run, topic_id: UUID | None) -> None:
    run("DELETE FROM paused WHERE topic_id = coalesce(?, topic_id)", (topic_id and str(topic_id),))


def orders(run: Run) -> PipelineOrders:
    paused = {topic_id for (topic_id,) in run("SELECT topic_id FROM paused", ())}
    return PipelineOrders(
        is_paused=_ALL in paused,
        paused_topics=frozenset(UUID(topic_id) for topic_id in paused - {_ALL}),
        skips=offsets(run, "skips"),
        resets={
            TopicPartition(UUID(topic_id), number): count
            for topic_id, number, count in run("SELECT topic_id, partition, count FROM resets", ())
        },
    )


def publish(run: Run, changed: Iterable[Progress], *, now: datetime) -> None:
    for each in changed:
        run(
            "INSERT OR REPLACE INTO progress VALUES (?, ?, ?)",
            (str(each.topic_id), each.partition, msgspec.json.encode(each)),
        )
    run("INSERT OR REPLACE INTO published VALUES (1, ?)", (to_us(now),))


def progress(run: Run) -> ProgressReport:
    published = run("SELECT at_us FROM published", ())
    known = [_DECODER.decode(content) for (content,) in run("SELECT content FROM progress", ())]
    return ProgressReport(
        at=from_us(published[0][0]) if published else None,
        partitions={each.at: each for each in known},
    )


def to_us(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000)


def from_us(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)
