"""How much a log holds between two offsets, told from a few frames instead of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import NotFound

if TYPE_CHECKING:
    from calve.wal.reader import LogReader
    from calve.wal.state import Stream

_SAMPLES: Final = 16


class Extent(NamedTuple):
    bytes: int
    since_us: int | None  # when the first row was taken in, if that is known


def extent_of(reader: LogReader, stream: Stream, start: int, end: int) -> Extent:
    """Of offsets that are durable; the bytes are estimated.

    The frames that are looked at are spread evenly over the rows. What retention takes meanwhile
    counts no more.
    """
    while start < end:
        step = max((end - start) // _SAMPLES, 1)
        try:
            headers = [reader.header(stream, at) for at in range(start, end, step)]
        except NotFound as error:
            if "first" not in error.context:
                raise
            start = int(error.context["first"])
            continue
        shares = [each.frame_bytes / (each.end_offset - each.first_offset) for each in headers]
        row_bytes = sum(shares) / len(shares)
        return Extent(int(row_bytes * (end - start)) + 1, headers[0].ingested_at_us)
    return Extent(1, None)
