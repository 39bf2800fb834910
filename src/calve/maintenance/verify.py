"""The auditor: proves from tables and log that each offset of a topic is there once.

An offset is in the topic's table or among its dead letters. The auditor looks at one
snapshot of each, with the properties that belong to it, while others go on committing; if it
expires meanwhile, at the newest one instead. What is in neither must have been removed on purpose,
by a record or by a snapshot that is kept, or be known as lost to the log, or to the table from it;
all else is missing, and what is in both is doubled: defects. So is a table that has come to less
than the lake's state knows. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, Conflict, Corruption, InvalidRequest, NotFound
from calve.maintenance.bound_log import streams_bound_here
from calve.maintenance.log_check import TopicLog, Whereabouts, opened_log
from calve.maintenance.memory import Memory, opened_memory
from calve.maintenance.set_aside import SetAside
from calve.maintenance.sweep import PartitionCount, Sweep, sweep
from calve.maintenance.verification import (
    LogState,
    OrphanFile,
    PartitionReport,
    Removed,
    Verification,
    told,
)
from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.dead_letters import files_named_by, find_dead_letter_table
from calve.tables.feeding import feeding_topic, require_topic, table_gone
from calve.tables.lineage import require_unbroken
from calve.tables.losses import known_losses
from calve.tables.orphans import data_orphans
from calve.tables.positions import Position, committed_position, committed_positions
from calve.tables.ranges import Ranges
from calve.tables.removal_history import Ancestor, ancestors, taken_out, unrecorded
from calve.tables.removals import Removals, recorded_ids
from calve.tables.runs import Runs
from calve.tables.translate import translating
from calve.topics.registry import no_topic

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from calve.settings import Settings

_AUDITS_MAX: Final = 5


def verify_topic(  # noqa: PLR0913
    catalog: LakeCatalog,
    name: TableName | str,
    *,
    log: Path | None = None,
    own_log: Path | None = None,
    with_orphans: bool = False,
    settings: Settings | None = None,
    go_on: Callable[[], object] = lambda: None,
) -> Verification:
    """Audit the table of a topic, and its log: that in a directory, or the lake's own if it has it.

    With the lake's `settings`, also against what its state knows: a topic that the log has and that
    has no table yet is held against the log alone, and one whose table is gone is told from it.
    NotFound if there is neither, or no topic feeds the table; InvalidRequest if it has deletes that
    only Spark can read; Conflict if its snapshots expire faster than they can be read. `go_on` is
    called from time to time, and raises to give the audit up.
    """
    table_name = _parsed(name)
    at = Whereabouts(log, own_log, partial(streams_bound_here, settings))
    try:
        tables = _Tables(catalog, table_name)
    except NotFound:
        with opened_memory(settings, table_name) as memory:
            committed = memory.committed()
        # Looked for again: the first commit may have come meanwhile.
        if catalog.find_table(table_name) is None:
            uncommitted = _uncommitted(table_name, committed, at)
            if uncommitted is None:
                raise no_topic(table_name) from None
            return uncommitted
        tables = _Tables(catalog, table_name)
    topic = require_topic(tables.rows, str(table_name))
    with (
        translating(),
        opened_log(topic, at) as in_log,
        opened_memory(settings, table_name) as memory,
    ):
        found = _audited(tables, in_log, memory, go_on)
    found = replace(found, topic=str(topic), table=str(table_name))
    return _with_orphans(found, _Tables(catalog, table_name)) if with_orphans else found


def _parsed(name: TableName | str) -> TableName:
    parsed = name if isinstance(name, TableName) else TableName.parse(name)
    if parsed.is_dead_letters:
        raise InvalidRequest(
            f"{parsed} is the table of a topic's dead letters",
            hint="verify the topic: that looks at both of its tables",
        )
    return parsed


class _Tables:
    """The two tables of a topic as they are now, that of its rows read first."""

    def __init__(self, catalog: LakeCatalog, name: TableName) -> None:
        self._catalog = catalog
        self._name = name
        self.rows = catalog.load_table(name)
        topic = feeding_topic(self.rows)
        self.letters = find_dead_letter_table(catalog, topic) if topic else None

    def again(self) -> _Tables:
        return _Tables(self._catalog, self._name)

    @property
    def snapshot_ids(self) -> set[int]:
        tables = [self.rows, self.letters] if self.letters else [self.rows]
        return {each.snapshot_id for table in tables for each in table.metadata.snapshots}


def _uncommitted(
    topic: TableName, committed: Mapping[int, int], at: Whereabouts
) -> Verification | None:
    """Of a topic without a table: whether its log has every row from the first on, and the table
    is not gone; None if the log has no such topic and need not have it, and nothing was committed.
    """
    with opened_log(topic, at) as in_log:
        partitions = (set(in_log.partitions) if in_log else set()) | set(committed)
        if not partitions:
            return None
        reports = tuple(
            _log_report(in_log, each, committed.get(each, 0)) for each in sorted(partitions)
        )
    problems = (_gone(topic, sum(committed.values())),) if committed else ()
    return Verification(
        topic=str(topic),
        table=str(topic),
        snapshot_id=None,
        is_sound=not problems and all(each.is_sound for each in reports),
        rows=0,
        unnumbered_rows=0,
        partitions=reports,
        problems=problems,
        has_table=False,
    )


def _gone(topic: TableName, count: int) -> str:
    error = table_gone(topic)
    were = "1 offset was" if count == 1 else f"{count:,} offsets were"
    return f"{error.message}, although {were} committed to it ({error.hint})"


def _log_report(log: TopicLog | None, partition: int, committed: int) -> PartitionReport:
    state = log.check(partition, None, lambda: None) if log else None
    return PartitionReport(
        partition=partition,
        committed=committed,
        rows=0,
        missing=(),
        doubled=(),
        beyond=(),
        removed=(),
        removed_by=(),
        known_loss=state.lost if state else (),
        returned=0,
        log=state,
        problems=(),
    )


def _audited(
    tables: _Tables, log: TopicLog | None, memory: Memory, go_on: Callable[[], object]
) -> Verification:
    """Audit a topic's tables, and again as they are now if what they were expires meanwhile."""
    for _ in range(_AUDITS_MAX):
        go_on()
        before = tables
        try:
            audit = _Audit(tables, log, memory, go_on)
            found = audit.run()
        except (CalveError, OSError):
            tables = tables.again()
            if before.snapshot_ids <= tables.snapshot_ids:
                raise
            continue
        if not audit.damage:
            return found
        tables = tables.again()
        if before.snapshot_ids <= tables.snapshot_ids:
            return found
    raise Conflict(
        f"snapshots of {'.'.join(tables.rows.name())} expire while they are read",
        hint="verify it while nobody expires its snapshots",
    )


class _Audit:
    def __init__(
        self, tables: _Tables, log: TopicLog | None, memory: Memory, go_on: Callable[[], object]
    ) -> None:
        self._memory = memory
        self._go_on = go_on
        self._tables = tables
        self._table = table = tables.rows
        self._log = log
        self._positions = committed_positions(table)
        self._removals = Removals.parse(table.properties)
        self._aside = SetAside.of(table, tables.letters)
        # Of files that cannot be read, or that are gone because their snapshot has expired.
        self.damage = list(self._aside.damage)

    def run(self) -> Verification:
        known = {*self._positions, *self._removals.by_partition, *self._memory.partitions()}
        known |= self._log.partitions if self._log else set()
        snapshot_id = self._table.metadata.current_snapshot_id
        # Before the table is read, which may take long: the log goes on meanwhile.
        in_log = {each: self._log_state(each) for each in known} if self._log else {}
        ends = {each: self._end(each) for each in known}
        aside = self._aside
        found = sweep(self._table, snapshot_id, ends, aside.sources, aside.removals, self._go_on)
        self.damage += found.damage
        lost = {each: self._known_loss(each, count) for each, count in found.partitions.items()}
        taken = self._taken_out(found)
        problems = (*self.damage, *found.problems, *aside.problems)
        reports = tuple(
            self._report(each, found.partitions[each], lost[each], taken[each], in_log.get(each))
            for each in sorted(found.partitions)
        )
        return Verification(
            topic="",
            table="",
            snapshot_id=snapshot_id,
            is_sound=not problems and all(each.is_sound for each in reports),
            rows=found.unnumbered_rows + sum(each.rows for each in reports),
            unnumbered_rows=found.unnumbered_rows,
            partitions=reports,
            problems=problems,
            dead_letters=sum(each.dead_letters for each in reports),
            pending_dead_letters=aside.pending,
        )

    def _end(self, partition: int) -> int:
        position = self._positions.get(partition)
        return position.offset if position else 0

    def _log_state(self, partition: int) -> LogState | None:
        assert self._log is not None

        def newest() -> Position | None:
            return committed_position(self._tables.again().rows, partition)

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
        for table, snapshot in self._unrecorded():
            self._go_on()
            spans = Runs.joined([each.gaps.span for each in found.partitions.values()])
            if not len(spans):
                break
            for partition, runs in self._taken_out_by(table, snapshot, spans).items():
                if partition in found.partitions:
                    hits = found.partitions[partition].gaps.explain(runs)
                    if hits:
                        by[partition].append(Removed((snapshot.id,), hits.ranges))
        return by

    def _taken_out_by(self, table: Table, snapshot: Ancestor, spans: Runs) -> dict[int, Runs]:
        try:
            return taken_out(table, snapshot, spans)
        except Corruption as error:
            self.damage.append(f"what snapshot {snapshot.id} removed cannot be told: {told(error)}")
            return {}

    def _unrecorded(self) -> Iterator[tuple[Table, Ancestor]]:
        letters = self._tables.letters
        for table in (self._table, letters) if letters is not None else (self._table,):
            for snapshot in unrecorded(table):
                yield table, snapshot

    def _recorded(self, partition: int, end: int) -> Ranges:
        discarded = self._aside.removals.ranges(partition).below(end)
        return self._removals.ranges(partition).merged(discarded)

    def _recorded_by(self, partition: int) -> list[Removed]:
        letters = self._tables.letters
        found = _recorded_by(self._table, partition)
        return [*found, *_recorded_by(letters, partition)] if letters is not None else found

    def _report(
        self,
        partition: int,
        count: PartitionCount,
        lost: Ranges,
        taken: list[Removed],
        log: LogState | None,
    ) -> PartitionReport:
        recorded = self._recorded(partition, count.end)
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
            removed_by=(*self._recorded_by(partition), *taken),
            known_loss=lost.merged(Ranges(log.lost)).ranges if log else lost.ranges,
            returned=max(0, recorded.count - count.gaps.removed.count),
            log=log,
            problems=self._problems(partition),
            dead_letters=count.dead_letters,
        )

    def _problems(self, partition: int) -> tuple[str, ...]:
        position = self._positions.get(partition)
        rewound = self._memory.rewound(
            partition, self._end(partition), lambda: self._tables.again().rows
        )
        if rewound is not None:
            return (f"{rewound.message} ({rewound.hint})",)
        try:
            require_unbroken(self._table, partition, position, None)
        except Corruption as error:
            return (told(error),)
        return ()


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


def _with_orphans(found: Verification, tables: _Tables) -> Verification:
    try:
        return replace(found, orphans=_orphans(tables))
    except Corruption as error:
        problem = f"orphans cannot be listed: {told(error)}"
        return replace(found, is_sound=False, problems=(*found.problems, problem))


def _orphans(tables: _Tables) -> tuple[OrphanFile, ...]:
    found = data_orphans(tables.rows)
    if tables.letters is not None:
        found += data_orphans(tables.letters, needed=files_named_by(tables.rows))
    return tuple(OrphanFile(file.location, file.bytes, file.changed_at) for file in found)
