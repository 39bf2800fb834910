"""Inserts rows from anywhere, also more than memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa

from calve.changes.by_hand import refuse_rows, unnumbered
from calve.changes.change import Change
from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.inputs import open_input
from calve.tables.staging import Edit

Progress = Callable[[int], None]


def insert_rows(  # noqa: PLR0913
    catalog: LakeCatalog,
    name: TableName | str,
    data: object,
    *,
    format: str | None = None,  # noqa: A002
    delimiter: str | None = None,
    branch: str | None = None,
    progress: Progress | None = None,
    progress_bytes: Progress | None = None,
    force: bool = False,
) -> Change:
    """Add all rows of `data` in one snapshot, or none.

    `data` is whatever `open_input` takes. `progress` is told the number of rows read so far,
    `progress_bytes` that of a file's bytes. Into a table that a topic feeds only with `force`.
    """
    table = catalog.load_table(name)
    refuse_rows(table, force=force)
    commit = TableCommit(table, branch=branch)
    operation_id = new_operation_id("insert")
    read = open_input(
        data, schema=table.schema(), format=format, delimiter=delimiter, tell=progress_bytes
    )
    rows = unnumbered(read)
    files = write_data_files(
        table, _counted(rows, progress) if progress else rows, operation_id=operation_id
    )
    if not files:
        return Change(str(name), "insert", commit.branch, None)
    try:
        done = commit.append(
            Edit(added=files, summary={"calve.operation": operation_id}),
            require=partial(refuse_rows, force=force),
        )
    except BaseException:
        commit.discard(file.file_path for file in files)
        raise
    return Change(
        str(name),
        "insert",
        commit.branch,
        done.snapshot_id,
        inserted_rows=sum(file.record_count for file in files),
        added_files=len(files),
    )


def _counted(batches: Iterable[pa.RecordBatch], progress: Progress) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
        progress(rows)
