"""Rows of logs under the columns of their tables, read once for all queries that follow each other.

Where the log's own bytes are what is wanted, rows lie over its files, uncopied, and keep them
alive. What is kept is bounded; a tail that is larger than that is read anew by each query, piece by
piece.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from calve.errors import CalveError, Unavailable
from calve.query.stream import conform
from calve.sources.source_log import Trimmed
from calve.tables.answer_types import result_schema
from calve.topics.log_rows import OFFSET
from calve.topics.table_rows import fitting_rows, table_rows

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from calve.query.tail import Span
    from calve.sources.source_log import ReadableLog
    from calve.topics.log_rows import LogRows
    from calve.topics.topic import Topic

KEPT_BYTES_MAX: Final = 128 << 20
HELD_BYTES_MAX: Final = 64 << 20
_SMALL_ROWS: Final = 1 << 16


class Wanted(NamedTuple):
    """The rows of a topic as its table is to have them; `key` is another one when that changes."""

    topic: Topic
    schema: Schema
    table: Table | None
    key: object

    def log_rows(self) -> LogRows:
        return table_rows(self.topic, self.schema, self.table)


class _Piece(NamedTuple):
    first: int
    end: int
    batches: list[pa.RecordBatch]

    @property
    def row_count(self) -> int:
        return sum(map(len, self.batches))

    @property
    def size_bytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    def with_next(self, piece: _Piece, schema: pa.Schema) -> _Piece:
        rows = pa.Table.from_batches([*self.batches, *piece.batches], schema)
        return _Piece(self.first, piece.end, rows.combine_chunks().to_batches())


@dataclass(slots=True)
class _Kept:
    """Every row of a partition from `start` up to `end`."""

    key: object
    log_rows: LogRows
    schema: pa.Schema
    start: int
    end: int
    pieces: list[_Piece] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    def read_to(self, end: int, log: ReadableLog, partition: int) -> None:
        while self.end < end:
            run = log.run(self.end, end)
            batches = [
                conform(batch, self.schema) for batch in fitting_rows(self.log_rows, run, partition)
            ]
            self._add(_Piece(self.end, run[-1].end_offset, batches))
            self.end = run[-1].end_offset

    def _add(self, piece: _Piece) -> None:
        """Small ones become one, so that rows that came one by one are not handed over so."""
        while self.pieces and piece.row_count <= _SMALL_ROWS:
            last = self.pieces[-1]
            if last.row_count > max(2 * piece.row_count, 1):
                break
            self.pieces.pop()
            piece = last.with_next(piece, self.schema)
        self.pieces.append(piece)

    def forget_before(self, offset: int) -> None:
        self.pieces = [piece for piece in self.pieces if piece.end > offset]
        self.start = self.pieces[0].first if self.pieces else self.end

    def between(self, span: Span) -> Iterator[pa.RecordBatch]:
        for piece in self.pieces:
            if piece.end <= span.committed or piece.first >= span.durable:
                continue
            is_whole = span.committed <= piece.first and piece.end <= span.durable
            yield from piece.batches if is_whole else _cut(piece.batches, span)


class StreamedRows:
    """Rows that are read again each time they are asked for."""

    def __init__(
        self,
        schema: pa.Schema,
        read: Callable[[], Iterator[pa.RecordBatch]],
        size_bytes: int,
    ) -> None:
        self.schema = schema
        self.size_bytes = size_bytes
        self.error: CalveError | None = None  # that the last reading ended with
        self._read = read

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._read()
        except CalveError as error:
            self.error = error
            raise


class KeptRows:
    """For holders of a lock; what it hands out takes the lock by itself."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._kept: OrderedDict[tuple[Any, int], _Kept] = OrderedDict()

    def clear(self) -> None:
        self._kept.clear()

    def rows(
        self, wanted: Wanted, spans: Mapping[int, Span], logs: Mapping[int, ReadableLog]
    ) -> pa.Table | StreamedRows | None:
        """Those of all spans; Trimmed if the logs have let go of some. None if there are none."""
        filled = {each: span for each, span in spans.items() if span.committed < span.durable}
        if not filled:
            return None
        schema = result_schema(wanted.schema)
        size_bytes = sum(
            logs[each].extent(span.committed, span.durable).bytes for each, span in filled.items()
        )
        if size_bytes > HELD_BYTES_MAX:
            return StreamedRows(
                schema, lambda: self._streamed(wanted, schema, filled, logs), size_bytes
            )
        found = [
            batch
            for partition, span in filled.items()
            for batch in self._partition(wanted, schema, partition, span, logs[partition])
        ]
        return pa.Table.from_batches(found, schema)

    def _partition(
        self, wanted: Wanted, schema: pa.Schema, partition: int, span: Span, log: ReadableLog
    ) -> Iterator[pa.RecordBatch]:
        place = (wanted.topic.id, partition)
        kept = self._kept.get(place)
        if kept is not None and kept.key == wanted.key and span.committed < kept.start:
            # Asked by somebody whose look at the table is older.
            kept = _Kept(wanted.key, kept.log_rows, schema, span.committed, span.committed)
            kept.read_to(span.durable, log, partition)
            return kept.between(span)
        if kept is None or kept.key != wanted.key or kept.end < span.committed:
            kept = _Kept(wanted.key, wanted.log_rows(), schema, span.committed, span.committed)
        kept.forget_before(span.committed)
        kept.read_to(span.durable, log, partition)
        self._kept[place] = kept
        self._kept.move_to_end(place)
        while sum(each.size_bytes for each in self._kept.values()) > KEPT_BYTES_MAX:
            self._kept.popitem(last=False)
        return kept.between(span)

    def _streamed(
        self,
        wanted: Wanted,
        schema: pa.Schema,
        spans: Mapping[int, Span],
        logs: Mapping[int, ReadableLog],
    ) -> Iterator[pa.RecordBatch]:
        log_rows = wanted.log_rows()
        for partition, span in spans.items():
            kept = _Kept(wanted.key, log_rows, schema, span.committed, span.committed)
            while kept.end < span.durable:
                with self._lock:
                    try:
                        run = logs[partition].run(kept.end, span.durable)
                    except Trimmed:
                        raise _gone(wanted.topic) from None
                kept.end = run[-1].end_offset
                for batch in fitting_rows(log_rows, run, partition):
                    yield conform(batch, schema)


def _cut(batches: list[pa.RecordBatch], span: Span) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        offsets = batch.column(OFFSET)
        inside = pc.and_(pc.greater_equal(offsets, span.committed), pc.less(offsets, span.durable))
        yield batch.filter(inside)


def _gone(topic: Topic) -> Unavailable:
    return Unavailable(
        f"rows of {topic.name} went from the log to the table while they were being read",
        hint="ask again",
    )
