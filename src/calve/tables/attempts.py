"""What a table, as it was read, says about an attempt at a commit: its history, and no answer.

Every snapshot takes the table's next sequence number, and none is added with an older one. So an
attempt has failed for ever when another snapshot has its number. Once that one has expired too, the
manifests that are left may still show what the attempt brought; if they do not, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.snapshots import Snapshot

from calve.tables.staging import Edit, Staged


class Fate(Enum):
    """What became of an attempt."""

    APPLIED = auto()
    OPEN = auto()  # The table does not have it, and may get it still.
    FAILED = auto()  # The table does not have it, never had it and never will.
    UNTOLD = auto()  # The snapshots that would tell have expired.


@dataclass(frozen=True, slots=True)
class Attempt:
    """An edit that a catalog was asked to make on top of a branch."""

    edit: Edit
    branch: str
    staged: Staged

    @property
    def snapshot_id(self) -> int:
        return self.staged.snapshot_id

    @property
    def files(self) -> set[str]:
        """The data files that the table has if the attempt was applied."""
        return {file.file_path for file in self.edit.added}

    def fate(self, table: Table) -> Fate:
        """What the table's snapshots say; where they have expired, its manifests."""
        known = self.known_fate(table.metadata)
        if known is Fate.UNTOLD and _shows(table, self.staged):
            return Fate.APPLIED
        return known

    def known_fate(self, metadata: TableMetadata) -> Fate:
        """What the snapshots alone say; no file is read."""
        if metadata.snapshot_by_id(self.snapshot_id) is not None:
            return Fate.APPLIED
        ref = metadata.refs.get(self.branch)
        head = ref.snapshot_id if ref else None
        if isinstance(metadata, TableMetadataV1) or self.staged.sequence_number == 0:
            return self._unnumbered_fate(metadata, head)
        # A snapshot without a parent needs no higher number, but that its branch does not exist.
        is_first = self.staged.parent_id is None and head is None
        if is_first or metadata.last_sequence_number < self.staged.sequence_number:
            return Fate.OPEN
        numbers = {each.sequence_number for each in metadata.snapshots}
        return Fate.FAILED if self.staged.sequence_number in numbers else Fate.UNTOLD

    def _unnumbered_fate(self, metadata: TableMetadata, head: int | None) -> Fate:
        """In format 1: whatever came since is there to see. One that is set back may get it yet."""
        line = {head, *(each.parent_snapshot_id for each in _line(metadata, head))}
        return Fate.OPEN if self.staged.parent_id in line else Fate.UNTOLD


def _line(metadata: TableMetadata, head: int | None) -> Iterator[Snapshot]:
    while head is not None and (snapshot := metadata.snapshot_by_id(head)) is not None:
        yield snapshot
        head = snapshot.parent_snapshot_id


def _shows(table: Table, staged: Staged) -> bool:
    """Whether a kept snapshot has a manifest, or an entry of one, that came with the attempt."""
    for manifest in _manifests_since(table, staged.sequence_number):
        if manifest.added_snapshot_id == staged.snapshot_id:
            return True
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if any(entry.snapshot_id == staged.snapshot_id for entry in entries):
            return True
    return False


def _manifests_since(table: Table, sequence_number: int) -> Iterator[ManifestFile]:
    """Those of the newest snapshots first, each once."""
    seen: set[str] = set()
    newest_first = sorted(
        table.metadata.snapshots,
        key=lambda each: (each.sequence_number or 0, each.timestamp_ms),
        reverse=True,
    )
    for snapshot in newest_first:
        for manifest in snapshot.manifests(table.io):
            is_later = (manifest.sequence_number or 0) >= sequence_number
            is_data = manifest.content == ManifestContent.DATA
            if is_later and is_data and manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest
