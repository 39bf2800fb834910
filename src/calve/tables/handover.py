"""Gives a table to the log that feeds it from now on, and goes on where an earlier one ended.

Where it ended is read, and the table given over, in one commit: an empty snapshot with which the
committed offset stays and belongs to the new log. What the earlier log still has under way is
refused from then on, and nothing moves the table past the place where the new log begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from calve.errors import CalveError
from calve.model import TableName
from calve.tables.beginnings import taken_over
from calve.tables.commit import Committed, TableCommit
from calve.tables.data_files import new_operation_id
from calve.tables.dead_letters import (
    as_reached,
    files_named_by,
    named_dead_letters,
    no_dead_letters,
)
from calve.tables.lineage import is_unbroken
from calve.tables.positions import (
    Position,
    committed_position,
    has_positions,
    position_property,
)
from calve.tables.reached import reached_summary
from calve.tables.retention import bounded_metadata
from calve.tables.staging import Edit
from calve.tables.topic_tables import (
    lacking_properties,
    require_topic_table,
    with_system_columns,
)
from calve.tables.translate import translating

if TYPE_CHECKING:
    from pyiceberg.table import Table


def hand_over(
    table: Table,
    partition: int,
    begin: Callable[[int], UUID],
    *,
    topic: TableName,
    settle: Callable[[Table], None],
) -> None:
    """Have a log that `begin` makes at an offset be the one that feeds a partition of the table,
    which is the topic's from then on.

    `begin` is called after each reading of the table, and refuses by raising. `settle` brings the
    dead letters that the table names, of all partitions, to theirs, so that none is left of the
    earlier log.

    A table that has nothing of any topic is given over too: the first range of one that was bound
    to it and deleted may be under way. One that was set back or edited is left alone: whoever
    commits to it says so, and what to do.
    """
    commit = TableCommit(table)

    def attempt() -> Committed | CalveError | None:
        now = commit.table
        position = committed_position(now, partition)
        offset = position.offset if position else 0
        try:
            require_topic_table(now, topic, is_bound=True)
            is_sound = is_unbroken(now, partition, position)
            if is_sound and files_named_by(now):
                settle(now)
            log = begin(offset)
        except CalveError as refusal:
            # Trying again would not help, as it does with a commit that met another.
            return refusal
        if not is_sound or (position is not None and position.log == log):
            return None
        return commit.attempt(_edit(now, topic, partition, Position(log, offset, "", 0)))

    with translating():
        outcome = commit.repeat(attempt)
    if isinstance(outcome, CalveError):
        raise outcome


def _edit(table: Table, topic: TableName, partition: int, position: Position) -> Edit:
    named = named_dead_letters(table.properties, partition)
    settled = {**no_dead_letters(partition), **as_reached(named.end, partition)} if named else {}
    first_time = {} if has_positions(table) else bounded_metadata(table.properties)
    return Edit(
        summary={
            "calve.operation": new_operation_id("handover"),
            **reached_summary(partition, position.offset),
        },
        properties={
            **first_time,
            **settled,
            **lacking_properties(table, topic),
            **taken_over(table, partition, position.log, position.offset),
        },
        schema=with_system_columns(table.schema(), table.metadata.last_column_id),
        stamp=lambda snapshot_id: position_property(
            partition, replace(position, snapshot_id=snapshot_id)
        ),
    )
