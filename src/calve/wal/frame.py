"""The frame: a fixed header, an optional producer, a payload; how it is packed and checked.

A frame names its own segment (salt) and position, so bytes that only look like one, inside a
payload or left over from elsewhere, are never taken for one. Header and payload are summed
apart: while the header holds, damage in the payload is known by its offsets. Knows no files.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAGIC: Final = b"CLVF"
VERSION: Final = 1
LONG_VERSION: Final = 2  # of a hole over more offsets than 32 bits count
ALIGNMENT: Final = 64
HEADER_BYTES: Final = 128
PAYLOAD_BYTES_MAX: Final = 1 << 30
COPIES: Final = 2  # of what other frames depend on, so that one damaged place takes no rows
PRODUCER_BYTES_MAX: Final = 255
ROWS_MAX: Final = (1 << 32) - 1

_FIELDS: Final = struct.Struct("<4sBBHQQQQQqQQQQQIIH2xIQ")
_SUM: Final = struct.Struct("<Q")
_SUMMED: Final = HEADER_BYTES - _SUM.size
_CONTENT: Final = struct.Struct("<QIQ")
_CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(ALIGNMENT)
_NO_HEADER: Final = bytes(HEADER_BYTES)

assert _FIELDS.size == _SUMMED


class Kind(IntEnum):
    """What a frame holds. Those up to HOLE take offsets of a stream."""

    ROWS = 1
    REJECTED = 2
    HOLE = 3
    BEGIN = 4  # reserved for transactions, with COMMIT and ABORT
    COMMIT = 5
    ABORT = 6
    SCHEMA = 16
    STREAM_OPENED = 17
    STREAM_CLOSED = 18
    STATE = 19
    INDEX = 20


class Flag:
    """Bits of a header; plain numbers, because arithmetic on an enum costs a microsecond."""

    MORE: Final = 1  # the next frame belongs to the same append; neither counts without the other
    PRODUCED: Final = 2  # producer and sequence are set
    STREAMED: Final = 4  # the payload is a whole Arrow stream, for columns with dictionaries


_LAST_OFFSET_KIND: Final = int(Kind.HOLE)
_RESERVED_KINDS: Final = frozenset({Kind.BEGIN, Kind.COMMIT, Kind.ABORT})
KNOWN_KINDS: Final = frozenset(int(kind) for kind in Kind) - _RESERVED_KINDS
_KNOWN: Final = frozenset({(LONG_VERSION, int(Kind.HOLE)), *((VERSION, k) for k in KNOWN_KINDS)})


class Previous(NamedTuple):
    """The last frame of a segment that took offsets: its stream, where it ended and lies."""

    stream: int = 0
    end: int = 0
    position: int = 0


class Header(NamedTuple):
    """The header's fields in the order of their bytes."""

    magic: bytes
    version: int
    kind: int
    flags: int
    position: int
    salt: int
    durable: int  # this segment's synced end when the frame was written
    stream: int
    first_offset: int
    ingested_at_us: int
    schema: int
    sequence: int
    previous_stream: int  # stream and end offset of the last frame before this one that took
    previous_end: int  # offsets: names the loss when that one's header is destroyed
    payload_sum: int
    payload_bytes: int
    row_count: int
    producer_bytes: int
    row_count_high: int  # times 2**32: in holes only
    previous_position: int  # of that frame before: tells whether others are destroyed, too; 0 in
    # frames that an older Calve wrote

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.row_count + (self.row_count_high << 32)

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + padded(self.producer_bytes) + padded(self.payload_bytes)

    @property
    def payload_position(self) -> int:
        return self.position + HEADER_BYTES + padded(self.producer_bytes)

    @property
    def takes_offsets(self) -> bool:
        return self.kind <= _LAST_OFFSET_KIND

    def covering(self, first: int, end: int) -> Header:
        """The same header of a hole, over these offsets, however many they are."""
        high, low = divmod(end - first, 1 << 32)
        return self._replace(
            version=LONG_VERSION if high else VERSION,
            first_offset=first,
            row_count=low,
            row_count_high=high,
        )

    @property
    def content_sum(self) -> int:
        """A sum over offsets and payload that stays the same wherever the frame lies."""
        return checksum(_CONTENT.pack(self.first_offset, self.row_count, self.payload_sum))


