"""A file's rows in pieces: which of them are meant, and those that are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from calve.condition import Condition
from calve.query.row_engine import RowEngine
from calve.tables.offset_scan import OFFSET_COLUMNS, offset_runs
from calve.tables.reading import FileReader
from calve.tables.runs import Runs

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

# Enough that asking DuckDB costs little beside reading, for the few columns of a condition.
CHUNK_ROWS: Final = 500_000
_HELD_BYTES: Final = 64 * 1024 * 1024

# Rows that stay, and rows that take the places of others.
Piece: TypeAlias = tuple[pa.Table, pa.Table]


def meant_rows(
    engine: RowEngine, reader: FileReader, task: FileScanTask, condition: Condition
) -> pa.ChunkedArray:
    """For each row of a file, whether the condition is true for it."""
    masks = [
        row_mask(engine.matching(rows, condition), rows.num_rows)
        for rows in chunks(reader.batches(task, condition.columns or reader.any_column()))
    ]
    return pa.chunked_array(masks, pa.bool_())


def row_mask(numbers: pa.Array, length: int) -> pa.Array:
    """True at these numbers, and false everywhere else."""
    if not len(numbers):
        return pa.repeat(pa.scalar(False), length)  # noqa: FBT003
    marks = pa.repeat(pa.scalar(True), len(numbers))  # noqa: FBT003
    return pc.scatter(marks, numbers, max_index=length - 1).is_valid()


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches joined to larger tables."""
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK_ROWS:
            yield pa.Table.from_batches(gathered)
            gathered, rows = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def divided(reader: FileReader, task: FileScanTask, mask: pa.ChunkedArray) -> Iterator[Piece]:
    """All columns of a file, piece by piece: the rows that are not meant, and those that are."""
    start = 0
    for batch in reader.batches(task):
        rows = pa.Table.from_batches([batch])
        part = mask.slice(start, rows.num_rows)
        start += rows.num_rows
        yield rows.filter(pc.invert(part)), rows.filter(part)


def from_first_difference(pieces: Iterator[Piece]) -> Iterable[Piece] | None:
    """The pieces, if a row of theirs changes; none, to be read again, where that came late."""
    seen: list[Piece] = []
    held_bytes = 0
    for kept, replaced in pieces:
        if replaced.num_rows:
            return chain(seen, [(kept, replaced)], pieces) if held_bytes < _HELD_BYTES else ()
        held_bytes += kept.nbytes
        seen = [*seen, (kept, replaced)] if held_bytes < _HELD_BYTES else []
    return None


def meant_offsets(reader: FileReader, task: FileScanTask, mask: pa.ChunkedArray) -> dict[int, Runs]:
    """The offsets of those rows of a file that are meant, by partition."""
    names = reader.among(OFFSET_COLUMNS)
    if len(names) < len(OFFSET_COLUMNS):
        return {}
    start = 0
    found = []
    for batch in reader.batches(task, names):
        found.append(batch.filter(mask.slice(start, batch.num_rows).combine_chunks()))
        start += batch.num_rows
    return offset_runs(found)
