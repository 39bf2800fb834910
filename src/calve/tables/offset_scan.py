"""Which offsets the data files of a table hold, without the rows that were deleted.

Read from Calve's own two columns alone, file by file, so that a table of any size needs little
memory. A row without an offset was put in by somebody else than its topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.table import FileScanTask
from pyiceberg.types import PrimitiveType

from calve.tables.columns import OFFSET, PARTITION
from calve.tables.planning import all_files, differing_files, readable_files
from calve.tables.reading import FileReader
from calve.tables.runs import Runs
from calve.tables.translate import reading_file

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from calve.errors import Corruption

OFFSET_COLUMNS: Final = (PARTITION, OFFSET)
# Deletes that belong to several files are read once for so many of them.
GROUP_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """A data file with its deletes, and between which offsets its manifest says its rows are."""

    task: FileScanTask
    first: int | None
    last: int | None

    @property
    def path(self) -> str:
        return self.task.file.file_path

    @property
    def key(self) -> tuple[str, frozenset[str]]:
        """The same rows have the same key."""
        return self.path, frozenset(each.file_path for each in self.task.delete_files)

    def may_hold(self, wanted: Runs) -> bool:
        if self.first is None or self.last is None:
            return True
        return len(wanted.between(self.first, self.last + 1)) > 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a file: how many have no offset, and the sorted offsets of the others."""

    unnumbered: int
    offsets: Mapping[int, NDArray[np.int64]]


def offset_files(table: Table, snapshot_id: int | None) -> list[OffsetFile]:
    """The files of a snapshot by their first offset; those come first that do not say which.

    InvalidRequest where the table has deletes that only Spark can read.
    """
    return _by_offset(table, all_files(table, snapshot_id))


def readable_offset_files(
    table: Table, snapshot_id: int | None
) -> tuple[list[OffsetFile], list[Corruption]]:
    """The same as far as manifests can be read, and what is wrong with the others."""
    tasks, damage = readable_files(table, snapshot_id)
    return _by_offset(table, tasks), damage


def staged_files(table: Table, files: Iterable[DataFile]) -> list[OffsetFile]:
    """The same for files that were written for a table, and that it does not have yet."""
    return _by_offset(table, (FileScanTask(file) for file in files))


def _by_offset(table: Table, tasks: Iterable[FileScanTask]) -> list[OffsetFile]:
    files = [_described(table, task) for task in tasks]
    return sorted(files, key=lambda file: -1 if file.first is None else file.first)


def has_offsets(table: Table) -> bool:
    names = {field.name for field in table.schema().fields}
    return names.issuperset(OFFSET_COLUMNS)


class OffsetReader:
    """Reads the offsets of some files. For several threads."""

    def __init__(self, table: Table, files: Sequence[OffsetFile]) -> None:
        with reading_file("a file with deletes"):
            self._reader = FileReader(table, [file.task for file in files])
        self._is_numbered = has_offsets(table)

    def pieces(self, file: OffsetFile) -> Iterator[Piece]:
        columns = OFFSET_COLUMNS if self._is_numbered else self._reader.any_column()
        for batch in self._reader.batches(file.task, columns):
            yield _piece(batch) if self._is_numbered else Piece(batch.num_rows, {})


def read_offsets(table: Table, files: Sequence[OffsetFile]) -> dict[int, Runs]:
    """All offsets of some files, by partition."""

    def pieces() -> Iterator[Piece]:
        for group in grouped(files):
            reader = OffsetReader(table, group)
            for file in group:
                yield from reader.pieces(file)

    return _joined(pieces())


def offset_runs(rows: Iterable[pa.RecordBatch | pa.Table]) -> dict[int, Runs]:
    """All offsets of rows, by partition; both columns must be there."""
    batches = (
        batch
        for part in rows
        for batch in (part.to_batches() if isinstance(part, pa.Table) else [part])
    )
    return _joined(map(_piece, batches))


