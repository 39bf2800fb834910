"""A table's snapshots: listed, found by time, rolled back to, and what changed between two of them.

Times without a zone are UTC. What the table looked like at a time is read off its own log of which
snapshot was current when, so a rollback is seen as it happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.snapshots import ancestors_of

from calve.errors import Conflict, InvalidRequest, NotFound
from calve.grid import Grid, ShownAsGrids
from calve.tables.manifests import entries_of, manifests_of
from calve.tables.outcome import commit_metadata, leads_to, moved


@dataclass(frozen=True, slots=True)
class Snapshot(ShownAsGrids):
    """One state of a table."""

    id: int
    timestamp: datetime
    operation: str
    parent_id: int | None
    schema_id: int | None
    added_rows: int
    deleted_rows: int
    total_rows: int | None
    added_files: int
    deleted_files: int
    refs: tuple[str, ...]
    is_current: bool

    def grids(self) -> list[Grid]:
        return Snapshots([self]).grids()


class Snapshots(ShownAsGrids, list[Snapshot]):
    """Those of a table, oldest first."""

    def grids(self) -> list[Grid]:
        columns = ("SNAPSHOT", "AT (UTC)", "OPERATION", "ADDED", "DELETED", "ROWS", "NAMES")
        return [Grid(columns, [_cells(each) for each in self])]


@dataclass(frozen=True, slots=True)
class FileChange:
    """A data file that came or went."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class ScanPlan(ShownAsGrids):
    """The data files that are in one snapshot and not in the other."""

    added: tuple[FileChange, ...]
    deleted: tuple[FileChange, ...]

    def grids(self) -> list[Grid]:
        listed = [("added", each) for each in self.added] + [("deleted", e) for e in self.deleted]
        cells = [(what, f"{file.rows:,}", f"{file.bytes:,}", file.path) for what, file in listed]
        return [Grid(("CHANGE", "ROWS", "BYTES", "FILE"), cells)]


def list_snapshots(table: Table) -> Snapshots:
    """Every snapshot that is kept, oldest first."""
    ordered = sorted(
        table.metadata.snapshots, key=lambda each: (each.timestamp_ms, each.sequence_number or 0)
    )
    return Snapshots(describe_snapshot(table, each) for each in ordered)


def current_snapshot(table: Table) -> Snapshot | None:
    found = table.current_snapshot()
    return describe_snapshot(table, found) if found else None


def snapshot_by_id(table: Table, snapshot_id: int) -> Snapshot:
    # None, which a change that changed nothing has, must not be taken for the current one.
    if not isinstance(snapshot_id, int):
        raise InvalidRequest(
            f"{snapshot_id!r} is not a snapshot's id", hint="ids are whole numbers, not text"
        )
    found = table.snapshot_by_id(snapshot_id)
    if found is None:
        raise NotFound(
            f"there is no snapshot {snapshot_id}; it never existed or has expired",
            hint="`calve table list-snapshots` shows those that are kept",
        )
    return describe_snapshot(table, found)


def snapshot_as_of(table: Table, moment: datetime) -> Snapshot:
    """The snapshot that was current at a time."""
    at_ms = int(as_utc(moment).timestamp() * 1000)
    log = table.metadata.snapshot_log
    current_then = [entry for entry in log if entry.timestamp_ms <= at_ms]
    if current_then:
        return snapshot_by_id(table, current_then[-1].snapshot_id)
    if not log:
        raise NotFound("the table has no snapshot yet", hint="insert something first")
    first = log[0]
    kept = table.snapshot_by_id(first.snapshot_id)
    # Snapshots are numbered from 1; a parent that has expired is no longer named.
    has_expired = kept is not None and (kept.sequence_number or 1) > 1
    what = "the oldest that is kept" if has_expired else "the table's first"
    hint = "name a later time; a time without a zone is read as UTC"
    if any(each.timestamp_ms < first.timestamp_ms for each in table.snapshots()):
        # A tag or a branch keeps it; what was current between the two has been forgotten.
        what = "the oldest of which it is known when it was current"
        hint += "; a snapshot that a tag or a branch keeps is read by that, or by its id"
    raise NotFound(
        f"there is no snapshot from {_shown(at_ms)}: {what} is {first.snapshot_id} "
        f"from {_shown(first.timestamp_ms)}",
        hint=hint,
    )


def rollback(table: Table, snapshot_id: int, *, force: bool = False) -> None:
    """Make an earlier snapshot the current one again; nothing is deleted.

    Only an ancestor of the current snapshot is taken, unless forced: going to any other would
    bring back what was rolled back, or another branch's rows.
    """
    if not require_rollback(table, snapshot_id, force=force).is_current:
        move_main(table, snapshot_id)


def require_rollback(table: Table, snapshot_id: int, *, force: bool) -> Snapshot:
    """The snapshot, if a rollback may go to it."""
    wanted = snapshot_by_id(table, snapshot_id)
    if not force and snapshot_id not in ancestor_ids(table):
        raise Conflict(
            f"snapshot {snapshot_id} is not an ancestor of the current one",
            hint="`list-snapshots` shows how they follow; --force takes any that is kept",
        )
    return wanted


