"""Rolls back a table that a topic feeds, so that topic and table still agree afterwards.

The new state is a snapshot of its own on top of the old one, because Calve's properties never
change without one. The committed offset stays where it is, and the rows that are gone are recorded
as removed; or they are to be taken from the log again, and it goes back with them.

A table that has less than the state knows was set back by somebody else, such as a catalog restored
from an older copy. The offset that stays is then the state's, so that what is lacking is recorded
as well, or comes again: a rollback to the current snapshot is how an operator accepts such a table,
and one whose committed offset was edited. Whoever regrets a replay, and goes to a snapshot that has
the rows, gets its offset with them: they do not come once more. Not so of a snapshot whose rows
another log than that of now has brought, under the same offsets: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from calve.changes.hold import Hold, Known, holding
from calve.changes.replayed_logs import ReplayedLogs
from calve.changes.standing import borne_out, come_to, reached_at, require_own_rows, rows_within
from calve.errors import CalveError, Conflict, InvalidRequest
from calve.model import TableName
from calve.tables.beginnings import taken_over
from calve.tables.commit import Committed, TableCommit
from calve.tables.data_files import new_operation_id
from calve.tables.dead_letters import find_dead_letter_table, named_dead_letters
from calve.tables.feeding import feeding_topic, holds_dead_letters
from calve.tables.lineage import is_unbroken
from calve.tables.offset_scan import offset_change, without
from calve.tables.positions import (
    Position,
    committed_position,
    committed_positions,
    position_property,
)
from calve.tables.ranges import Range
from calve.tables.reached import is_on_line, reached_summary
from calve.tables.removals import Removals, recorded
from calve.tables.rollback_plan import PartitionPlan, RollbackPlan, plan_rollback
from calve.tables.runs import Runs
from calve.tables.snapshots import require_rollback
from calve.tables.staging import Edit
from calve.tables.translate import translating

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from calve.settings import Settings
    from calve.tables.catalog import LakeCatalog

    WhatIsKnown: TypeAlias = Callable[[], Mapping[int, Known]]


@dataclass(frozen=True, slots=True)
class Home:
    """The lake of a table: its state knows how far the topic's tables had come."""

    catalog: LakeCatalog
    settings: Settings


@dataclass(frozen=True, slots=True)
class Replay:
    """That the rows are to come again, from the log in a directory.

    Of partitions that the directory does not have, the logs are where the lake's settings say.
    """

    log: Path
    home: Home


def roll_back_fed(
    table: Table,
    snapshot_id: int,
    *,
    home: Home | None = None,
    force: bool = False,
    replay: Replay | None = None,
) -> int:
    """Make the table what it was in a snapshot; the new snapshot's id.

    Without its `home` nobody else is asked about the topic. With `replay` the committed offset goes
    back too, so that the rows come again; Conflict if the log does not hold them all any more, or
    if some of them were set aside; also if rows would come back that were set aside since.
    """
    with _holding(home, table, _required_topic(table)) as hold:
        if replay is None:
            plan_of = partial(_Plan.of, home=home, known=hold.known)
            return _roll_back(TableCommit(table), snapshot_id, plan_of, force=force)
        return _replay(table, snapshot_id, replay, hold, force=force)


def plan_fed(
    table: Table,
    snapshot_id: int,
    *,
    home: Home | None = None,
    force: bool = False,
    replay: Replay | None = None,
) -> RollbackPlan:
    """What `roll_back_fed` would do now, with the same errors. Nothing is held nor written."""
    topic = _required_topic(table)
    with _holding(home, table, topic) as hold, translating():
        if replay is not None:
            _require_replayable(table)
        current = TableCommit(table).table
        told = plan_rollback(current, snapshot_id, force=force)
        staying = _Plan.of(current, snapshot_id, home, hold.known)
        plan = staying.replaying(current, snapshot_id, replay) if replay else staying
        # Where only the state is ahead, a replay leaves the table as it is.
        is_change = plan.changes(current) or plan.positions != staying.positions
        return replace(
            told,
            has_effect=told.has_effect or is_change,
            topic=str(topic),
            partitions=plan.told(current, since=staying),
        )


def _required_topic(table: Table) -> TableName:
    topic = feeding_topic(table)
    if topic is None:
        raise InvalidRequest(
            "no topic feeds the table: there is nothing to replay", hint="roll back without replay"
        )
    return topic


def _holding(home: Home | None, table: Table, topic: TableName) -> AbstractContextManager[Hold]:
    """What the state knows of the topic, if it is the topic's own table, and no twin of it."""
    # Some catalogs have flat namespaces; no part of a name has a double underscore.
    is_own = "__".join(table.name()) == f"{topic.tenant}__{topic.dataset}__{topic.name}"
    return holding(home.settings, topic) if home and is_own else nullcontext(Hold(None, None))


def _replay(table: Table, snapshot_id: int, replay: Replay, hold: Hold, *, force: bool) -> int:
    _require_replayable(table)
    commit = TableCommit(table)
    try:
        plan_of = partial(_replaying, replay=replay, hold=hold)
        return _roll_back(commit, snapshot_id, plan_of, force=force)
    finally:
        if not commit.is_undecided:
            hold.release()


def _require_replayable(table: Table) -> None:
    if holds_dead_letters(table):
        raise InvalidRequest(
            "dead letters do not come from the log again once they are in their table",
            hint="roll back without replay; `calve dead-letter replay` sends those that are left",
        )


def _roll_back(
    commit: TableCommit, snapshot_id: int, plan_of: Callable[[Table, int], _Plan], *, force: bool
) -> int:
    def attempt() -> Committed | CalveError:
        current = commit.table
        try:
            wanted = require_rollback(current, snapshot_id, force=force)
            plan = plan_of(current, snapshot_id)
        except CalveError as refusal:
            # Trying again would not help, as it does with a commit that met another.
            return refusal
        if wanted.is_current and not plan.changes(current):
            return Committed(snapshot_id, current)
        return commit.attempt(plan.edit(current, snapshot_id))

    with translating():
        outcome = commit.repeat(attempt)
    if isinstance(outcome, CalveError):
        raise outcome
    return outcome.snapshot_id


def _replaying(table: Table, snapshot_id: int, *, replay: Replay, hold: Hold) -> _Plan:
    """The plan of a replay. What the log has once its rows are held, it keeps."""
    plan = _Plan.of(table, snapshot_id, replay.home, hold.known)
    wanted = plan.replaying(table, snapshot_id, replay)
    hold.take(
        {
            partition: position.offset
            for partition, position in wanted.positions.items()
            if position.offset < plan.positions[partition].offset
        }
    )
    return plan.replaying(table, snapshot_id, replay)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The rows that leave and those that come back, and how far the table has come afterwards."""

    positions: Mapping[int, Position]
    left: Removals
    removals: Removals

    @classmethod
    def of(cls, table: Table, snapshot_id: int, home: Home | None, known: WhatIsKnown) -> _Plan:
        # Asked after the table was read: a commit in between makes that of this plan void.
        told = known()
        require_own_rows(table, snapshot_id, told)
        change = offset_change(table, table.metadata.current_snapshot_id, snapshot_id)
        aside = _Aside.of(table, home)
        aside.require_none_of(change.came)
        before = borne_out(table, told)
        positions = come_to(table, snapshot_id, change.came, told)
        lacking = aside.without_own(_lacking(table, snapshot_id, before, positions))
        gone = _together(change.left, _lost_before(table, before), lacking)
        left = Removals.of_runs(without(gone, change.came))
        for partition, position in positions.items():
            # What is beyond was another log's, brought back by somebody else.
            left = left.below(partition, position.offset)
        # What is lacking may be known to have been removed before.
        known_before = Removals.parse(table.properties).without(lacking)
        return cls(positions, left, known_before.merged(left).without(change.came))

    def replaying(self, table: Table, snapshot_id: int, replay: Replay) -> _Plan:
        topic = feeding_topic(table)
        assert topic is not None
        letters = find_dead_letter_table(replay.home.catalog, topic)
        plan = self
        back = {
            partition: range(offset, position.offset)
            for partition, position in self.positions.items()
            if (offset := reached_at(table, snapshot_id, partition)) < position.offset
        }
        _require_none_aside(topic, table, letters, back)
        logs = ReplayedLogs(replay.log, replay.home.settings, topic)
        for partition, rows in back.items():
            position = logs.set_back(partition, self.positions[partition], rows.start)
            plan = plan._set_back(partition, position)
        return plan

    def _set_back(self, partition: int, position: Position) -> _Plan:
        return replace(
            self,
            positions={**self.positions, partition: position},
            left=self.left.below(partition, position.offset),
            removals=self.removals.below(partition, position.offset),
        )

    def changes(self, table: Table) -> bool:
        known = committed_positions(table)
        are_unbroken = all(is_unbroken(table, each, known[each]) for each in known)
        return bool(self.left) or self.positions != known or not are_unbroken

    def told(self, table: Table, *, since: _Plan) -> tuple[PartitionPlan, ...]:
        """For those who show it; what has gone back since another plan comes again."""
        known = committed_positions(table)
        return tuple(
            PartitionPlan(
                partition,
                committed=known[partition].offset if partition in known else 0,
                committed_after=position.offset,
                removed=self.left.ranges(partition).ranges,
                replayed=_range(position.offset, since.positions[partition].offset),
            )
            for partition, position in sorted(self.positions.items())
        )

    def edit(self, table: Table, snapshot_id: int) -> Edit:
        before = Removals.parse(table.properties)
        summary = {"calve.operation": new_operation_id("rollback")}
        begun: dict[str, str] = {}
        for partition, position in self.positions.items():
            summary |= reached_summary(partition, position.offset)
            begun |= _taken_over(table, partition, position)
        return Edit(
            summary={**summary, **self.left.entries(), **recorded()},
            properties={**self.removals.changed_from(before), **begun},
            stamp=self._stamped,
            onto=snapshot_id,
        )

    def _stamped(self, snapshot_id: int) -> dict[str, str]:
        stamped: dict[str, str] = {}
        for partition, position in self.positions.items():
            stamped |= position_property(partition, replace(position, snapshot_id=snapshot_id))
        return stamped


def _taken_over(table: Table, partition: int, position: Position) -> dict[str, str]:
    """That the state's log feeds the table from now on: it was restored from before that was so."""
    before = committed_position(table, partition)
    offset = min(before.offset, position.offset) if before else position.offset
    return taken_over(table, partition, position.log, offset)


