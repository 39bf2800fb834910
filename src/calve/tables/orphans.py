"""Files of a table that nobody refers to, and all files of a table that is dropped for good.

Only what lies in the table's own directories for data and metadata is ever looked at or deleted.
A file is needed if a kept snapshot, the metadata, its log or a statistic names it, be it by another
spelling of its path: then by its name alone, which no two files share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from calve.clock import Clock, SystemClock
from calve.errors import InvalidRequest, UnknownOutcome
from calve.grid import Grid, ShownAsGrids
from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.expiry import (
    Expiry,
    Holding,
    delete_files,
    expire_snapshots,
    nothing_held,
    referred_files,
)
from calve.tables.leftovers import LEFTOVER_AGE, find_leftovers
from calve.tables.neighbours import require_deletable
from calve.tables.own_files import file_name, own_files
from calve.tables.stores.listing import StoredFile, remove_empty_directories
from calve.tables.translate import translating
from calve.tables.version_hint import NAME as VERSION_HINT


@dataclass(frozen=True, slots=True, repr=False)
class RemovedFiles(ShownAsGrids):
    """What was removed, or would be."""

    files: tuple[str, ...]
    bytes: int
    is_dry_run: bool

    def grids(self) -> list[Grid]:
        what = "would be deleted" if self.is_dry_run else "deleted"
        words = f"{len(self.files):,} files with {self.bytes:,} bytes {what}"
        return [Grid(("FILE",), [(each,) for each in self.files], words)]


def remove_orphans(
    table: Table,
    older_than: timedelta,
    *,
    dry_run: bool = False,
    clock: Clock | None = None,
    needed: Collection[str] = (),
) -> RemovedFiles:
    """Delete files that nobody refers to and that are older than this.

    A change that is still being written refers to nothing yet: the age must be longer than any
    change takes. `needed` are files to which another table refers.
    """
    if older_than < timedelta():
        raise InvalidRequest("an age cannot be negative", hint="24 hours are on the safe side")
    before = (clock or SystemClock()).now() - older_than
    with translating():
        orphans = [file for file in _orphans(table, needed) if file.changed_at < before]
        if not dry_run:
            delete_files(table.io, [file.location for file in orphans])
    return _removed(orphans, is_dry_run=dry_run)


def remove_orphans_of(
    catalog: LakeCatalog, name: str, older_than: timedelta, *, dry_run: bool = False
) -> RemovedFiles:
    """The same for a table of the lake; files that its topic has named for it are no orphans.

    Refused where another table may need them, as by `neighbours.require_deletable`.
    """
    from calve.tables.dead_letters import files_awaited_by

    table = catalog.load_table(name)
    require_deletable(catalog, table)
    needed = files_awaited_by(catalog, name)
    return remove_orphans(table, older_than, dry_run=dry_run, needed=needed)


def expire_snapshots_of(
    catalog: LakeCatalog,
    name: str,
    older_than: datetime,
    *,
    holding: Holding = nothing_held,
    dry_run: bool = False,
) -> Expiry:
    """Forget old snapshots of a table of the lake, and clear up after those that commits forgot.

    Refused as the removal of orphans is.
    """
    from calve.tables.dead_letters import files_awaited_by

    def expire(table: Table) -> Expiry:
        require_deletable(catalog, table)
        return expire_snapshots(table, older_than, holding=holding, dry_run=dry_run)

    expired = catalog.change_table(name, expire)
    with translating():
        table = catalog.load_table(name)
        before = SystemClock().now() - LEFTOVER_AGE
        left = find_leftovers(table, before=before, needed=files_awaited_by(catalog, name))
        if not dry_run:
            delete_files(table.io, left)
    return replace(expired, files=(*expired.files, *left))


def data_orphans(table: Table, *, needed: Collection[str] = ()) -> list[StoredFile]:
    """The data files that no snapshot refers to, also those that somebody is about to commit.

    Without those that are needed by another table.
    """
    with translating():
        place = f"{table.location_provider().metadata_path.rstrip('/')}/"
        orphans = _orphans(table, needed)
        found = [file for file in orphans if not file.location.startswith(place)]
    return sorted(found, key=lambda file: file.location)


def drop_and_purge(
    catalog: LakeCatalog,
    name: TableName | str,
    *,
    dry_run: bool = False,
    only: UUID | None = None,
) -> RemovedFiles:
    """Take the table out of the catalog, then delete all files in its directories.

    Conflict if `only` says which table it is, and another has got the name.

    Files elsewhere that it referred to are left: they may be somebody else's. So are files that a
    topic has named for the table of dead letters that comes after it. Refused as the removal of
    orphans is.
    """
    from calve.tables.dead_letters import files_awaited_by

    table = catalog.load_table(name)
    require_deletable(catalog, table)
    awaited = files_awaited_by(catalog, str(name))
    with translating():
        left = {file_name(file) for file in awaited - needed_files(table)} if awaited else set()
        listed = [file for file in own_files(table) if _belongs_to(file) not in left]
        if dry_run:
            return _removed(listed, is_dry_run=True)
        catalog.drop_table(name, only=only)
        _require_dropped(table)
        delete_files(table.io, [file.location for file in listed])
        remove_empty_directories(table.location())
    return _removed(listed, is_dry_run=False)


def needed_files(table: Table) -> set[str]:
    """Every file that the table needs to be read, now and at each kept snapshot."""
    metadata = table.metadata
    return {
        table.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(file.statistics_path for file in metadata.statistics),
        *(file.statistics_path for file in metadata.partition_statistics),
        *referred_files(table.io, metadata.snapshots),
    }


def _orphans(table: Table, needed: Collection[str]) -> list[StoredFile]:
    # First the files, then the table: what is committed in between is seen as needed.
    listed = list(own_files(table))
    table.refresh()
    names = {VERSION_HINT, *(file_name(file) for file in (*needed, *needed_files(table)))}
    return [file for file in listed if _belongs_to(file) not in names]


def _belongs_to(file: StoredFile) -> str:
    """Its name; Hadoop's check sums go with their files."""
    name = file_name(file.location)
    return name.removeprefix(".").removesuffix(".crc") if name.endswith(".crc") else name


def _removed(files: Iterable[StoredFile], *, is_dry_run: bool) -> RemovedFiles:
    ordered = sorted(files, key=lambda file: file.location)
    return RemovedFiles(
        tuple(file.location for file in ordered), sum(file.bytes for file in ordered), is_dry_run
    )


def _require_dropped(table: Table) -> None:
    try:
        found = table.catalog.load_table(table.name())
    except NoSuchTableError:
        return
    if found.metadata.table_uuid == table.metadata.table_uuid:
        raise UnknownOutcome("the table is still there", hint="its files were not touched")