def move_main(table: Table, snapshot_id: int) -> None:
    """Make a snapshot the current one, if the one that is current now still is."""
    before = table.metadata
    update = moved(before, MAIN_BRANCH, snapshot_id)

    def has_happened(metadata: TableMetadata) -> bool:
        # Somebody may have committed on top of it already.
        return any(
            entry.snapshot_id == snapshot_id and entry not in before.snapshot_log
            for entry in metadata.snapshot_log
        )

    unmoved = leads_to(MAIN_BRANCH, before.current_snapshot_id)
    commit_metadata(table, [update], [unmoved], has_happened=has_happened)


def ancestor_ids(table: Table, ref: str = MAIN_BRANCH) -> set[int]:
    """The snapshots that a branch's newest one came from, itself among them."""
    head = table.snapshot_by_name(ref)
    return {each.snapshot_id for each in ancestors_of(head, table.metadata)} if head else set()


def plan_scan(table: Table, from_snapshot_id: int, to_snapshot_id: int) -> ScanPlan:
    """What a follower that has seen one snapshot must read, and forget, to have seen the other."""
    before, after = (data_files(table, each) for each in (from_snapshot_id, to_snapshot_id))
    return ScanPlan(
        added=tuple(_change(after[path]) for path in sorted(after.keys() - before.keys())),
        deleted=tuple(_change(before[path]) for path in sorted(before.keys() - after.keys())),
    )


def data_files(table: Table, snapshot_id: int) -> dict[str, DataFile]:
    """The data files of a snapshot, by path."""
    snapshot_by_id(table, snapshot_id)
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return {
        entry.data_file.file_path: entry.data_file
        for manifest in manifests_of(snapshot, table.io)
        for entry in entries_of(manifest, table.io)
        if entry.data_file.content == 0
    }


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    id: int
    summary: Mapping[str, str]


def snapshots_since(table: Table, branch: str, snapshot_id: int | None) -> list[SnapshotSummary]:
    """What was committed to a branch after a snapshot of it, newest first."""
    found: list[SnapshotSummary] = []
    for each in ancestors_of(table.snapshot_by_name(branch), table.metadata):
        if each.snapshot_id == snapshot_id:
            break
        found.append(
            SnapshotSummary(
                each.snapshot_id, each.summary.additional_properties if each.summary else {}
            )
        )
    return found


def has_deletes(table: Table, snapshot_id: int) -> bool:
    """Whether rows of the snapshot's files are deleted by delete files."""
    snapshot = table.snapshot_by_id(snapshot_id)
    manifests = manifests_of(snapshot, table.io) if snapshot else []
    return any(each.content == ManifestContent.DELETES for each in manifests)


def as_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidRequest(
            f"{moment} is not a time of the calendar in UTC",
            hint="name a time between years 1 and 9999",
        ) from error


def moment_of(given: datetime | date | str) -> datetime:
    """A date is its midnight, as its text is."""
    return given if isinstance(given, datetime) else parse_moment(str(given))


def parse_moment(text: str) -> datetime:
    """Read `2024-01-01 10:00:00`, with or without a zone."""
    try:
        return as_utc(datetime.fromisoformat(text.strip()))
    except ValueError as error:
        raise InvalidRequest(
            f"{text!r} is not a time",
            hint="write 2024-01-01 10:00:00, or 2024-01-01T10:00:00+02:00",
        ) from error


def told_moment(moment: datetime, snapshot_id: int | None) -> str:
    """What an answer says of the time it is of: that time in UTC, and the snapshot."""
    plain = moment.replace(tzinfo=None)
    return f"as of {plain.isoformat(' ', 'auto')} UTC: snapshot {snapshot_id}"


def describe_snapshot(table: Table, snapshot: IcebergSnapshot) -> Snapshot:
    summary = snapshot.summary

    def number(key: str) -> int | None:
        text = summary.additional_properties.get(key) if summary else None
        return int(text) if text is not None else None

    return Snapshot(
        id=snapshot.snapshot_id,
        timestamp=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        operation=summary.operation.value if summary else "unknown",
        parent_id=snapshot.parent_snapshot_id,
        schema_id=snapshot.schema_id,
        added_rows=number("added-records") or 0,
        deleted_rows=number("deleted-records") or 0,
        total_rows=number("total-records"),
        added_files=number("added-data-files") or 0,
        deleted_files=number("deleted-data-files") or 0,
        refs=tuple(
            sorted(
                name
                for name, ref in table.refs().items()
                if ref.snapshot_id == snapshot.snapshot_id
            )
        ),
        is_current=snapshot.snapshot_id == table.metadata.current_snapshot_id,
    )


def _change(file: DataFile) -> FileChange:
    return FileChange(file.file_path, file.record_count, file.file_size_in_bytes)


def _shown(timestamp_ms: int) -> str:
    return (
        datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        + " UTC"
    )


def _cells(snapshot: Snapshot) -> tuple[object, ...]:
    names = [name if name != MAIN_BRANCH else "main (current)" for name in snapshot.refs]
    return (
        snapshot.id,
        f"{snapshot.timestamp:%Y-%m-%d %H:%M:%S.%f}"[:-3],
        snapshot.operation,
        f"{snapshot.added_rows:,}",
        f"{snapshot.deleted_rows:,}",
        None if snapshot.total_rows is None else f"{snapshot.total_rows:,}",
        ", ".join(names) or None,
    )