def _range(first: int, end: int) -> Range | None:
    return Range(first, end, end - first) if first < end else None


def _lost_before(table: Table, positions: Mapping[int, Position]) -> dict[int, Runs]:
    """What the table has lost already, where somebody has set it back without a record."""
    lost: dict[int, Runs] = {}
    for partition, position in positions.items():
        if not is_on_line(table, position):
            head = table.metadata.current_snapshot_id
            left = offset_change(table, position.snapshot_id, head).left
            lost[partition] = left.get(partition, Runs.empty())
    return lost


def _lacking(
    table: Table, snapshot_id: int, before: Mapping[int, Position], after: Mapping[int, Position]
) -> dict[int, Runs]:
    """What a snapshot has not, of that by which a rollback takes partitions further."""
    further = {
        partition: Runs.of_pairs([(before[partition].offset if partition in before else 0, end)])
        for partition, position in after.items()
        if (end := position.offset)
    }
    return without(further, rows_within(table, snapshot_id, further))


def _together(*parts: Mapping[int, Runs]) -> dict[int, Runs]:
    partitions = {partition for part in parts for partition in part}
    return {
        each: Runs.joined([part[each] for part in parts if each in part]) for each in partitions
    }


@dataclass(frozen=True, slots=True)
class _Aside:
    """The rows of a table's topic that are dead letters now, as far as somebody knows them."""

    table: Table
    letters: Table | None

    @classmethod
    def of(cls, table: Table, home: Home | None) -> _Aside:
        topic = feeding_topic(table)
        if home is None or topic is None or holds_dead_letters(table):
            return cls(table, None)
        return cls(table, find_dead_letter_table(home.catalog, topic))

    def without_own(self, rows: Mapping[int, Runs]) -> dict[int, Runs]:
        return without(rows, self._own(rows))

    def require_none_of(self, came: Mapping[int, Runs]) -> None:
        """Refuse to bring rows back that were set aside since, in a replay: they would be in both
        tables."""
        for partition, rows in self._own(came).items():
            if len(rows):
                raise Conflict(
                    f"rows of partition {partition} that would come back are dead letters by now: "
                    f"{rows.count} from offset {rows.firsts[0]} on",
                    hint="`calve dead-letter discard` those first, whose rows the snapshot has; or "
                    "name another snapshot",
                    context={"partition": str(partition), "offset": str(rows.firsts[0])},
                )

    def _own(self, rows: Mapping[int, Runs]) -> dict[int, Runs]:
        """Those among some; all of a range count of which the letters are still on their way."""
        if self.letters is None:
            return {}
        found = rows_within(self.letters, self.letters.metadata.current_snapshot_id, rows)
        for partition, wanted in rows.items():
            pending = named_dead_letters(self.table.properties, partition)
            reached = committed_position(self.letters, partition)
            if pending and (reached is None or reached.offset < pending.end):
                waiting = wanted.between(pending.start, pending.end)
                found[partition] = found[partition].union(waiting)
        return found


def _require_none_aside(
    topic: TableName, table: Table, letters: Table | None, back: Mapping[int, range]
) -> None:
    """Refuse to have rows come again of which some were set aside: they would be in both tables,
    or, where they do not fit this time, in neither."""
    for partition, rows in back.items():
        named = named_dead_letters(table.properties, partition)
        reached = committed_position(letters, partition) if letters is not None else None
        if max(named.end if named else 0, reached.offset if reached else 0) > rows.start:
            raise Conflict(
                f"rows of partition {partition} behind offset {rows.start} are among the dead "
                "letters, and would not come again once",
                hint=_instead_of_replay(topic, back),
                context={"partition": str(partition), "offset": str(rows.start)},
            )


def _instead_of_replay(topic: TableName, back: Mapping[int, range]) -> str:
    # Without those that come by themselves afterwards.
    wanted = " OR ".join(
        f"_calve_partition = {partition} AND _calve_offset BETWEEN {rows[0]} AND {rows[-1]}"
        for partition, rows in back.items()
    )
    question = f"SELECT * FROM {topic} WHERE {wanted}"  # noqa: S608 - for a person to ask
    return (
        "roll back without --replay, or to a snapshot that is not older than they are. If the "
        f"table was restored from an older copy, restore {topic.dead_letters} from the same one, "
        f'and do this again; or keep the rows with `calve sql "{question}" --output rows.parquet` '
        f"before you roll back without --replay, and send them again afterwards with `calve "
        f"produce {topic} --data rows.parquet`"
    )
