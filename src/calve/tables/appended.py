"""What came to a table, snapshot by snapshot, for those who follow one that no topic feeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from calve.tables.planning import all_files, differing_files
from calve.tables.reading import FileReader
from calve.tables.translate import translating

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table


def added_batches(
    table: Table, before_id: int | None, after_id: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of the files that one snapshot has and the one before has not, as they are there.

    Columns are those that the table has now. InvalidRequest for deletes that only Spark can read.
    """
    with translating():
        if before_id is None:
            new = all_files(table, after_id)
        else:
            before, after = differing_files(table, before_id, after_id)
            known = {task.file.file_path for task in before}
            new = [task for task in after if task.file.file_path not in known]
    for task in sorted(new, key=_path):
        yield from FileReader(table, [task]).batches(task, columns)


def _path(task: FileScanTask) -> str:
    return task.file.file_path
