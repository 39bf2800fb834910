"""Large batches as Arrow IPC messages in pieces: over the batch's own buffers, nothing copied.

The bytes are those of `RecordBatch.serialize`. One writer serves all batches of a schema: to begin
one takes as long as copying a megabyte.
"""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from typing_extensions import Buffer


class LargeWriter:
    """For batches of one schema, by any thread."""

    def __init__(self, example: pa.RecordBatch) -> None:
        self._lock = threading.Lock()
        self._sink = _Pieces()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), example.schema)
        self._writer.write_batch(example.slice(0, 0))  # with the schema before it

    def write(self, batch: pa.RecordBatch) -> list[memoryview]:
        with self._lock:
            self._sink.take()  # of one that failed
            self._writer.write_batch(batch)
            return self._sink.take()


class _Pieces(io.RawIOBase):
    """Keeps what is written to it, until it is taken."""

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []

    def take(self) -> list[memoryview]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def writable(self) -> bool:
        return True

    def write(self, content: Buffer, /) -> int:
        piece = memoryview(content)
        self._pieces.append(piece)
        return len(piece)