def _joined(pieces: Iterable[Piece]) -> dict[int, Runs]:
    found: defaultdict[int, list[Runs]] = defaultdict(list)
    for piece in pieces:
        for partition, offsets in piece.offsets.items():
            found[partition].append(Runs.of_sorted(offsets))
    return {partition: Runs.joined(parts) for partition, parts in found.items()}


def grouped(files: Sequence[OffsetFile]) -> Iterator[Sequence[OffsetFile]]:
    for start in range(0, len(files), GROUP_FILES):
        yield files[start : start + GROUP_FILES]


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The offsets that one snapshot has and another one has not, both ways, by partition."""

    left: Mapping[int, Runs]
    came: Mapping[int, Runs]


def offset_change(
    table: Table, before_id: int | None, after_id: int | None, *, within: Runs | None = None
) -> OffsetChange:
    """What changed between two snapshots; only the files that differ are read.

    With `within`, files are left out that have none of those offsets.
    """
    before, after = (
        {file.key: file for file in _by_offset(table, tasks)}
        for tasks in differing_files(table, before_id, after_id)
    )
    gone = [file for key, file in before.items() if key not in after]
    new = [file for key, file in after.items() if key not in before]
    if within is not None:
        gone, new = ([f for f in files if f.may_hold(within)] for files in (gone, new))
    lost, added = read_offsets(table, gone), read_offsets(table, new)
    return OffsetChange(without(lost, added), without(added, lost))


def without(these: Mapping[int, Runs], those: Mapping[int, Runs]) -> dict[int, Runs]:
    """The offsets that are in the one and not in the other."""
    left = {key: runs.minus(those.get(key, Runs.empty())) for key, runs in these.items()}
    return {key: runs for key, runs in left.items() if len(runs)}


def stated_offsets(table: Table, file: DataFile) -> dict[int, Runs]:
    """Between which offsets of which partitions a file's rows are, by its manifest."""
    if not has_offsets(table):
        return {}
    partitions, offsets = (_bounds(table, file, name) for name in (PARTITION, OFFSET))
    if partitions is None or offsets is None:
        return {}
    runs = Runs.of_pairs([(offsets[0], offsets[1] + 1)])
    return dict.fromkeys(range(partitions[0], partitions[1] + 1), runs)


def _described(table: Table, task: FileScanTask) -> OffsetFile:
    bounds = _bounds(table, task.file, OFFSET) if has_offsets(table) else None
    return OffsetFile(task, *(bounds or (None, None)))


def _bounds(table: Table, file: DataFile, column: str) -> tuple[int, int] | None:
    field = table.schema().find_field(column)
    assert isinstance(field.field_type, PrimitiveType)
    lowest, highest = (
        (each or {}).get(field.field_id) for each in (file.lower_bounds, file.upper_bounds)
    )
    if lowest is None or highest is None:
        return None
    return int(from_bytes(field.field_type, lowest)), int(from_bytes(field.field_type, highest))


def _piece(batch: pa.RecordBatch) -> Piece:
    partitions, offsets = batch.column(PARTITION), batch.column(OFFSET)
    unnumbered = 0
    if partitions.null_count or offsets.null_count:
        numbered = pc.and_(partitions.is_valid(), offsets.is_valid())
        partitions, offsets = partitions.filter(numbered), offsets.filter(numbered)
        unnumbered = batch.num_rows - len(offsets)
    return Piece(unnumbered, dict(_parted(partitions.to_numpy(), offsets.to_numpy())))


def _parted(
    partitions: NDArray[np.int32], offsets: NDArray[np.int64]
) -> Iterable[tuple[int, NDArray[np.int64]]]:
    if not len(offsets):
        return
    if (partitions == partitions[0]).all():
        yield int(partitions[0]), _sorted(offsets)
        return
    for partition in np.unique(partitions):
        yield int(partition), _sorted(offsets[partitions == partition])


def _sorted(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    return offsets if (offsets[1:] >= offsets[:-1]).all() else np.sort(offsets)
