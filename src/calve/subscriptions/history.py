"""Reads a range of offsets from a table's files, in order, ahead of whoever takes the rows.

In memory are the windows that were read ahead, each of a bounded number of rows, and of a file too
large for that what its reader holds. Rows that were deleted are left out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from calve.subscriptions.windows import windows_of
from calve.tables.offset_scan import OFFSET, PARTITION
from calve.tables.reading import FileReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor, Future

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from calve.subscriptions.stats import Counts
    from calve.subscriptions.windows import Window
    from calve.tables.offset_plan import RangeFile


class Part(NamedTuple):
    """Rows of all offsets from `start` up to `end` that have one."""

    start: int
    end: int
    rows: pa.Table


class Source(NamedTuple):
    """What is read: a table as it was, some of its columns, one partition."""

    table: Table
    schema: Schema
    columns: Sequence[str]
    partition: int


class History:
    """The rows of a range. For one thread; `pool` reads what comes next meanwhile."""

    def __init__(  # noqa: PLR0913
        self,
        source: Source,
        files: Sequence[RangeFile],
        start: int,
        end: int,
        *,
        pool: Executor,
        ahead_max: int,
        counts: Counts,
    ) -> None:
        self._source = source
        self._pool = pool
        self._ahead_max = ahead_max
        self._counts = counts
        self._end = end
        self._windows = deque(windows_of(files, start, end))
        self._ahead: deque[Future[Part]] = deque()
        self._running: Iterator[Part] | None = None
        self._has_begun = False

    def next(self) -> Part | None:
        """The next rows; None if there are no more."""
        if self._running is not None:
            part = next(self._running, None)
            if part is not None:
                return part
            self._running = None
        self._read_ahead()
        if self._ahead:
            self._has_begun = True
            return self._ahead.popleft().result()
        if not self._windows:
            return None
        self._running = self._read_large(self._windows.popleft())
        return self.next()

    def close(self) -> None:
        """Let go of what was read ahead."""
        self._windows.clear()
        for each in self._ahead:
            each.cancel()
        self._ahead.clear()
        self._running = None

    def _read_ahead(self) -> None:
        """Have the next windows read; for the first rows no file is opened but their own."""
        count = self._ahead_max if self._has_begun else 1
        while len(self._ahead) < count and self._windows and not self._windows[0].is_large:
            self._ahead.append(self._pool.submit(self._read, self._windows.popleft()))

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


def _sorted(rows: pa.Table) -> pa.Table:
    offsets = rows.column(OFFSET).to_numpy()
    if (offsets[1:] > offsets[:-1]).all():
        return rows
    return rows.take(pa.array(np.argsort(offsets, kind="stable")))
