"""Copy-on-write: the files in which rows change are replaced by files with what the rows become.

Everything is worked out against one head of a branch, and the commit holds only if it still is the
head: so the result is as if the changes of all writers had come one after the other. When somebody
else was first, the table is looked at again, but a file that is still there with the same deletes
is not worked out again; a long rewrite beside frequent appends therefore ends. Rewrites of one
process take turns at a table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from calve.changes.change import Change
from calve.changes.rows import Piece, from_first_difference
from calve.changes.turns import TURNS
from calve.condition import Fact
from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import Committed, TableCommit
from calve.tables.data_files import DataFileWriter, new_operation_id
from calve.tables.feeding import feeding_topic
from calve.tables.planning import files_to_change
from calve.tables.reading import FileReader
from calve.tables.recording import with_record
from calve.tables.removals import Removals
from calve.tables.staging import Edit

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

_WORKERS_MAX: Final = 4

# A file is what it is as long as its deletes and the way in which it would be written are the same.
_Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class FileResult:
    """What becomes of one file: untouched it stays, otherwise its outputs take its place."""

    changed_rows: int = 0
    outputs: tuple[DataFile, ...] = ()
    # What an operation wants to know of the file later, such as the keys that it has.
    found: pa.Array | None = None
    removals: Removals = field(default_factory=Removals)

    @property
    def is_touched(self) -> bool:
        return self.changed_rows > 0


@dataclass(slots=True)
class FileChanges:
    """The files that come and go, and the rows for whose sake they do."""

    removed: list[DataFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    inserted_rows: int = 0
    updated_rows: int = 0
    deleted_rows: int = 0
    removals: Removals = field(default_factory=Removals)
    properties: dict[str, str] = field(default_factory=dict)  # that the table gets with it

    def replace(self, file: DataFile, result: FileResult) -> None:
        """Have what became of a file take its place."""
        self.removed.append(file)
        self.added.extend(result.outputs)
        self.removals = self.removals.merged(result.removals)


Work: TypeAlias = Callable[[FileReader, "FileScanTask"], FileResult]


class _NothingToDo(Exception):
    pass


class Rewrite:
    """One change of a table's rows, from its planning to its commit."""

    def __init__(
        self,
        catalog: LakeCatalog,
        name: TableName | str,
        operation: str,
        *,
        branch: str | None,
    ) -> None:
        self._name = str(name)
        self._operation = operation
        self._operation_id = new_operation_id(operation)
        self._commit = TableCommit(catalog.load_table(name), branch=branch)
        self._numbers = count()
        self._results: dict[_Key, FileResult] = {}
        self._written: dict[str, DataFile] = {}

    @property
    def table(self) -> Table:
        """The table as it is worked on; a later attempt may work on a newer state."""
        return self._commit.table

    @property
    def is_fed(self) -> bool:
        """Whether a topic feeds the table, so that rows have offsets."""
        return feeding_topic(self.table) is not None

    def run(self, plan: Callable[[], FileChanges]) -> Change:
        """Plan and commit; plan again while others commit first.

        Whatever was written and is not part of the table in the end is deleted, if that is certain.
        """
        with TURNS.turn(self.table.metadata.table_uuid) as others_were_first:
            if others_were_first:
                self._commit.read_again()
            return self._run(plan)

    def _run(self, plan: Callable[[], FileChanges]) -> Change:
        sent: list[tuple[Edit, FileChanges]] = []

        def attempt() -> Committed:
            changes = plan()
            if not (changes.removed or changes.added or changes.properties):
                raise _NothingToDo
            summary = {"calve.operation": self._operation_id}
            edit = Edit(changes.added, changes.removed, summary, changes.properties)
            branch = self._commit.branch
            edit = with_record(self.table, edit, changes.removals, branch=branch)
            sent.append((edit, changes))
            return self._commit.attempt(edit)

        try:
            done = self._commit.repeat(attempt)
        except _NothingToDo:
            return self._described(None, FileChanges())
        finally:
            self.drop(list(self._written))
        # Of several attempts it need not be the last one that came true.
        return self._described(
            done.snapshot_id, next(changes for edit, changes in sent if edit is done.edit)
        )

    def _described(self, snapshot_id: int | None, changes: FileChanges) -> Change:
        return Change(
            self._name,
            self._operation,
            self._commit.branch,
            snapshot_id,
            inserted_rows=changes.inserted_rows,
            updated_rows=changes.updated_rows,
            deleted_rows=changes.deleted_rows,
            added_files=len(changes.added),
            deleted_files=len(changes.removed),
        )

    def results(self, fact: Fact, work: Work) -> list[tuple[DataFile, FileResult]]:
        """The files that may hold rows for which the fact is true, and what becomes of each."""
        tasks = files_to_change(self.table, fact, snapshot_id=self._commit.head)
        keys = [self._key(task) for task in tasks]
        for gone in set(self._results) - set(keys):
            self.drop([file.file_path for file in self._results.pop(gone).outputs])
        missing = [
            (key, task) for key, task in zip(keys, tasks, strict=True) if key not in self._results
        ]
        if missing:
            self._work_out(missing, work)
        return [(task.file, self._results[key]) for key, task in zip(keys, tasks, strict=True)]

    def write(self, tables: Iterable[pa.Table]) -> tuple[DataFile, ...]:
        """Rows as data files of this change. For several threads."""
        operation_id = f"{self._operation_id}-{next(self._numbers)}"
        with DataFileWriter(self.table, operation_id=operation_id) as writer:
            for rows in tables:
                writer.write(rows)
            files = tuple(writer.finish())
        self._written.update((file.file_path, file) for file in files)
        return files

    def replace(
        self, pieces: Callable[[], Iterator[Piece]], found: pa.Array | None = None
    ) -> FileResult:
        """A file written anew in pieces if one of its rows changes, and left alone if none does."""
        changed = from_first_difference(pieces())
        if changed is None:
            return FileResult(found=found)
        count = 0

        def rows() -> Iterator[pa.Table]:
            nonlocal count
            for kept, replaced in changed or pieces():
                count += replaced.num_rows
                yield kept
                yield replaced

        outputs = self.write(rows())
        return FileResult(count, outputs, found)

    def drop(self, paths: Iterable[str]) -> None:
        """Delete files of this change, except those that are or may become part of the table."""
        listed = list(paths)
        for path in listed:
            self._written.pop(path, None)
        if listed:
            self._commit.discard(listed)

    def _work_out(self, missing: Sequence[tuple[_Key, FileScanTask]], work: Work) -> None:
        reader = FileReader(self.table, [task for _, task in missing])
        pool = ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, _WORKERS_MAX)))
        try:
            futures: list[tuple[_Key, Future[FileResult]]] = [
                (key, pool.submit(work, reader, task)) for key, task in missing
            ]
            for key, future in futures:
                self._results[key] = future.result()
        finally:
            # After a failure those that have begun still write, and all is to be deleted.
            pool.shutdown(wait=True, cancel_futures=True)

    def _key(self, task: FileScanTask) -> _Key:
        metadata = self.table.metadata
        return (
            task.file.file_path,
            frozenset(each.file_path for each in task.delete_files),
            metadata.current_schema_id,
            metadata.default_spec_id,
            metadata.default_sort_order_id,
        )
