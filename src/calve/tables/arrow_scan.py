"""A view of a table as Arrow batches, read by PyIceberg, one file after the other.

For the tables that DuckDB cannot read. In memory are one file and its deletes, never the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan

from calve.condition import Condition, parse_condition
from calve.tables.planning import files_to_read
from calve.tables.projection import mend_projection
from calve.tables.translate import reading_file, translating
from calve.tables.views import TableView

mend_projection()


def arrow_batches(view: TableView, condition: Condition | None) -> Iterator[pa.RecordBatch]:
    """The view's columns in all files that may hold a row for which the condition is true."""
    wanted = condition or parse_condition("true", ())
    with translating():
        schema = view.metadata.schema()
        tasks = files_to_read(view.table, wanted, snapshot_id=view.travelled_to, schema=schema)
        scan = ArrowScan(view.metadata, view.table.io, view.schema, AlwaysTrue())
        for task in tasks:
            with reading_file(task.file.file_path):
                yield from scan.to_record_batches([task])
