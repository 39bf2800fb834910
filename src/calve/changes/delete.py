"""Deletes the rows that a query with the same condition shows, or those with some offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calve.changes.change import Change
from calve.changes.rewrite import FileChanges, FileResult, Rewrite
from calve.changes.rows import divided, meant_offsets, meant_rows
from calve.condition import parse_condition
from calve.model import TableName
from calve.query.row_engine import RowEngine
from calve.tables.catalog import LakeCatalog
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.condition_columns import condition_columns
from calve.tables.offset_scan import OFFSET_COLUMNS
from calve.tables.reading import FileReader
from calve.tables.removals import Removals
from calve.tables.runs import Runs

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table


def delete_rows(
    catalog: LakeCatalog, name: TableName | str, where: str, *, branch: str | None = None
) -> Change:
    """Delete the rows for which the condition is true.

    A file of which all rows go is taken out without being written anew. In a table that a topic
    feeds, their offsets are recorded as removed in the same commit.
    """
    rewrite = Rewrite(catalog, name, "delete", branch=branch)
    with RowEngine() as engine:

        def plan() -> FileChanges:
            condition = parse_condition(where, condition_columns(rewrite.table.schema()))

            def work(reader: FileReader, task: FileScanTask) -> FileResult:
                return _without(rewrite, reader, task, meant_rows(engine, reader, task, condition))

            return _changes(rewrite.results(condition.facts(), work))

        return rewrite.run(plan)


def delete_offsets(
    catalog: LakeCatalog,
    name: TableName | str,
    offsets: Mapping[int, Runs],
    *,
    operation: str,
    settled: Callable[[Table], dict[str, str]] = lambda _: {},
) -> Change:
    """Delete the rows with these offsets, by partition, as far as they are there.

    Their offsets are recorded as removed in the same commit, and what `settled` says of the table
    as it was before becomes its properties.
    """
    rewrite = Rewrite(catalog, name, operation, branch=None)
    fact = parse_condition(_between(offsets), condition_columns(rewrite.table.schema())).facts()

    def work(reader: FileReader, task: FileScanTask) -> FileResult:
        masks = [_mask(batch, offsets) for batch in reader.batches(task, OFFSET_COLUMNS)]
        return _without(rewrite, reader, task, pa.chunked_array(masks, pa.bool_()))

    def plan() -> FileChanges:
        changes = _changes(rewrite.results(fact, work))
        changes.properties = settled(rewrite.table)
        return changes

    return rewrite.run(plan)


def _without(
    rewrite: Rewrite, reader: FileReader, task: FileScanTask, mask: pa.ChunkedArray
) -> FileResult:
    """A file without the rows that are meant."""
    deleted = pc.sum(mask).as_py() or 0
    removals = Removals()
    if deleted and rewrite.is_fed:
        removals = Removals.of_runs(meant_offsets(reader, task, mask))
    if deleted in {0, len(mask)}:
        return FileResult(deleted, removals=removals)
    kept = (rows for rows, _ in divided(reader, task, mask))
    return FileResult(deleted, rewrite.write(kept), removals=removals)


def _changes(results: list[tuple[DataFile, FileResult]]) -> FileChanges:
    changes = FileChanges()
    for file, result in results:
        if result.is_touched:
            changes.replace(file, result)
            changes.deleted_rows += result.changed_rows
    return changes


def _between(offsets: Mapping[int, Runs]) -> str:
    """A condition by which files are left out that hold none of the offsets."""
    held = [runs for runs in offsets.values() if len(runs)]
    first = min((int(runs.firsts[0]) for runs in held), default=0)
    end = max((int(runs.ends[-1]) for runs in held), default=0)
    return f"{OFFSET} >= {first} and {OFFSET} < {end}"


def _mask(batch: pa.RecordBatch, offsets: Mapping[int, Runs]) -> pa.Array:
    partitions = batch.column(PARTITION).fill_null(-1).to_numpy()
    found = batch.column(OFFSET).fill_null(-1).to_numpy()
    mask = np.zeros(len(found), np.bool_)
    for partition, runs in offsets.items():
        mask |= (partitions == partition) & runs.holding(found)
    return pa.array(mask)
