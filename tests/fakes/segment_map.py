"""What a whole segment holds where, read by the page of the format and by none of the log's code.

An oracle for damage: which offsets are lost when a byte is changed, or a file is cut.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_SEGMENT_HEADER_BYTES = 128
_FRAME_HEADER_BYTES = 128
_TAKES_OFFSETS = (1, 2, 3)


class Extent(NamedTuple):
    """A frame's bytes, the last of them that means something, and the offsets it takes."""

    begin: int
    used_end: int
    end: int
    kind: int
    stream: int
    first: int
    end_offset: int

    @property
    def offsets(self) -> tuple[int, int, int]:
        return self.stream, self.first, self.end_offset


def extents(content: bytes) -> list[Extent]:
    """The frames of a segment that is whole, the index of a sealed one too."""
    found: list[Extent] = []
    position = _SEGMENT_HEADER_BYTES
    while content[position : position + 4] == b"CLVF":
        found.append(_extent(content, position))
        position = found[-1].end
    return found


def _extent(content: bytes, begin: int) -> Extent:
    stream, first = struct.unpack_from("<QQ", content, begin + 32)
    payload_bytes, rows, producer_bytes = struct.unpack_from("<IIH", content, begin + 96)
    payload = begin + _FRAME_HEADER_BYTES + _padded(producer_bytes)
    return Extent(
        begin,
        payload + payload_bytes,
        payload + _padded(payload_bytes),
        content[begin + 5],
        stream,
        first,
        first + rows,
    )


def _padded(length: int) -> int:
    return -(-length // 64) * 64


def lost_by_a_change(content: bytes, position: int) -> set[tuple[int, int, int]]:
    """Streams and offsets of the frame that the byte belongs to; what is there twice loses none."""
    return {
        frame.offsets
        for frame in extents(content)
        if frame.kind in _TAKES_OFFSETS and frame.begin <= position < frame.used_end
    }


def means_something(content: bytes, position: int) -> bool:
    """Whether a byte is not one of those that only fill up to the next frame."""
    return not any(frame.used_end <= position < frame.end for frame in extents(content))


def lost_by_a_cut(content: bytes, length: int) -> set[tuple[int, int, int]]:
    return {
        frame.offsets
        for frame in extents(content)
        if frame.kind in _TAKES_OFFSETS and frame.used_end > length
    }
