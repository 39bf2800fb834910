"""Arrow streams. Their bytes come from outside: every batch is checked before anybody reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.ingest.formats.compression import too_large
from calve.ingest.formats.expansion import compressed_bytes, plain_bytes
from calve.topics.limits import check_size

ARROW: Final = "application/vnd.apache.arrow.stream"
_HINT: Final = "send an Arrow IPC stream, as pyarrow.ipc.new_stream writes it"


def arrow_batches(body: bytes, *, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batches that hold rows, at most so many bytes, however they were encoded."""
    left = bytes_max
    try:
        if compressed_bytes(body) > bytes_max:
            raise too_large(bytes_max)
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            check_size(stream.schema)
            for batch in stream:
                batch.validate(full=True)
                left -= sum(plain_bytes(column) for column in batch.columns)
                if left < 0:
                    raise too_large(bytes_max)
                if batch.num_rows:
                    yield batch
    except (pa.ArrowException, OSError, EOFError) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidRequest(f"the Arrow stream cannot be read: {problem}", hint=_HINT) from error
