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
        self._writer.write_batch(example.slice(0, 0))  # the schema comes before the first batch

    def write(self, batch: pa.RecordBatch) -> list[memoryview]:
        with self._lock:
            pieces = self._sink.pieces = []
            self._writer.write_batch(batch)
            return pieces


class _Pieces(io.RawIOBase):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, content: Buffer, /) -> int:
        piece = memoryview(content)
        self.pieces.append(piece)
        return len(piece)
