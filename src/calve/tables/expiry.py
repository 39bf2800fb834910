"""Forgetting old snapshots and deleting the files that nobody refers to any more.

A file goes only when the table, read again after the commit, proves that no kept snapshot needs
it, and if it lies in the table's own places. If deleting is cut short, the files left over belong
to nobody, and orphan removal finds them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final, NamedTuple, Protocol

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import (
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    _apply_table_update,
)

from calve.errors import Corruption, InvalidRequest
from calve.grid import Grid, ShownAsGrids
from calve.tables.manifests import entries_of, is_missing, manifests_of
from calve.tables.outcome import commit_metadata, leads_to
from calve.tables.own_files import only_own
from calve.tables.snapshots import as_utc
from calve.tables.steps import line_since

# Further back than anything was written, and not before the calendar begins.
_DAYS_MAX: Final = 700_000
_LOG: Final = logging.getLogger(__name__)
_remove: Final[Callable[..., TableMetadata]] = _apply_table_update.dispatch(RemoveSnapshotsUpdate)
_set_ref: Final[Callable[..., TableMetadata]] = _apply_table_update.dispatch(SetSnapshotRefUpdate)


@_apply_table_update.register(RemoveSnapshotsUpdate)
def _forget(
    update: RemoveSnapshotsUpdate, metadata: TableMetadata, context: object
) -> TableMetadata:
    """Forget which snapshot was current before one that goes, as the Iceberg specification says.

    PyIceberg takes out single entries of that history, so that a time at which an expired snapshot
    was current would lead to the one before it; and it takes out a tag that somebody gave to such a
    snapshot meanwhile, which here is a conflict.
    """
    _require_expirable(set(update.snapshot_ids), metadata)
    gone = [entry.snapshot_id in update.snapshot_ids for entry in metadata.snapshot_log]
    first = len(gone) - gone[::-1].index(True) if any(gone) else 0
    after = _remove(update, metadata, context)
    return after.model_copy(update={"snapshot_log": metadata.snapshot_log[first:]})


@_apply_table_update.register(SetSnapshotRefUpdate)
def _lead(update: SetSnapshotRefUpdate, metadata: TableMetadata, context: object) -> TableMetadata:
    """Have a name lead to a snapshot. That it has expired meanwhile is a conflict, and no bug."""
    if metadata.snapshot_by_id(update.snapshot_id) is None:
        raise CommitFailedException(f"there is no snapshot {update.snapshot_id} any more")
    return _set_ref(update, metadata, context)


def _require_expirable(ids: set[int], metadata: TableMetadata) -> None:
    if not ids <= {each.snapshot_id for each in metadata.snapshots}:
        raise CommitFailedException("somebody else has expired a snapshot")
    if ids & {ref.snapshot_id for ref in metadata.refs.values()}:
        raise CommitFailedException("a branch or a tag has come to lead to an old snapshot")


def age_of(days: float) -> timedelta:
    """So many days, however many; InvalidRequest for what is no age."""
    given: object = days
    if not isinstance(given, int | float) or not given >= 0:
        raise InvalidRequest(
            f"{days!r} is no number of days", hint="0 means everything but what is needed now"
        )
    return timedelta(days=min(days, _DAYS_MAX))


class Hold(NamedTuple):
    """A follower needs what comes after a snapshot, until then; None is before them all."""

    follower: str
    snapshot_id: int | None
    until: datetime


class Holding(Protocol):
    def __call__(self, *, is_dry_run: bool) -> AbstractContextManager[Sequence[Hold]]:
        """What is held; unless it is a dry run, nobody comes to hold more inside of it."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """Old snapshots that stay, because a follower needs them."""

    follower: str
    until: datetime
    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Expiry(ShownAsGrids):
    """What was removed, or would be, and what is kept for followers."""

    snapshot_ids: tuple[int, ...]
    files: tuple[str, ...]
    is_dry_run: bool
    kept: tuple[Kept, ...] = ()

    def grids(self) -> list[Grid]:
        would_be = "would be " if self.is_dry_run else ""
        cells = [(each, f"{would_be}forgotten") for each in self.snapshot_ids]
        cells += [
            (each, f"kept for follower {kept.follower} until {kept.until:%Y-%m-%d %H:%M:%S} UTC")
            for kept in self.kept
            for each in kept.snapshot_ids
        ]
        files = [(each, f"{would_be}deleted") for each in self.files]
        return [Grid(("SNAPSHOT", "WHAT"), cells), Grid(("FILE", "WHAT"), files)]


def nothing_held(*, is_dry_run: bool) -> AbstractContextManager[Sequence[Hold]]:  # noqa: ARG001
    return nullcontext(())


def expire_snapshots(
    table: Table, older_than: datetime, *, holding: Holding = nothing_held, dry_run: bool = False
) -> Expiry:
    """Forget snapshots from before a time, except what a branch, a tag or a follower needs."""
    old = expired_ids(table.metadata, int(as_utc(older_than).timestamp() * 1000))
    if not old:
        return Expiry((), (), dry_run)
    gone = _files_of(table, lambda each: each in old)
    with holding(is_dry_run=dry_run) as holds:
        kept = _kept(table, old, holds)
        expired = old.difference(*(each.snapshot_ids for each in kept))
        if expired and not dry_run:
            _forget_snapshots(table, expired)
    files = only_own(table, gone - _files_of(table, lambda each: each not in expired))
    if not dry_run:
        delete_files(table.io, files)
    return Expiry(tuple(sorted(expired)), tuple(files), dry_run, kept)


def _kept(table: Table, old: set[int], holds: Iterable[Hold]) -> tuple[Kept, ...]:
    """What followers need of the old snapshots: those that they are at, and what leads on."""
    found = []
    for hold in holds:
        line = line_since(table, hold.snapshot_id)
        needed = old & {hold.snapshot_id, line.begin, *(each.id for each in line.steps)}
        if needed:
            found.append(Kept(hold.follower, hold.until, tuple(sorted(needed))))
    return tuple(found)


def _files_of(table: Table, is_meant: Callable[[int], bool]) -> set[str]:
    """What these of the table's snapshots need, while others may be expiring some of them."""
    while True:
        meant = [each for each in table.metadata.snapshots if is_meant(each.snapshot_id)]
        try:
            return referred_files(table.io, meant)
        except Corruption as error:
            if not is_missing(error):
                raise
            table.refresh()
            known = {each.snapshot_id for each in table.metadata.snapshots}
            if known.issuperset(each.snapshot_id for each in meant):
                raise


