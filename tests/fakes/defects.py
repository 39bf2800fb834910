"""Defects done to a table by hand, as broken tools would leave them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from pyiceberg.typedef import EMPTY_DICT

from calve.tables.staging import Edit, _Snapshot
from calve.tables.transaction import LeanTransaction


class _Compaction(_Snapshot):
    """An operation that says it changes no row."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        return Summary(operation=Operation.REPLACE, **snapshot_properties)


class _Forgetful(_Snapshot):
    """Loses files of its parent without a word in any manifest."""

    lost: frozenset[str]

    def _manifests(self) -> list[ManifestFile]:
        parent = self._existing_manifests()
        kept = [
            entry
            for manifest in parent
            for entry in self.fetch_manifest_entry(manifest)
            if entry.data_file.file_path not in self.lost
        ]
        return self._written_by_spec(kept)


def compact(table: Table, removed: Iterable[DataFile], added: Sequence[DataFile] = ()) -> int:
    """Replace files by others, which should hold the same rows."""
    return _commit(table, _Compaction(LeanTransaction(table), Edit(added, list(removed)), "main"))


def forget(table: Table, paths: Iterable[str]) -> int:
    producer = _Forgetful(LeanTransaction(table), Edit(), "main")
    producer.lost = frozenset(paths)
    return _commit(table, producer)


def begin_anew(table: Table) -> None:
    """What CREATE OR REPLACE TABLE does: the same table goes on without any of its snapshots."""
    unnamed = RemoveSnapshotRefUpdate.model_validate({"ref-name": "main"})
    table.catalog.commit_table(table, (), (unnamed,))


def _commit(table: Table, producer: _Snapshot) -> int:
    updates, requirements = producer._commit()
    table._do_commit(updates, requirements)
    return producer.snapshot_id
