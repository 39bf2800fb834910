"""Compressed bodies. What comes out is counted while it does: a bomb ends at the bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from calve.errors import InvalidRequest, TooLarge

ENCODINGS: Final = ("gzip", "zstd")
_STEP_BYTES: Final = 1 << 20


def decompressed(
    body: bytes | bytearray | memoryview,
    encoding: str,
    *,
    bytes_max: int,
    grow: Callable[[int], object],
) -> pa.Buffer:
    """What the body holds, at most so many bytes. `grow` is told before more are kept."""
    sink = pa.BufferOutputStream()
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), encoding) as source:
            while piece := source.read_buffer(_STEP_BYTES):
                size += piece.size
                if size > bytes_max:
                    raise too_large(bytes_max)
                grow(piece.size)
                sink.write(piece)
    except (OSError, pa.ArrowException, EOFError) as error:
        raise InvalidRequest(
            f"the body is not whole as {encoding}: {_first_line(error)}",
            hint="send what the header Content-Encoding says, to its end",
        ) from error
    return sink.getvalue()


def too_large(bytes_max: int, times: int = 1) -> TooLarge:
    """For a request, or for its rows, which may take so many times as much."""
    what = "the request has" if times == 1 else "the rows of the request take"
    return TooLarge(
        f"{what} more than {times * bytes_max} bytes (ingest.request_bytes_max is {bytes_max})",
        hint="split it: several requests, each of which is all or nothing; of a compressed body "
        "the bytes that come out count",
        context={"bytes_max": str(bytes_max)},
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