def _forget_snapshots(table: Table, ids: set[int]) -> None:
    """Take them out, if all branches and tags are where they were. `table` is the state after."""
    refs = table.metadata.refs.items()
    commit_metadata(
        table,
        [RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(ids)})],
        [leads_to(name, ref.snapshot_id) for name, ref in refs],
        has_happened=lambda metadata: not ids & {each.snapshot_id for each in metadata.snapshots},
    )
    table.refresh()


def expired_ids(metadata: TableMetadata, before_ms: int) -> set[int]:
    """The old snapshots that no branch and no tag leads to."""
    protected = protected_ids(metadata)
    return {
        each.snapshot_id
        for each in metadata.snapshots
        if each.timestamp_ms < before_ms and each.snapshot_id not in protected
    }


def protected_ids(metadata: TableMetadata) -> set[int]:
    """The snapshots that a branch or a tag leads to.

    A branch leads to its newest snapshot, and to those since it left main: without them nobody
    could tell any more that it can be published.
    """
    return {ref.snapshot_id for ref in metadata.refs.values()} | _unpublished(metadata)


def _unpublished(metadata: TableMetadata) -> set[int]:
    main = metadata.current_snapshot()
    published = {each.snapshot_id for each in ancestors_of(main, metadata)} if main else set()
    found: set[int] = set()
    for ref in metadata.refs.values():
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            head = metadata.snapshot_by_id(ref.snapshot_id)
            line = (each.snapshot_id for each in ancestors_of(head, metadata)) if head else ()
            found.update(takewhile(lambda each: each not in published, line))
    return found


def referred_files(
    io: FileIO, snapshots: Iterable[IcebergSnapshot], *, unread: Iterable[str] = ()
) -> set[str]:
    """Every file that these snapshots need: manifest lists, manifests, data and delete files.

    Manifests in `unread` are named, but not looked into.
    """
    files: set[str] = set()
    read: set[str] = set(unread)
    for snapshot in snapshots:
        files.add(snapshot.manifest_list)
        for manifest in manifests_of(snapshot, io):
            files.add(manifest.manifest_path)
            # Snapshots share most of their manifests.
            if manifest.manifest_path not in read:
                read.add(manifest.manifest_path)
                files.update(entry.data_file.file_path for entry in entries_of(manifest, io))
    return files


def manifest_paths(io: FileIO, snapshot: IcebergSnapshot) -> set[str]:
    """The manifests of a snapshot, and the list of them."""
    return {snapshot.manifest_list, *(each.manifest_path for each in manifests_of(snapshot, io))}


def delete_files(io: FileIO, files: Iterable[str]) -> None:
    """Delete what is there; somebody else may have deleted some of it already."""
    for file in files:
        try:
            io.delete(file)
        except FileNotFoundError:
            continue


def clear_away(io: FileIO, files: Iterable[str]) -> None:
    """Delete files that never became part of a table; one that resists is left to orphan removal.

    For use while an error is on its way, which must not be hidden by another.
    """
    for file in files:
        try:
            delete_files(io, [file])
        except OSError as error:
            _LOG.warning("a file is left over", extra={"file": file, "reason": str(error)})
