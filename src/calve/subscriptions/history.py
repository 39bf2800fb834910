"""Reads a range of offsets from a table's files, in order, ahead of whoever takes the rows.

In memory are the windows that were read ahead, each of a bounded number of rows, and of a file too
large for that what its reader holds. Rows that were deleted are left out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from calve.subscriptions.windows import WINDOW_BYTES, windows_of
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.reading import FileReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from calve.subscriptions.memory import HistoryMemory, Share
    from calve.subscriptions.stats import Counts
    from calve.subscriptions.windows import Window
    from calve.tables.offset_plan import RangeFile

_PIECE_BYTES: Final = 1 << 20  # what a consumer that stands still holds
_GROWTH: Final = 3.0  # of a file's bytes in memory, until one was read
_LARGE_BYTES: Final = 4 * WINDOW_BYTES  # what a file that is streamed counts as


class Part(NamedTuple):
    """Rows of all offsets from `start` up to `end` that have one."""

    start: int
    end: int
    rows: pa.Table


class _Reading(NamedTuple):
    """A window that is being read ahead, and what it counts as until it is known."""

    future: Future[Part]
    file_bytes: int
    counted_bytes: int


class Source(NamedTuple):
    """What is read: a table as it was, some of its columns, one partition."""

    table: Table
    schema: Schema
    columns: Sequence[str]
    partition: int


class Ahead(NamedTuple):
    """How far ahead a range is read, by whom, and what may be held of it."""

    pool: Executor
    windows_max: int
    memory: HistoryMemory | None
    wake: Callable[[], None]  # when there is room in the memory


class History:
    """The rows of a range. For one thread; a pool reads what comes next meanwhile.

    With a memory, rows are handed out in small copies: so one who does not come for the next ones
    holds a copy, and not the window.
    """

    def __init__(
        self,
        source: Source,
        files: Sequence[RangeFile],
        start: int,
        end: int,
        *,
        ahead: Ahead,
        counts: Counts,
    ) -> None:
        self._source = source
        self._pool = ahead.pool
        self._ahead_max = ahead.windows_max
        self._counts = counts
        self._end = end
        self._windows = deque(windows_of(files, start, end))
        self._ahead: deque[_Reading] = deque()
        self._running: Iterator[Part] | None = None
        self._has_begun = False
        self._rest: Part | None = None  # of the window that is being handed out
        self._rest_bytes = 0  # what the whole of it counts as
        self._growth = _GROWTH
        self._room: Share | None = None
        if ahead.memory is not None:
            self._room = ahead.memory.share(self._drop, ahead.wake)

    @property
    def is_taken_away(self) -> bool:
        """Whether its rows have to be read once more: somebody else needed the room."""
        return self._room is not None and self._room.is_taken_away

    def next(self) -> Part | None:
        """The next rows; None if there are no more. NoRoom if they cannot be read now."""
        if self._room is None:
            return self._next_part()
        with self._room.in_use():
            while self._rest is None:
                part = self._next_part()
                if part is None or not part.rows.num_rows:
                    return part
                self._rest = part
            return self._next_piece(self._rest, self._room)

    def close(self) -> None:
        """Let go of what was read ahead."""
        self._windows.clear()
        self._drop()
        if self._room is not None:
            self._room.close()

    def _drop(self) -> None:
        for each in self._ahead:
            each.future.cancel()
        self._ahead.clear()
        self._running = self._rest = None

    def _next_piece(self, rest: Part, room: Share) -> Part:
        """A copy of the next rows of a window; the room is given back with the last of them."""
        count = max(1, rest.rows.num_rows * _PIECE_BYTES // max(1, rest.rows.nbytes))
        rows = _copied(rest.rows.slice(0, count))
        if count >= rest.rows.num_rows:
            self._rest = None
            if self._running is None:
                room.give_back(self._rest_bytes)
            return Part(rest.start, rest.end, rows)
        end = rows.column(OFFSET)[-1].as_py() + 1
        self._rest = Part(end, rest.end, rest.rows.slice(count))
        return Part(rest.start, end, rows)

    def _next_part(self) -> Part | None:
        if self._running is not None:
            part = next(self._running, None)
            if part is not None:
                return part
            self._running = None
            if self._room is not None:
                self._room.give_back(self._rest_bytes)
        self._read_ahead()
        if self._ahead:
            self._has_begun = True
            return self._taken(self._ahead.popleft())
        if not self._windows:
            return None
        if self._room is not None:
            self._room.take(_LARGE_BYTES)
            self._rest_bytes = _LARGE_BYTES
        self._running = self._read_large(self._windows.popleft())
        return self._next_part()

    def _taken(self, reading: _Reading) -> Part:
        part = reading.future.result()
        if self._room is not None:
            size_bytes = int(part.rows.nbytes)
            self._growth = size_bytes / max(1, reading.file_bytes)
            self._room.give_back(reading.counted_bytes - size_bytes)
            self._rest_bytes = size_bytes
            if not part.rows.num_rows:
                self._room.give_back(size_bytes)
        return part

    def _read_ahead(self) -> None:
        """Have the next windows read; for the first rows no file is opened but their own."""
        count = self._ahead_max if self._has_begun else 1
        while len(self._ahead) < count and self._windows and not self._windows[0].is_large:
            window = self._windows[0]
            size_bytes = int(window.bytes * self._growth)
            if self._room is not None and not self._ahead:
                self._room.take(size_bytes)
            elif self._room is not None and not self._room.take_spare(size_bytes):
                return
            self._windows.popleft()
            reading = self._pool.submit(self._read, window)
            self._ahead.append(_Reading(reading, window.bytes, size_bytes))

    def _read(self, window: Window) -> Part:
        """All of a window at once, sorted."""
        reader = self._reader(window.files)
        batches = [batch for file in window.files for batch in self._batches(reader, file, window)]
        if not batches:
            return Part(window.start, window.end, pa.table({}))
        return Part(window.start, window.end, _sorted(pa.Table.from_batches(batches)))

    def _read_large(self, window: Window) -> Iterator[Part]:
        """A window that is too large, in pieces: as its file has them, if it has them in order."""
        if len(window.files) == 1 and self._is_in_order(window):
            yield from self._streamed(window)
            return
        for part in window.parts():
            yield self._read(part)

    def _is_in_order(self, window: Window) -> bool:
        (file,) = window.files
        last = -1
        reader = self._reader(window.files)
        for batch in self._batches(reader, file, window, (PARTITION, OFFSET)):
            offsets = batch.column(OFFSET).to_numpy()
            if offsets[0] <= last or not (offsets[1:] > offsets[:-1]).all():
                return False
            last = int(offsets[-1])
        return True

    def _streamed(self, window: Window) -> Iterator[Part]:
        (file,) = window.files
        at = window.start
        for batch in self._batches(self._reader(window.files), file, window):
            end = batch.column(OFFSET)[-1].as_py() + 1
            yield Part(at, end, pa.Table.from_batches([batch]))
            at = end
        if at < window.end:
            yield Part(at, window.end, pa.table({}))

    def _reader(self, files: Sequence[RangeFile]) -> FileReader:
        tasks = [file.task for file in files]
        return FileReader(self._source.table, tasks, self._source.schema)

    def _batches(
        self,
        reader: FileReader,
        file: RangeFile,
        window: Window,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._counts.add(files_opened=1, file_bytes=file.bytes)
        where = None
        if not (file.is_pure and window.start <= file.first and file.last < window.end):
            where = (
                f"{PARTITION} = {self._source.partition} and {OFFSET} >= {window.start} "
                f"and {OFFSET} < {window.end}"
            )
        for batch in reader.batches(file.task, columns or self._source.columns, where=where):
            if batch.num_rows:
                yield batch


def _copied(rows: pa.Table) -> pa.Table:
    """In buffers of its own: a slice keeps alive whatever it is a slice of."""
    return pa.concat_tables([rows, rows.slice(0, 0)]).combine_chunks()


def _sorted(rows: pa.Table) -> pa.Table:
    offsets = rows.column(OFFSET).to_numpy()
    if (offsets[1:] > offsets[:-1]).all():
        return rows
    return rows.take(pa.array(np.argsort(offsets, kind="stable")))
