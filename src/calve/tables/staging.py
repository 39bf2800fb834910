"""Writes the manifests of a new snapshot, and says what a catalog must be asked to make it real.

PyIceberg's own producers choose manifests by a predicate over partitions, which has no words for
NaN, write every added file under the table's newest partitioning, and copy the whole metadata at
each step. Here the removed files are found by their paths, and each file keeps its partitioning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import (
    Operation,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _SnapshotProducer
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.types import NestedField
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.properties import property_as_bool, property_as_int

from calve.errors import Conflict, InvalidRequest, SchemaConflict
from calve.tables.commit_times import timed_after
from calve.tables.expiry import clear_away
from calve.tables.manifest_schema import mend_manifest_schema
from calve.tables.manifest_tiers import full_tiers
from calve.tables.metadata_copies import spare_copies
from calve.tables.outcome import leads_to, moved
from calve.tables.partition_paths import with_paths
from calve.tables.schema_growth import regrown
from calve.tables.transaction import LeanTransaction

mend_manifest_schema()
spare_copies()

FORMAT_VERSION_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class Edit:
    """What one snapshot changes: data files that come and go, and what is set together with them.

    Its summary holds PyIceberg's counts and what is given here. `schema` is the one that the files
    were written with: the table gets whatever it has more than the table's own. `columns` are other
    changes of the columns. `stamp` gives the properties that name the snapshot itself. `onto` is
    the snapshot that this one continues, where that is not the branch's newest. `is_recurring` says
    that many more like it will come, so that this one also keeps manifests few. `forgotten` are
    snapshots that make room for it.
    """

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    summary: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    schema: Schema | None = None
    columns: tuple[TableUpdate, ...] = ()
    stamp: Callable[[int], Mapping[str, str]] | None = None
    onto: int | None = None
    is_recurring: bool = False
    forgotten: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Staged:
    """A snapshot whose files are written and which no catalog knows yet."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    metadata_files: tuple[str, ...]


def stage(table: Table, edit: Edit, branch: str) -> Staged:
    """Write the manifests for an edit on top of the branch as the table has it now.

    Conflict if a file to remove is no longer there, SchemaConflict if the files to add cannot be
    read with the table's columns any more. Whatever fails leaves no file behind.
    """
    require_writable(table)
    _require_partitionings(table.metadata, edit.added)
    transaction = LeanTransaction(table)
    asserted = _stage_schema(transaction, edit.schema)
    transaction._stage(edit.columns)  # noqa: SLF001
    producer = _Snapshot(transaction, edit, branch)
    try:
        updates, requirements = producer._commit()  # noqa: SLF001
    except BaseException:
        clear_away(table.io, producer.metadata_files)
        raise
    metadata = table.metadata
    updates = tuple(_mended(metadata, each, branch, producer.snapshot_id) for each in updates)
    forgetting, unmoved = _forgetting(metadata, edit, branch)
    setting = _setting(edit, producer.snapshot_id)
    return Staged(
        producer.snapshot_id,
        producer.parent_id,
        metadata.next_sequence_number(),
        (*_holding(edit), *transaction._updates, *updates, *setting, *forgetting),  # noqa: SLF001
        (*asserted, *requirements, *unmoved),
        producer.metadata_files,
    )


def _mended(
    metadata: TableMetadata, update: TableUpdate, branch: str, snapshot_id: int
) -> TableUpdate:
    """An update of PyIceberg's, without what it forgets and what a clock that was set back does."""
    if isinstance(update, SetSnapshotRefUpdate):
        return moved(metadata, branch, snapshot_id)
    if isinstance(update, AddSnapshotUpdate):
        return AddSnapshotUpdate(snapshot=timed_after(metadata, update.snapshot))
    return update


def _stage_schema(transaction: Transaction, written: Schema | None) -> tuple[TableRequirement, ...]:
    """Have the table get the columns that it lacks; what must hold of it for the edit to fit."""
    metadata = transaction.table_metadata
    asserted: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=metadata.table_uuid),
        # A REST server would otherwise take a snapshot with the schema of yesterday.
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        # A partitioning that is no longer the default may be forgotten, with our files in it.
        AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
    )
    wanted = metadata.schema() if written is None else regrown(metadata, written)
    if wanted.schema_id == metadata.current_schema_id:
        return asserted
    # The newest schema becomes the current one.
    added = (AddSchemaUpdate(schema=wanted), SetCurrentSchemaUpdate())
    transaction._stage(added)  # noqa: SLF001
    last_id = {"last-assigned-field-id": metadata.last_column_id}
    return (*asserted, AssertLastAssignedFieldId.model_validate(last_id))


def _setting(edit: Edit, snapshot_id: int) -> tuple[TableUpdate, ...]:
    properties = {**edit.properties, **(edit.stamp(snapshot_id) if edit.stamp else {})}
    return (SetPropertiesUpdate(updates=properties),) if properties else ()


def _holding(edit: Edit) -> tuple[TableUpdate, ...]:
    """Have the commit fail if the snapshot that it continues has expired, with its files.

    Nothing can be required of a snapshot that no name leads to; but only to one that is there can
    a name be given, which is taken away again.
    """
    if edit.onto is None:
        return ()
    name = f"calve-{edit.onto}"
    given = {"ref-name": name, "type": "tag", "snapshot-id": edit.onto}
    return (
        SetSnapshotRefUpdate.model_validate(given),
        RemoveSnapshotRefUpdate.model_validate({"ref-name": name}),
    )


def _forgetting(
    metadata: TableMetadata, edit: Edit, branch: str
) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Make room for the new snapshot among those that are kept, if nothing else leads to others."""
    if not edit.forgotten:
        return (), ()
    named = [(name, ref.snapshot_id) for name, ref in metadata.refs.items() if name != branch]
    return (
        (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(edit.forgotten)}),),
        tuple(leads_to(name, snapshot_id) for name, snapshot_id in named),
    )


def require_writable(table: Table) -> None:
    """Refuse tables in a format that cannot be written."""
    if table.format_version > FORMAT_VERSION_MAX:
        raise InvalidRequest(
            f"the table has format {table.format_version}; tables are written in format "
            f"{FORMAT_VERSION_MAX} at most",
            hint="write it with Spark",
        )


def _require_partitionings(metadata: TableMetadata, files: Iterable[DataFile]) -> None:
    lost = {file.spec_id for file in files} - metadata.specs().keys()
    if lost:
        raise SchemaConflict(
            f"the table has forgotten the partitioning {min(lost)}, with which files were written",
            hint="write the rows again for the partitioning that the table has now",
        )


def _operation(edit: Edit) -> Operation:
    if not edit.removed:
        return Operation.APPEND
    return Operation.OVERWRITE if edit.added else Operation.DELETE


class _Snapshot(_SnapshotProducer["_Snapshot"]):
    def __init__(self, transaction: Transaction, edit: Edit, branch: str) -> None:
        super().__init__(
            _operation(edit),
            transaction,
            transaction._table.io,  # noqa: SLF001
            snapshot_properties=dict(edit.summary),
            branch=branch,
        )
        if edit.onto is not None:
            self._parent_snapshot_id = edit.onto
        self._is_recurring = edit.is_recurring
        self._added_data_files = list(edit.added)
        self._deleted_data_files = set(edit.removed)

    @property
    def parent_id(self) -> int | None:
        return self._parent_snapshot_id

    @property
    def metadata_files(self) -> tuple[str, ...]:
        """Everything that was written, or begun."""
        return (*self._written_manifests, *self._written_manifest_lists)

    def _manifests(self) -> list[ManifestFile]:
        # First what can fail, so that a conflict costs no file.
        kept, rewritten = self._divide()
        gone = [entry for _, leaving, _ in rewritten for entry in leaving]
        self._require_found(gone)
        data = [*self._added_manifests(), *self._written_by_spec(map(self._as_deleted, gone))]
        for spec_id, _, staying in rewritten:
            if staying:
                data.append(self._written(spec_id, map(_as_existing, staying)))
        data.extend(self._few(each for each in kept if each.content == ManifestContent.DATA))
        deletes = [each for each in kept if each.content == ManifestContent.DELETES]
        return self._merged(data) + deletes

    def _divide(
        self,
    ) -> tuple[list[ManifestFile], list[tuple[int, list[ManifestEntry], list[ManifestEntry]]]]:
        """The manifests that stay as they are; the entries that leave and stay in the others."""
        specs = {file.spec_id for file in self._deleted_data_files}
        kept: list[ManifestFile] = []
        looked_into: list[ManifestFile] = []
        for manifest in self._existing_manifests():
            may_hold = manifest.content == ManifestContent.DATA
            to_look = may_hold and manifest.partition_spec_id in specs
            (looked_into if to_look else kept).append(manifest)
        rewritten = []
        executor = ExecutorFactory.get_or_create()
        read = executor.map(partial(self.fetch_manifest_entry, discard_deleted=True), looked_into)
        for manifest, entries in zip(looked_into, read, strict=True):
            leaving, staying = self._parted(entries)
            if leaving:
                rewritten.append((manifest.partition_spec_id, leaving, staying))
            else:
                kept.append(manifest)
        return kept, rewritten

    def _parted(
        self, entries: Sequence[ManifestEntry]
    ) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
        leaving: list[ManifestEntry] = []
        staying: list[ManifestEntry] = []
        for entry in entries:
            (leaving if entry.data_file in self._deleted_data_files else staying).append(entry)
        return leaving, staying

    def _existing_manifests(self) -> list[ManifestFile]:
        if self._parent_snapshot_id is None:
            return []
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id)
        assert parent is not None
        manifests = parent.manifests(io=self._io)
        return [each for each in manifests if each.has_added_files() or each.has_existing_files()]

    def _deleted_entries(self) -> list[ManifestEntry]:
        return [entry for _, leaving, _ in self._divide()[1] for entry in leaving]

    def _require_found(self, entries: Iterable[ManifestEntry]) -> None:
        missing = self._deleted_data_files - {entry.data_file for entry in entries}
        if missing:
            path = min(file.file_path for file in missing)
            raise Conflict(
                f"somebody else has replaced or removed {path}",
                hint="load the table and decide again",
            )

    def _added_manifests(self) -> list[ManifestFile]:
        return self._written_by_spec(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
            for file in self._added_data_files
        )

    def _written_by_spec(self, entries: Iterable[ManifestEntry]) -> list[ManifestFile]:
        by_spec: defaultdict[int, list[ManifestEntry]] = defaultdict(list)
        for entry in entries:
            by_spec[entry.data_file.spec_id].append(entry)
        return [self._written(spec_id, group) for spec_id, group in by_spec.items()]

    def schema(self) -> Schema:
        return _with_partition_sources(self._transaction.table_metadata)

    def _written(self, spec_id: int, entries: Iterable[ManifestEntry]) -> ManifestFile:
        with self.new_manifest_writer(self.spec(spec_id)) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _as_deleted(self, entry: ManifestEntry) -> ManifestEntry:
        return _copied(entry, ManifestEntryStatus.DELETED, self._snapshot_id)

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        properties = self._transaction.table_metadata.properties
        if not property_as_bool(properties, TableProperties.MANIFEST_MERGE_ENABLED, default=False):
            return manifests
        merging: _ManifestMergeManager[Any] = _ManifestMergeManager(
            target_size_bytes=_number(
                properties,
                TableProperties.MANIFEST_TARGET_SIZE_BYTES,
                TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
            ),
            min_count_to_merge=_number(
                properties,
                TableProperties.MANIFEST_MIN_MERGE_COUNT,
                TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT,
            ),
            merge_enabled=True,
            snapshot_producer=self,
        )
        return merging.merge_manifests(manifests)

    def _few(self, manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
        """The manifests of earlier snapshots; many small ones as one, unless the table says how."""
        known = list(manifests)
        properties = self._transaction.table_metadata.properties
        if not self._is_recurring or TableProperties.MANIFEST_MERGE_ENABLED in properties:
            return known
        groups = full_tiers(known)
        merged = {each.manifest_path for group in groups for each in group}
        return [
            *map(self._as_one, groups),
            *(each for each in known if each.manifest_path not in merged),
        ]

    def _as_one(self, manifests: Sequence[ManifestFile]) -> ManifestFile:
        entries = (entry for each in manifests for entry in self.fetch_manifest_entry(each))
        return self._written(manifests[0].partition_spec_id, map(_as_existing, entries))

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        metadata = self._transaction.table_metadata
        schema = metadata.schema()
        specs = {spec_id: with_paths(spec) for spec_id, spec in metadata.specs().items()}
        limit = _number(
            metadata.properties,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT,
        )
        counts = SnapshotSummaryCollector(partition_summary_limit=limit)
        for file in self._added_data_files:
            counts.add_file(file, partition_spec=specs[file.spec_id], schema=schema)
        for file in self._deleted_data_files:
            counts.remove_file(file, partition_spec=specs[file.spec_id], schema=schema)
        parent_id = self._parent_snapshot_id
        parent = metadata.snapshot_by_id(parent_id) if parent_id is not None else None
        return update_snapshot_summaries(
            summary=Summary(operation=self._operation, **counts.build(), **snapshot_properties),
            previous_summary=parent.summary if parent else None,
        )


def _with_partition_sources(metadata: TableMetadata) -> Schema:
    """The schema, and the dropped columns by which files are partitioned, for their types."""
    schema = metadata.schema()
    wanted = {field.source_id for spec in metadata.partition_specs for field in spec.fields}
    lost: dict[int, NestedField] = {}
    for source_id in sorted(wanted - set(schema.field_ids)):
        known = [each for each in metadata.schemas if source_id in each.field_ids]
        if known:
            field = max(known, key=lambda each: each.schema_id).find_field(source_id)
            lost[source_id] = field.model_copy(update={"name": f"_dropped_{source_id}"})
    return Schema(*schema.fields, *lost.values(), schema_id=schema.schema_id) if lost else schema


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    found = property_as_int(dict(properties), name, default)
    return default if found is None else found


def _as_existing(entry: ManifestEntry) -> ManifestEntry:
    return _copied(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id)


def _copied(
    entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None
) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )
