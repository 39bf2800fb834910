"""Deletes the rows that a query with the same condition shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from calve.changes.change import Change
from calve.changes.rewrite import FileChanges, FileResult, Rewrite
from calve.changes.rows import divided, meant_offsets, meant_rows
from calve.condition import parse_condition
from calve.model import TableName
from calve.query.row_engine import RowEngine
from calve.tables.catalog import LakeCatalog
from calve.tables.condition_columns import condition_columns
from calve.tables.reading import FileReader
from calve.tables.removals import Removals

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask


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
                mask = meant_rows(engine, reader, task, condition)
                deleted = pc.sum(mask).as_py() or 0
                removals = Removals()
                if deleted and rewrite.is_fed:
                    removals = Removals.of_runs(meant_offsets(reader, task, mask))
                if deleted in {0, len(mask)}:
                    return FileResult(deleted, removals=removals)
                kept = (rows for rows, _ in divided(reader, task, mask))
                return FileResult(deleted, rewrite.write(kept), removals=removals)

            changes = FileChanges()
            for file, result in rewrite.results(condition.facts(), work):
                if result.is_touched:
                    changes.replace(file, result)
                    changes.deleted_rows += result.changed_rows
            return changes

        return rewrite.run(plan)
