"""The auditor: proves from table and log that each offset of a topic is there once.

It looks at one snapshot, with the properties that belong to it, while others go on committing; if
it expires meanwhile, at the newest one instead. What is not there must have been removed on
purpose, by a record or by a snapshot that is kept, or be known as lost to the log, or to the table
from it; all else is missing, which is a defect. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, Conflict, NotFound
from calve.maintenance.log_check import TopicLog, opened_log
from calve.maintenance.sweep import PartitionCount, Sweep, sweep
from calve.maintenance.verification import (
    LogState,
    OrphanFile,
    PartitionReport,
    Removed,
    Verification,
)
from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.feeding import require_topic
from calve.tables.losses import known_losses
from calve.tables.orphans import data_orphans
from calve.tables.positions import Position, committed_position, committed_positions
from calve.tables.ranges import Ranges
from calve.tables.reached import is_on_line
from calve.tables.removal_history import Ancestor, ancestors, taken_out, unrecorded
from calve.tables.removals import Removals, recorded_ids
from calve.tables.runs import Runs
from calve.tables.translate import translating

if TYPE_CHECKING:
    from pyiceberg.table import Table

_AUDITS_MAX: Final = 5


def verify_topic(
    catalog: LakeCatalog,
    name: TableName | str,
    *,
    log: Path | None = None,
    own_log: Path | None = None,
    with_orphans: bool = False,
) -> Verification:
    """Audit the table of a topic, and its log: that in a directory, or the lake's own if it has it.

    A topic that the log has and that has no table yet is held against the log alone. NotFound if
    there is neither, or no topic feeds the table; InvalidRequest if it has deletes that
    only Spark can read; Conflict if its snapshots expire faster than they can be read.
    """
    try:
        table = catalog.load_table(name)
    except NotFound:
        uncommitted = _uncommitted(name, log, own_log)
        if uncommitted is None:
            raise
        return uncommitted
    topic = require_topic(table, str(name))
    with translating(), opened_log(topic, log, own_log) as in_log:
        found = _audited(table, in_log, lambda: catalog.load_table(name))
    orphans = _orphans(catalog.load_table(name)) if with_orphans else None
    return replace(found, topic=str(topic), table=str(name), orphans=orphans)


def _uncommitted(
    name: TableName | str, log: Path | None, own_log: Path | None
) -> Verification | None:
    """Of a topic of which nothing was committed: whether its log has every row from the first on;
    None if the log has no such topic."""
    topic = TableName.parse(name) if isinstance(name, str) else name
    with opened_log(topic, log, own_log) as in_log:
        if in_log is None or not in_log.partitions:
            return None
        reports = tuple(_log_report(in_log, each) for each in sorted(in_log.partitions))
    return Verification(
        topic=str(topic),
        table=str(topic),
        snapshot_id=None,
        is_sound=all(each.is_sound for each in reports),
        rows=0,
        unnumbered_rows=0,
        partitions=reports,
        problems=(),
        has_table=False,
    )


def _log_report(log: TopicLog, partition: int) -> PartitionReport:
    return PartitionReport(
        partition=partition,
        committed=0,
        rows=0,
        missing=(),
        doubled=(),
        beyond=(),
        removed=(),
        removed_by=(),
        known_loss=(),
        returned=0,
        log=log.check(partition, None, lambda: None),
        problems=(),
    )


def _audited(table: Table, log: TopicLog | None, reloaded: Callable[[], Table]) -> Verification:
    """Audit a table, and again as it is now if what it was expires meanwhile."""
    for _ in range(_AUDITS_MAX):
        try:
            return _Audit(table, log, reloaded).run()
        except (CalveError, OSError):
            before, table = table, reloaded()
            if _snapshot_ids(before) <= _snapshot_ids(table):
                raise
    raise Conflict(
        f"snapshots of {'.'.join(table.name())} expire while they are read",
        hint="verify it while nobody expires its snapshots",
    )


def _snapshot_ids(table: Table) -> set[int]:
    return {each.snapshot_id for each in table.metadata.snapshots}


class _Audit:
    def __init__(self, table: Table, log: TopicLog | None, reloaded: Callable[[], Table]) -> None:
        self._table = table
        self._log = log
        self._reloaded = reloaded
        self._positions = committed_positions(table)
        self._removals = Removals.parse(table.properties)

    def run(self) -> Verification:
        known = {*self._positions, *self._removals.by_partition}
        known |= self._log.partitions if self._log else set()
        snapshot_id = self._table.metadata.current_snapshot_id
        # Before the table is read, which may take long: the log goes on meanwhile.
        in_log = {each: self._log_state(each) for each in known} if self._log else {}
        found = sweep(self._table, snapshot_id, {each: self._end(each) for each in known})
        lost = {each: self._known_loss(each, count) for each, count in found.partitions.items()}
        taken = self._taken_out(found)
        reports = tuple(
            self._report(each, found.partitions[each], lost[each], taken[each], in_log.get(each))
            for each in sorted(found.partitions)
        )
        return Verification(
            topic="",
            table="",
            snapshot_id=snapshot_id,
            is_sound=not found.problems and all(each.is_sound for each in reports),
            rows=found.unnumbered_rows + sum(each.rows for each in reports),
            unnumbered_rows=found.unnumbered_rows,
            partitions=reports,
            problems=tuple(found.problems),
        )

    def _end(self, partition: int) -> int:
        position = self._positions.get(partition)
        return position.offset if position else 0

    def _log_state(self, partition: int) -> LogState:
        assert self._log is not None

        def newest() -> Position | None:
            return committed_position(self._reloaded(), partition)

        return self._log.check(partition, self._positions.get(partition), newest)

    def _known_loss(self, partition: int, count: PartitionCount) -> Ranges:
        told = count.gaps.explain_ranges(known_losses(self._table.properties, partition))
        span = count.gaps.span
        if self._log is None or not len(span):
            return told
        return told.merged(count.gaps.explain(self._log.holes(partition, span)))

    def _taken_out(self, found: Sweep) -> dict[int, list[Removed]]:
        """What snapshots took out that nobody recorded; the newest that did is named."""
        by: dict[int, list[Removed]] = {each: [] for each in found.partitions}
        for snapshot in unrecorded(self._table):
            spans = Runs.joined([each.gaps.span for each in found.partitions.values()])
            if not len(spans):
                break
            for partition, runs in taken_out(self._table, snapshot, spans).items():
                if partition in found.partitions:
                    hits = found.partitions[partition].gaps.explain(runs)
                    if hits:
                        by[partition].append(Removed((snapshot.id,), hits.ranges))
        return by

    def _report(
        self,
        partition: int,
        count: PartitionCount,
        lost: Ranges,
        taken: list[Removed],
        log: LogState | None,
    ) -> PartitionReport:
        recorded = self._removals.ranges(partition)
        removed = count.gaps.removed
        for each in taken:
            removed = removed.merged(Ranges(each.ranges))
        return PartitionReport(
            partition=partition,
            committed=count.end,
            rows=count.rows,
            missing=count.gaps.unexplained.ranges,
            doubled=count.doubled.ranges,
            beyond=count.beyond.ranges,
            removed=removed.ranges,
            removed_by=(*_recorded_by(self._table, partition), *taken),
            known_loss=lost.ranges,
            returned=max(0, recorded.count - count.gaps.removed.count),
            log=log,
            problems=self._problems(partition),
        )

    def _problems(self, partition: int) -> tuple[str, ...]:
        position = self._positions.get(partition)
        if position is None or is_on_line(self._table, position):
            return ()
        told = (
            f"snapshot {position.snapshot_id}, which brought the table to offset "
            f"{position.offset}, is no longer part of it: somebody has set the table back without "
            "Calve (`calve table rollback` to its current snapshot records the rows as removed, "
            "with --replay it has them taken from the log again)"
        )
        return (told,)


def _recorded_by(table: Table, partition: int) -> list[Removed]:
    """What kept snapshots have recorded, for those that they name."""
    found: list[Removed] = []
    for each in ancestors(table):
        ranges = Removals.parse(each.summary).ranges(partition)
        others = _others(each)
        if ranges and recorded_ids([(each.id, each.summary)]):
            found.append(Removed(others or (each.id,), ranges.ranges))
    return found


def _others(snapshot: Ancestor) -> tuple[int, ...]:
    return tuple(sorted(recorded_ids([(snapshot.id, snapshot.summary)]) - {snapshot.id}))


def _orphans(table: Table) -> tuple[OrphanFile, ...]:
    return tuple(
        OrphanFile(file.location, file.bytes, file.changed_at) for file in data_orphans(table)
    )
