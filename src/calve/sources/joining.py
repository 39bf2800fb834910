"""Where a topic's table ends and its log goes on: that they belong together, and leave no gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.errors import Conflict, Corruption

if TYPE_CHECKING:
    from calve.model import TableName
    from calve.sources.logs import Logs
    from calve.sources.source_log import ReadableLog
    from calve.tables.positions import Position
    from calve.topics.topic import Topic


def log_behind(
    logs: Logs, topic: Topic, partition: int, position: Position | None
) -> ReadableLog | None:
    """The log of a partition whose table has come to `position`.

    None if the partition has no log, or while a service elsewhere is being asked. Unavailable or
    Conflict says why it cannot be read.
    """
    binding = topic.partitions.get(partition)
    log = logs.log(topic, partition) if binding is not None else None
    if binding is None or log is None:
        return None
    if position is not None and position.log != binding.stream_id:
        if position.offset != log.begins_at:
            raise Conflict(
                f"{topic.name}: partition {partition} of the table is fed by log "
                f"{position.log}, and the topic's is {binding.stream_id}",
                hint="bring back the newer one of state and catalog",
                context={"found": str(binding.stream_id), "expected": str(position.log)},
            )
    elif position is not None and position.offset > log.durable:
        raise Conflict(
            f"{topic.name} has {position.offset} as committed offset, but the log of partition "
            f"{partition} ends at {log.durable}",
            hint="the log was restored from an earlier time; bring back its newer state",
        )
    return log


def gap(name: TableName, partition: int, *, offset: int, first: int, committed: int) -> Corruption:
    """The log lets go only of what the table has: what neither has is missing."""
    return Corruption(
        f"offset {offset} of {name}, partition {partition}, is neither in the log, which begins "
        f"at {first}, nor in the table, which ends at {committed}",
        hint=f"`calve topic verify {name}` tells what is missing; the table may have been "
        "restored from an earlier time",
    )
