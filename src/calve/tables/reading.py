"""Reads single data files as a stream of Arrow batches, without the rows that were deleted.

Columns have the names and types that the table has now, whatever they were when the file was
written. The order of a file's rows is the same at every reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.parser import parse
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from calve.tables.projection import mend_projection
from calve.tables.schemas import arrow_schema
from calve.tables.translate import reading_file, translating

mend_projection()


class FileReader:
    """Reads some of a table's files; the deletes of all of them are read once."""

    def __init__(
        self, table: Table, tasks: Sequence[FileScanTask], schema: Schema | None = None
    ) -> None:
        """Read with the table's columns, or those of a schema that the files were written with."""
        self._table = table
        self._schema = schema or table.schema()
        with translating():
            self._deletes = _read_all_delete_files(table.io, tasks)

    def any_column(self) -> tuple[str, ...]:
        """A column by which rows can be counted."""
        return (self._schema.fields[0].name,)

    def among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of some columns that the table has."""
        known = {field.name for field in self._schema.fields}
        return tuple(name for name in names if name in known)

    def batches(
        self,
        task: FileScanTask,
        columns: Sequence[str] | None = None,
        *,
        where: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a file, with the columns in the table's order; all, or those named.

        `where`, in PyIceberg's words, leaves out rows, and whole parts of a file without reading.
        """
        schema = self._schema
        if columns is not None:
            wanted = set(columns)
            names = [field.name for field in schema.fields if field.name in wanted]
            schema = schema.select(*names)
        scan = ArrowScan(
            self._table.metadata, self._table.io, schema, parse(where) if where else AlwaysTrue()
        )
        target = arrow_schema(schema)
        with translating(), reading_file(task.file.file_path):
            for batch in scan._record_batches_from_scan_tasks_and_deletes(  # noqa: SLF001
                [task], self._deletes
            ):
                yield _typed(batch, target)


def read_staged(
    table: Table, files: Sequence[DataFile], schema: Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of files that no table has yet, with the columns that they were written with."""
    tasks = [FileScanTask(file) for file in files]
    reader = FileReader(table, tasks, schema)
    for task in tasks:
        yield from reader.batches(task)


def _typed(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """PyIceberg leaves it to the file which of Arrow's types for a text it reads."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