class Frame(NamedTuple):
    """A frame as it lies in a segment; the payload is a view, not a copy."""

    header: Header
    producer: str | None
    payload: memoryview

    @property
    def end(self) -> int:
        return self.header.position + self.header.frame_bytes


class BadFrame(Exception):
    """What lies here is no whole frame. `header` is set when only the payload is damaged."""

    def __init__(self, position: int, reason: str, header: Header | None = None) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason
        self.header = header


class UnknownFormat(BadFrame):
    """A whole frame of a kind or version that is not known here. Never a torn tail."""


# XXH3: at 1 MiB ten times as fast as CRC-32, which would cost a fifth of the append.
checksum: Final = xxh3_64_intdigest


def checksum_of_pieces(pieces: Iterable[memoryview]) -> int:
    found = xxh3_64()
    for piece in pieces:
        found.update(piece)
    return found.intdigest()


def padded(length: int) -> int:
    return (length + ALIGNMENT - 1) & -ALIGNMENT


def padding(length: int) -> bytes:
    return _ZEROS[: -length % ALIGNMENT]


def pack(header: tuple[bytes | int, ...], producer: bytes = b"") -> bytes:
    """The bytes before the payload, of a `Header` or of its fields in their order."""
    fields = _FIELDS.pack(*header)
    if not producer:
        return fields + _SUM.pack(checksum(fields))
    name = producer + padding(len(producer))
    return b"".join((fields, _SUM.pack(checksum(fields + name)), name))


def is_blank(view: memoryview, position: int) -> bool:
    """Whether nothing was ever written here: the end of the file, or zeros."""
    found = bytes(view[position : position + HEADER_BYTES])
    return found == _NO_HEADER[: len(found)]


def salt_at(view: memoryview, position: int) -> int:
    """The salt in what may be a header."""
    return int.from_bytes(view[position + 16 : position + 24], "little")


def read_header(view: memoryview, position: int, salt: int) -> tuple[Header, str | None]:
    """The header at `position`, proven whole; the payload is not looked at."""
    if position + HEADER_BYTES > len(view):
        raise BadFrame(position, "the file ends inside a frame's header")
    header = Header._make(_FIELDS.unpack_from(view, position))
    if header.magic != MAGIC:
        raise BadFrame(position, "no frame begins here")
    name = view[position + HEADER_BYTES : position + HEADER_BYTES + padded(header.producer_bytes)]
    fields = view[position : position + _SUMMED]
    found = checksum(b"".join((fields, name)) if name else fields)
    if found != _SUM.unpack_from(view, position + _SUMMED)[0]:
        raise BadFrame(position, "the frame's header does not match its checksum")
    if (header.position, header.salt) != (position, salt):
        raise BadFrame(position, "the frame was written for another place")
    if (header.version, header.kind) not in _KNOWN:
        what = f"version {header.version}, kind {header.kind}"
        raise UnknownFormat(position, f"the frame is of a format not known here: {what}")
    return header, _producer(header, name)


def candidates(view: memoryview, start: int) -> Iterator[int]:
    """Places at or behind `start` where a frame might begin."""
    for begin in range(start & -ALIGNMENT, len(view), _CHUNK_BYTES):
        chunk = bytes(view[begin : begin + _CHUNK_BYTES])
        at = chunk.find(MAGIC)
        while at >= 0:
            if at % ALIGNMENT == 0 and begin + at >= start:
                yield begin + at
            at = chunk.find(MAGIC, at + 1)


def _producer(header: Header, name: memoryview) -> str | None:
    if not header.flags & Flag.PRODUCED:
        return None
    return str(name[: header.producer_bytes], "utf-8", "replace")


def read_frame(view: memoryview, position: int, salt: int) -> Frame:
    """The frame at `position`, proven whole."""
    header, producer = read_header(view, position, salt)
    begin = header.payload_position
    payload = view[begin : begin + header.payload_bytes]
    if len(payload) != header.payload_bytes:
        raise BadFrame(position, "the file ends inside a frame's payload", header)
    if checksum(payload) != header.payload_sum:
        raise BadFrame(position, "the frame's payload does not match its checksum", header)
    return Frame(header, producer, payload)
