"""The offset commit: the rows of a range of a log and the offset that they reach, in one snapshot.

A table remembers per partition how far it has come: the property `calve.committed.<partition>`. It
changes only together with a snapshot, and every commit asserts the snapshot that was the newest
when the property was read. So a range is in the table once, whatever a catalog answers, however
often and by however many it is committed.

Whether a table and its property still belong together is `lineage`'s to say. The contents of the
data files are not looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias
from uuid import UUID

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from calve.errors import CalveError, Conflict, InvalidRequest
from calve.tables.beginnings import taken_over
from calve.tables.column_history import unrecorded_memory
from calve.tables.commit import Committed, TableCommit
from calve.tables.data_files import new_operation_id
from calve.tables.expiry import clear_away, manifest_paths, referred_files
from calve.tables.feeding import feeding_topic
from calve.tables.lineage import require_unbroken, snapshots_before
from calve.tables.losses import with_losses
from calve.tables.positions import (
    Position,
    committed_position,
    differ,
    has_positions,
    position_property,
    range_summary,
)
from calve.tables.ranges import Ranges
from calve.tables.recording import Retirement
from calve.tables.retention import bounded_metadata
from calve.tables.retry import CommitRetry
from calve.tables.staging import Edit
from calve.tables.translate import translating

_LOG: Final = logging.getLogger(__name__)
_OPERATION: Final = "calve.operation"


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets of one partition's log from `start` up to, not including, `end`.

    `checksum` is that of the last frame, in whatever spelling the log has for it. `lost` are the
    holes of the log in the range, which the table will remember.
    """

    partition: int
    log: UUID
    start: int
    end: int
    checksum: str
    lost: Ranges = field(default_factory=Ranges)

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.start < self.end:
            raise InvalidRequest(
                f"{self.start}-{self.end} of partition {self.partition} is not a range of offsets",
                hint="a range has at least one offset, and offsets begin with 0",
            )
        if any(each.first < self.start or each.end > self.end for each in self.lost):
            raise InvalidRequest(
                f"{self.lost} is not all of it in {self}", hint="tell of holes in the range itself"
            )

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"


@dataclass(frozen=True, slots=True)
class RangeCommit:
    """How far the table has come, and whether it was this call that brought it there."""

    position: Position
    is_new: bool
    table: Table


def range_operation_id(rows: LogRange) -> str:
    """A name for one attempt at a range, with which the names of its data files begin."""
    return new_operation_id(f"offsets-{rows.partition}-{rows}")


def next_offset(
    table: Table,
    partition: int,
    log: UUID,
    *,
    last_seen: Position | None = None,
    replaces: UUID | None = None,
) -> int:
    """Where the next range of a log begins in a table.

    What `commit_range` would say about table and log is said here, before anything is written: a
    table of another log, one that was rewound or edited.
    """
    position = committed_position(table, partition)
    require_unbroken(table, partition, position, last_seen)
    if position is None:
        return 0
    if position.log not in {log, replaces}:
        raise _other_log(table, partition, log, position)
    return position.offset


def commit_range(  # noqa: PLR0913
    table: Table,
    rows: LogRange,
    edit: Edit,
    *,
    operation_id: str,
    last_seen: Position | None = None,
    replaces: UUID | None = None,
    retry: CommitRetry | None = None,
    properties_for: Callable[[Table], Mapping[str, str]] | None = None,
) -> RangeCommit:
    """Commit a range's data files, or find that the range is in the table already.

    `table` is what the files were written for, unless `edit` has the schema; it may be out of date.
    `last_seen` is how far the caller knows the table to have come; one that is behind it is
    refused. A log that takes over from another names it in `replaces`, and begins where it ended.
    `retry` says how often, where that is not the table's to say. `properties_for` gives properties
    that follow from the table's own, of the table that an attempt asserts; it may refuse that.

    Conflict if the range does not follow, or the log is not the table's; Corruption if the table
    was rewound or its property edited: both say what to do. Unavailable and UnknownOutcome invite
    another call with the same files. Files are deleted only if the table proves that they are not
    in it and cannot get there any more; others are left for orphan removal.
    """
    _require_fitting(rows, edit)
    commit = TableCommit(table, retry=retry, is_told_otherwise=True)
    judge = _Judge(rows, last_seen, replaces, properties_for or (lambda _: {}))
    retirement = Retirement()
    fitted = edit if edit.schema else replace(edit, schema=table.schema())

    def attempt() -> Committed | _Verdict:
        verdict = judge.verdict(commit.table)
        if verdict is not None:
            # Nothing is refused because of what was read some time ago.
            if found := commit.reload():
                return found
            verdict = judge.verdict(commit.table)
        if verdict is not None:
            return verdict
        told = judge.properties(commit.table)
        prepared = _prepared(commit.table, rows, fitted, operation_id, told)
        return commit.attempt(retirement.making_room(commit.table, prepared))

    outcome = commit.repeat(attempt)
    if isinstance(outcome, Committed):
        position = _position(rows, outcome.snapshot_id)
        return RangeCommit(position, is_new=True, table=outcome.table)
    if outcome.is_past:
        _discard(commit, rows, edit.added)
    if isinstance(outcome, _Refused):
        raise outcome.error
    return RangeCommit(outcome.position, is_new=False, table=commit.table)


def _require_fitting(rows: LogRange, edit: Edit) -> None:
    assert not edit.removed
    count = sum(file.record_count for file in edit.added)
    if count + rows.lost.count > rows.end - rows.start:
        raise InvalidRequest(
            f"the data files of {rows} have {count} rows, more than the range has offsets",
            hint="commit the files that were written for this range, each once",
        )


@dataclass(frozen=True, slots=True)
class _Present:
    """The range is in the table."""

    position: Position
    is_past: Final = True


