"""Batches become data files that no table knows yet; memory is bounded.

Batches are cut to pieces, and the pieces gathered again to files near the table's target size: one
file may hold rows of many batches, and its row groups are larger than a piece. What is not yet in
a file when the transaction ends goes into one then.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from itertools import count, islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.tables.data_files import PIECE_BYTES, DataFileWriter
from calve.tables.expiry import clear_away
from calve.tables.feeding import refuse_fed
from calve.tables.inputs.fitting import RowFitter
from calve.tables.inputs.parts import Part, cut_rows, read_parts
from calve.tables.reading import read_staged
from calve.writer.config import BatchOptimizationConfig, Bounds
from calve.writer.stats import WriterCounters
from calve.writer.target import TargetTable

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

# Rows on their way into a file take their own memory once more while they are encoded, and others
# are gathered meanwhile.
_SHARES: Final = 3


def refuse_rows(table: Table) -> None:
    """Refuse a table that a topic feeds."""
    refuse_fed(
        table,
        "rows of a writer would have no offset",
        hint="produce them to the topic: `calve produce`",
        force=False,
    )


class Stager:
    """The files of one transaction. Not for several threads at once."""

    def __init__(self, target: TargetTable, operation_id: str, counters: WriterCounters) -> None:
        self.rows = 0
        self.table: Table | None = None
        self._target = target
        self._operation_id = operation_id
        self._counters = counters
        self._fitter: RowFitter | None = None
        self._files: list[DataFile] = []
        self._writer: DataFileWriter | None = None
        self._written_for: tuple[Schema | None, BatchOptimizationConfig] | None = None
        self._numbers = count()
        self._is_broken = False

    @property
    def schema(self) -> Schema | None:
        """The columns that the rows need."""
        return self._fitter.schema if self._fitter else None

    def take(self, data: object, bounds: Bounds) -> int:
        """Write one batch; how many rows it had. One that cannot be read changes nothing."""
        self._require_whole()
        rows = written = bytes_max = 0
        fitter = copy(self._fitter)
        try:
            for piece in self._pieces(data, bounds):
                written += 1
                rows += piece.num_rows
                bytes_max = max(bytes_max, piece.nbytes)
                self._write(piece, bounds.batch)
            self.rows += rows
            self._counters.took_batch(rows=rows, pieces=written, bytes_max=bytes_max)
        except BaseException:
            # Its caller does not know whether the rows are in it.
            self._is_broken |= written > 0
            if not written:
                # Nobody wants the columns of a batch that was refused.
                self._fitter = fitter
            raise
        return rows

    def spoil(self) -> None:
        """Have nothing committed: batches that belong together are not all here."""
        self._is_broken = True

    def finish(self) -> Sequence[DataFile]:
        """All files so far, closed."""
        self._require_whole()
        if self._writer is not None:
            # First, so that no interrupt leaves a transaction that lacks some of its rows.
            self._is_broken = True
            writer, self._writer = self._writer, None
            with writer:
                self._files.extend(writer.finish())
            self._is_broken = False
        return self._files

    def rewrite(self, table: Table, bounds: Bounds, *, held: Collection[str]) -> None:
        """Write all rows again, for a table whose columns have changed meanwhile.

        The files that there were are deleted, but those that are held.
        """
        before, written_for = self._files, self.schema
        assert written_for is not None
        known = self.table, self._fitter
        self.table, self._fitter, self._files = table, RowFitter.of(table), []
        try:
            for batch in read_staged(table, before, written_for):
                self._write(self._fitter.fit(batch), bounds.batch)
            self.finish()
        except BaseException:
            self.discard()
            (self.table, self._fitter), self._files = known, before
            self._is_broken = False
            raise
        _clear(table, before, held)

    def discard(self, *, held: Collection[str] = ()) -> None:
        """Delete everything, but files that are held: those that a table has, or may get yet."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        if self.table is not None:
            _clear(self.table, self._files, held)
        self._files = []

    def _pieces(self, data: object, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        pieces = self._divided(data, bounds)
        return pieces if bounds.batch.enable_auto_split else _undivided(pieces, bounds.batch)

    def _divided(self, data: object, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        before = 0
        batch = bounds.batch
        bytes_max = batch.max_memory_per_batch_bytes
        # A batch that is not to be split is judged as a whole.
        held_max = bytes_max if batch.enable_auto_split else sys.maxsize
        for part in read_parts(data, rows_max=batch.max_rows_per_batch, bytes_max=held_max):
            fitted = self._fitted(part, before, bounds)
            before += part.num_rows
            yield from cut_rows(fitted, bytes_max)

    def _fitted(self, part: Part, before: int, bounds: Bounds) -> pa.RecordBatch:
        retry = bounds.retry.to_settings()
        if self.table is None:
            self.table = self._target.current(retry)
        if self.table is None:
            first = RowFitter()
            part = first.fit(part, before=before)
            self.table = self._target.create(first.schema, retry)
        if self._fitter is None:
            refuse_rows(self.table)
            self._fitter = RowFitter.of(self.table)
        return self._fitter.fit(part, before=before)

    def _write(self, piece: pa.RecordBatch, config: BatchOptimizationConfig) -> None:
        wanted = self.schema, config
        if self._writer is None or self._written_for != wanted:
            self.finish()
            self._begin_files(config)
            self._written_for = wanted
        assert self._writer is not None
        self._writer.write(pa.Table.from_batches([piece]))

    def _begin_files(self, config: BatchOptimizationConfig) -> None:
        assert self.table is not None
        self._writer = DataFileWriter(
            self.table,
            # Each has its own numbers for its files.
            operation_id=f"{self._operation_id}-{next(self._numbers):03d}",
            schema=self.schema,
            piece_bytes=max(1, min(PIECE_BYTES, config.max_memory_per_batch_bytes // _SHARES)),
            lanes_max=config.target_concurrent_batches,
        )

    def _require_whole(self) -> None:
        if self._is_broken:
            raise InvalidRequest(
                "a batch of the transaction failed half way, so that it cannot be committed",
                hint="roll it back, and begin another",
            )


def _clear(table: Table, files: Iterable[DataFile], held: Collection[str]) -> None:
    clear_away(table.io, [file.file_path for file in files if file.file_path not in held])


def _undivided(
    pieces: Iterator[pa.RecordBatch], config: BatchOptimizationConfig
) -> Iterator[pa.RecordBatch]:
    """The only piece; refused if there are several."""
    first = list(islice(pieces, 2))
    if len(first) > 1:
        raise InvalidRequest(
            f"the batch has more than {config.max_rows_per_batch:,} rows or "
            f"{config.max_memory_per_batch_bytes:,} bytes, and splitting is off",
            hint="turn enable_auto_split on, raise max_rows_per_batch or "
            "max_memory_per_batch_bytes, or write smaller batches",
        )
    return iter(first)
