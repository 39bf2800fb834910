"""What a Spark task does: one piece after the other, from the log to data files.

Loaded by name in Spark's Python workers. Whatever goes wrong with a piece is told as its outcome,
so that one table's trouble is not another's; its files are removed.
"""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
import pyarrow as pa

from calve.errors import CalveError, unexpected
from calve.pipeline.rows import DeadLetters, TableRows
from calve.pipeline.shapes import table_of
from calve.pipeline.work import Piece, PieceDone
from calve.protocol import problem_of
from calve.sources.entries import Sources
from calve.tables.data_files import PIECE_BYTES, DataFileWriter, target_bytes
from calve.tables.file_sizes import FileSizes
from calve.tables.schemas import schema_from_json
from calve.topics.table_rows import runs_of
from calve.wal import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from calve.pipeline.work import TableShape
    from calve.wal import Entry

DONE: Final = pa.schema([pa.field("done", pa.binary(), nullable=False)])
# Sorting takes several copies of a piece, and a worker has little memory.
_SORTED_PIECE_BYTES: Final = 36 * 1024 * 1024
_PIECES: Final = msgspec.msgpack.Decoder(Piece)


class _NoDeadLetterTable(Exception):
    """Something has to be set aside, and the driver has made no table for it yet."""


class PieceTask:
    """For `mapInArrow` over numbers: each names the pieces that one task works on."""

    def __init__(self, pieces: Sequence[Sequence[bytes]]) -> None:
        self._pieces = pieces

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Sources() as sources:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for encoded in self._pieces[number]:
                        done = work_on(_PIECES.decode(encoded), sources)
                        content = pa.array([msgspec.msgpack.encode(done)], pa.binary())
                        yield pa.RecordBatch.from_arrays([content], schema=DONE)


def work_on(piece: Piece, sources: Sources) -> PieceDone:
    """Write a piece's data files; raises nothing but what ends the process."""
    try:
        return _PieceWork(piece).done(sources)
    except _NoDeadLetterTable:
        return PieceDone(number=piece.number, needs_dead_letters=True)
    except CalveError as error:
        problem = problem_of(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  what Rust panics with is no Exception
        problem = problem_of(unexpected(error))
    return PieceDone(number=piece.number, problem=problem)


class _PieceWork:
    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._writers = ExitStack()
        self._dead_letters: DataFileWriter | None = None
        self._lost: list[tuple[int, int]] = []
        self._log_bytes = 0
        self._ingested_until_us = 0

    def done(self, sources: Sources) -> PieceDone:
        piece = self._piece
        table, schema = table_of(piece.table), schema_from_json(piece.table.schema)
        rows = TableRows(piece.topic, piece.partition, schema, table)
        last: Entry | None = None
        with self._writers:
            writer = self._writer(piece.table)
            for run in runs_of(sources.entries(piece.span)):
                self._write(run, rows, writer)
                last = run[-1]
            files, letters = self._finished(writer)
        return PieceDone(
            number=piece.number,
            files=pickle.dumps(files),
            dead_letters=pickle.dumps(letters),
            rows=writer.rows,
            dead_letter_rows=self._dead_letters.rows if self._dead_letters else 0,
            lost=tuple(self._lost),
            checksum=_checksum(last),
            log_bytes=self._log_bytes,
            file_bytes=sum(file.file_size_in_bytes for file in files),
            ingested_until_us=self._ingested_until_us,
        )

    def _write(self, run: list[Entry], rows: TableRows, writer: DataFileWriter) -> None:
        if run[0].kind == Kind.HOLE:
            self._lost += [(entry.first_offset, entry.end_offset) for entry in run]
            return
        self._log_bytes += sum(entry.batch.nbytes for entry in run if entry.batch is not None)
        newest_us = max(entry.ingested_at_us for entry in run)
        self._ingested_until_us = max(self._ingested_until_us, newest_us)
        for part in rows.of(run, set_aside=self._piece.set_aside):
            if isinstance(part, DeadLetters):
                self._set_aside(part)
            else:
                writer.write(part)

    def _set_aside(self, letters: DeadLetters) -> None:
        if self._piece.dead_letters is None:
            raise _NoDeadLetterTable
        if self._dead_letters is None:
            self._dead_letters = self._writer(self._piece.dead_letters)
        self._dead_letters.write(letters.rows)

    def _writer(self, shape: TableShape) -> DataFileWriter:
        # A task that Spark starts again must not write over what an earlier one may still write.
        operation_id = f"{self._piece.operation_id}-{uuid4().hex[:8]}"
        table = table_of(shape)
        writer = DataFileWriter(
            table,
            operation_id=operation_id,
            schema=schema_from_json(shape.schema),
            lanes_max=1,
            piece_bytes=PIECE_BYTES if table.sort_order().is_unsorted else _SORTED_PIECE_BYTES,
            sizes=self._sizes(table),
        )
        return self._writers.enter_context(writer)

    def _sizes(self, table: Table) -> FileSizes:
        rows = self._piece.end - self._piece.start if table.spec().is_unpartitioned() else None
        return FileSizes(self._piece.file_bytes or target_bytes(table), rows)

    def _finished(self, writer: DataFileWriter) -> tuple[list[DataFile], list[DataFile]]:
        """The files of both tables, or none of either."""
        files = writer.finish()
        try:
            return files, self._dead_letters.finish() if self._dead_letters else []
        except BaseException:
            writer.discard()
            raise


def _checksum(last: Entry | None) -> str:
    return "" if last is None or last.kind == Kind.HOLE else f"{last.content_sum:016x}"
