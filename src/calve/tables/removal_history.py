"""Which snapshots of a table took rows out, and which rows: read from the files that they removed.

For snapshots of those who know nothing of Calve's records: Spark's DELETE, UPDATE and MERGE, or a
change whose record was cut short.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from calve.tables.manifests import entries_of, manifests_of
from calve.tables.offset_scan import offset_change, stated_offsets
from calve.tables.removals import REMOVED, recorded_ids
from calve.tables.runs import Runs
from calve.tables.translate import translating

# Others change no row: what is lost with them is a defect.
_REMOVING: Final = frozenset({"delete", "overwrite"})


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A snapshot that the table's newest one came from."""

    id: int
    parent_id: int | None
    operation: str
    summary: Mapping[str, str]

    @property
    def removes_rows(self) -> bool:
        return self.operation in _REMOVING or any(key.startswith(REMOVED) for key in self.summary)


def ancestors(table: Table) -> list[Ancestor]:
    """The newest snapshot and those it came from, as far as they are kept, newest first."""
    return [_ancestor(each) for each in ancestors_of(table.current_snapshot(), table.metadata)]


def unrecorded(table: Table) -> list[Ancestor]:
    """Those that took out rows, or may have, of which the table's properties do not tell.

    A record stays in the properties when its own snapshot is rolled back.
    """
    removing = [each for each in ancestors(table) if each.removes_rows]
    if not removing:
        return []
    kept = map(_ancestor, table.metadata.snapshots)
    known = recorded_ids((each.id, each.summary) for each in kept)
    return [each for each in removing if each.id not in known]


def taken_out(table: Table, snapshot: Ancestor, within: Runs | None = None) -> dict[int, Runs]:
    """The offsets that a snapshot removed, by partition; `within` tells which may be left out.

    Where the snapshot before it has expired, its files are gone, and what the manifests say of them
    must do: all offsets between the first and the last of a removed file.
    """
    with translating():
        parent = snapshot.parent_id
        if parent is None or table.snapshot_by_id(parent) is None:
            return _stated(table, snapshot.id)
        return dict(offset_change(table, parent, snapshot.id, within=within).left)


def _stated(table: Table, snapshot_id: int) -> dict[int, Runs]:
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    found: defaultdict[int, list[Runs]] = defaultdict(list)
    for manifest in manifests_of(snapshot, table.io):
        if manifest.added_snapshot_id != snapshot_id:
            continue
        for entry in entries_of(manifest, table.io, discard_deleted=False):
            if entry.status == ManifestEntryStatus.DELETED:
                for partition, runs in stated_offsets(table, entry.data_file).items():
                    found[partition].append(runs)
    return {partition: Runs.joined(parts) for partition, parts in found.items()}


def _ancestor(snapshot: Snapshot) -> Ancestor:
    summary = snapshot.summary
    return Ancestor(
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id,
        summary.operation.value if summary else "unknown",
        summary.additional_properties if summary else {},
    )
