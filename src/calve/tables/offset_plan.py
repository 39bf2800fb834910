"""Which data files of a table hold a range of a partition's offsets, found by their bounds alone.

For those who follow a table: manifests never change, so each is read once and remembered, within
bounds. Files that only hold rows without an offset are left out: no topic brought them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.manifest import (
    INITIAL_SEQUENCE_NUMBER,
    DataFile,
    DataFileContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.types import PrimitiveType
from pyiceberg.utils.concurrent import ExecutorFactory

from calve.errors import InvalidRequest
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.manifests import entries_of, manifests_of
from calve.tables.pruning import to_iceberg
from calve.tables.topic_tables import INGESTED_AT

if TYPE_CHECKING:
    from calve.condition import Condition

_ENTRIES_MAX: Final = 50_000


class Bounds(NamedTuple):
    """Between which values those of a column are, the highest one among them."""

    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class RangeFile:
    """A data file, with its deletes, that may hold rows of a range.

    `first` to `last` is where they can be, by its manifest. `is_pure` if every row of the file is
    numbered and of the one partition.
    """

    task: FileScanTask
    first: int
    last: int
    is_pure: bool

    @property
    def rows(self) -> int:
        return self.task.file.record_count

    @property
    def bytes(self) -> int:
        return self.task.file.file_size_in_bytes


class _Entry(NamedTuple):
    """What is remembered of a file of a manifest; None is what its manifest does not say."""

    entry: ManifestEntry
    is_numbered: bool  # whether any row has an offset, as far as is known
    has_gaps: bool  # whether some row may have none
    partitions: Bounds | None
    offsets: Bounds | None
    times_us: Bounds | None


class _Columns(NamedTuple):
    """The columns by which files are chosen, as the table has them."""

    partition: tuple[int, PrimitiveType]
    offset: tuple[int, PrimitiveType]
    time: tuple[int, PrimitiveType] | None


class OffsetPlanner:
    """Remembers manifests of the tables it is asked about. Safe to share between threads."""

    def __init__(self, *, entries_max: int = _ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._known: OrderedDict[tuple[str, _Columns], list[_Entry]] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def files(
        self,
        table: Table,
        partition: int,
        start: int,
        end: int,
        *,
        condition: Condition | None = None,
        since_us: int | None = None,
    ) -> list[RangeFile]:
        """The files of the newest snapshot with rows from `start` up to `end`, by first offset.

        With a condition, or a time in which rows were taken in or later, only those that may hold
        such rows. InvalidRequest where the table has deletes that only Spark can read.
        """
        columns = _columns_of(table)
        snapshot = table.current_snapshot()
        if columns is None or snapshot is None or start >= end:
            return []
        found = self._entries(table, manifests_of(snapshot, table.io), columns)
        deletes = DeleteFileIndex()
        chosen: list[tuple[_Entry, Bounds]] = []
        is_meant = _chooser(table, condition)
        for each in found:
            file = each.entry.data_file
            if file.content != DataFileContent.DATA:
                _add_delete(deletes, each.entry)
            elif (part := _part(each, partition, start, end, since_us)) and is_meant(file):
                chosen.append((each, part))
        chosen.sort(key=lambda pair: pair[1])
        return [_planned(each, part, partition, deletes) for each, part in chosen]

    def _entries(
        self, table: Table, manifests: Sequence[ManifestFile], columns: _Columns
    ) -> list[_Entry]:
        with self._lock:
            known = {each.manifest_path: self._look_up(each, columns) for each in manifests}
        missing = [each for each in manifests if known[each.manifest_path] is None]
        executor = ExecutorFactory.get_or_create()
        read = executor.map(lambda each: _read(table, each, columns), missing)
        for manifest, entries in zip(missing, read, strict=True):
            known[manifest.manifest_path] = entries
            self._remember((manifest.manifest_path, columns), entries)
        return [entry for entries in known.values() for entry in entries or ()]

    def _look_up(self, manifest: ManifestFile, columns: _Columns) -> list[_Entry] | None:
        key = (manifest.manifest_path, columns)
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key]

    def _remember(self, key: tuple[str, _Columns], entries: list[_Entry]) -> None:
        with self._lock:
            if key not in self._known:
                self._count += len(entries)
            self._known[key] = entries
            while self._count > self._entries_max and self._known:
                self._count -= len(self._known.popitem(last=False)[1])


def _columns_of(table: Table) -> _Columns | None:
    fields = {field.name: field for field in table.schema().fields}
    if PARTITION not in fields or OFFSET not in fields:
        return None
    partition, offset, time = (
        (field.field_id, field.field_type)
        if (field := fields.get(name)) is not None and isinstance(field.field_type, PrimitiveType)
        else None
        for name in (PARTITION, OFFSET, INGESTED_AT)
    )
    assert partition is not None
    assert offset is not None
    return _Columns(partition, offset, time)


def _read(table: Table, manifest: ManifestFile, columns: _Columns) -> list[_Entry]:
    return [_remembered(entry, columns) for entry in entries_of(manifest, table.io)]


def _remembered(entry: ManifestEntry, columns: _Columns) -> _Entry:
    file = entry.data_file
    nulls = (file.null_value_counts or {}).get(columns.offset[0])
    return _Entry(
        entry,
        is_numbered=nulls is None or nulls < file.record_count,
        has_gaps=nulls != 0,
        partitions=_bounds(file, columns.partition),
        offsets=_bounds(file, columns.offset),
        times_us=_bounds(file, columns.time) if columns.time else None,
    )


def _bounds(file: DataFile, column: tuple[int, PrimitiveType]) -> Bounds | None:
    field_id, kind = column
    lowest, highest = (
        (each or {}).get(field_id) for each in (file.lower_bounds, file.upper_bounds)
    )
    if lowest is None or highest is None:
        return None
    return Bounds(int(from_bytes(kind, lowest)), int(from_bytes(kind, highest)))


def _part(
    entry: _Entry, partition: int, start: int, end: int, since_us: int | None
) -> Bounds | None:
    """Where the file's rows of the range can be; None if it has none."""
    if not entry.is_numbered:
        return None
    if entry.partitions and not entry.partitions.lowest <= partition <= entry.partitions.highest:
        return None
    if since_us is not None and entry.times_us and entry.times_us.highest < since_us:
        return None
    if entry.offsets is None:
        return Bounds(start, end - 1)
    if entry.offsets.highest < start or entry.offsets.lowest >= end:
        return None
    return Bounds(max(entry.offsets.lowest, start), min(entry.offsets.highest, end - 1))


def _chooser(table: Table, condition: Condition | None) -> Callable[[DataFile], bool]:
    if condition is None:
        return lambda _: True
    schema = table.schema()
    evaluator = _InclusiveMetricsEvaluator(schema, to_iceberg(condition, schema))
    return lambda file: bool(evaluator.eval(file))


def _add_delete(deletes: DeleteFileIndex, entry: ManifestEntry) -> None:
    if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
        raise InvalidRequest(
            "the table has equality deletes, which only Spark can read",
            hint="compact the table where it is written, then read it again",
        )
    deletes.add_delete_file(entry, partition_key=entry.data_file.partition)


def _planned(entry: _Entry, part: Bounds, partition: int, deletes: DeleteFileIndex) -> RangeFile:
    file = entry.entry.data_file
    task = FileScanTask(
        file,
        delete_files=deletes.for_data_file(
            entry.entry.sequence_number or INITIAL_SEQUENCE_NUMBER,
            file,
            partition_key=file.partition,
        ),
    )
    is_pure = entry.partitions == (partition, partition) and not entry.has_gaps
    return RangeFile(task, part.lowest, part.highest, is_pure and entry.offsets == part)