@dataclass(frozen=True, slots=True)
class _Refused:
    """The range can neither be committed nor was it.

    `is_past` if the table has rows of it, so that these files can never be committed.
    """

    error: CalveError
    is_past: bool = False


_Verdict: TypeAlias = _Present | _Refused


class _Judge:
    """Says from the table alone whether a range is to be committed."""

    def __init__(
        self,
        rows: LogRange,
        last_seen: Position | None,
        replaces: UUID | None,
        properties: Callable[[Table], Mapping[str, str]],
    ) -> None:
        self.properties = properties
        self._rows = rows
        self._last_seen = last_seen
        self._replaces = replaces

    def verdict(self, table: Table) -> _Verdict | None:
        """None if the range follows what the table has."""
        try:
            position = committed_position(table, self._rows.partition)
            require_unbroken(table, self._rows.partition, position, self._last_seen)
            if position is not None:
                self._require_log(table, position)
                _require_same_rows(table, self._rows, position)
        except CalveError as refusal:
            return _Refused(refusal)
        return self._place(table, position) or self._refusal(table)

    def _place(self, table: Table, position: Position | None) -> _Verdict | None:
        rows = self._rows
        committed = position.offset if position else 0
        if committed == rows.start:
            return None
        if position is not None and committed >= rows.end:
            return _Present(position)
        error = Conflict(
            f"{_named(table)}: the range {rows} of partition {rows.partition} does not follow "
            f"{committed}, the offset that the table has come to",
            hint=f"read the log from offset {committed} on and commit that; "
            "`calve topic verify` tells what the table holds",
            context={"committed": str(committed), "range": str(rows)},
        )
        return _Refused(error, is_past=committed > rows.start)

    def _refusal(self, table: Table) -> _Refused | None:
        try:
            self.properties(table)
        except CalveError as refusal:
            return _Refused(refusal)
        return None

    def _require_log(self, table: Table, position: Position) -> None:
        rows = self._rows
        takes_over = position.log == self._replaces and position.offset == rows.start
        if position.log == rows.log or takes_over:
            return
        raise _other_log(table, rows.partition, rows.log, position)


def _other_log(table: Table, partition: int, log: UUID, position: Position) -> Conflict:
    topic = feeding_topic(table) or _named(table)
    return Conflict(
        f"{_named(table)}: partition {partition} is fed by log {position.log}, and this is log "
        f"{log}",
        hint="if the catalog, the state or the log was set back or exchanged, bring the right one "
        "back: the topic goes on by itself, and `calve wal inspect` shows the log that is here. To "
        f"go on with this table, `calve topic delete {topic}` and `calve topic create {topic} "
        f"--table`: the topic then begins at offset {position.offset}. Rows that only the log has "
        f"go with it, so look at them before with `calve wal dump {topic} --partition {partition}` "
        "and send again what is wanted",
        context={"found": str(log), "expected": str(position.log)},
    )


def _require_same_rows(table: Table, rows: LogRange, position: Position) -> None:
    if position.offset == rows.end and differ(position.checksum, rows.checksum):
        raise Conflict(
            f"{_named(table)}: other rows of log {rows.log} are in the table before offset "
            f"{rows.end} (checksum {position.checksum}) than in this range ({rows.checksum})",
            hint="one of the two was restored from another time; bring back its newer state. "
            "`calve topic verify` tells what the table holds",
            context={"found": rows.checksum, "expected": position.checksum},
        )


def _prepared(
    table: Table, rows: LogRange, edit: Edit, operation_id: str, told: Mapping[str, str]
) -> Edit:
    return replace(
        edit,
        summary={
            **edit.summary,
            **range_summary(rows.partition, rows.start, rows.end),
            _OPERATION: operation_id,
        },
        properties={
            **edit.properties,
            **told,
            **_first_time(table),
            # Before somebody removes the schemas that tell of it.
            **unrecorded_memory(table),
            **with_losses(table.properties, rows.partition, rows.lost),
            **taken_over(table, rows.partition, rows.log, rows.start),
        },
        stamp=lambda snapshot_id: position_property(rows.partition, _position(rows, snapshot_id)),
        is_recurring=True,
    )


def _first_time(table: Table) -> dict[str, str]:
    """What a table that is fed all the time should have, set once, where nobody has set it."""
    return {} if has_positions(table) else bounded_metadata(table.properties)


def _position(rows: LogRange, snapshot_id: int) -> Position:
    return Position(rows.log, rows.end, rows.checksum, snapshot_id)


def _discard(commit: TableCommit, rows: LogRange, files: Sequence[DataFile]) -> None:
    """Delete the files of a range that the table has from somebody else.

    It has passed the range's start, so that no earlier call with these files can be applied any
    more; and what one of them did is seen in the snapshots that are kept.
    """
    paths = [file.file_path for file in files]
    if not paths:
        return
    if commit.is_undecided or commit.table.format_version == 1:
        _LOG.warning("files are left over: a commit may still come", extra={"files": paths})
        return
    try:
        with translating():
            needed = _needed_files(commit.table, rows)
    except CalveError as error:
        _LOG.warning("files are left over", extra={"files": paths, "reason": error.message})
        return
    clear_away(commit.table.io, [path for path in paths if path not in needed])


def _needed_files(table: Table, rows: LogRange) -> set[str]:
    """Of the files that kept snapshots need, at least those that came with the range or later."""
    before = snapshots_before(table, rows.partition, rows.start)
    earlier = {each.snapshot_id for each in before}
    later = [each for each in table.metadata.snapshots if each.snapshot_id not in earlier]
    unread = manifest_paths(table.io, before[0]) if before else set()
    return referred_files(table.io, later, unread=unread)


def _named(table: Table) -> str:
    return ".".join(table.name())
