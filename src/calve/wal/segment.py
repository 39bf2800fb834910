"""One file of the log: its header, the state it begins with, its frames, and the seal at its end.

The header names the log and gives the segment its salt. A sealed segment ends with an index and a
trailer and never changes again. The bytes are described in docs/internals/wal-format.md.
"""

from __future__ import annotations

import secrets
import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from calve.errors import Corruption
from calve.wal.frame import (
    COPIES,
    MAGIC,
    VERSION,
    BadFrame,
    Frame,
    Header,
    Kind,
    candidates,
    checksum,
    pack,
    padding,
    read_frame,
    read_header,
)
from calve.wal.index import SealedIndex

if TYPE_CHECKING:
    from calve.wal.files import Bytes

SEGMENT_MAGIC: Final = b"CALVEWAL"
TRAILER_MAGIC: Final = b"CALVEEND"
HEADER_BYTES: Final = 128
TRAILER_BYTES: Final = 64

_HEADER: Final = struct.Struct("<8sHHI16sQQqQQQ40x")
_TRAILER: Final = struct.Struct("<8sQQ32x")
_SUM: Final = struct.Struct("<Q")
_LINK: Final = struct.Struct("<QQ")

assert _HEADER.size + _SUM.size == HEADER_BYTES
assert _TRAILER.size + _SUM.size == TRAILER_BYTES


class SegmentHeader(NamedTuple):
    log_id: UUID
    number: int
    salt: int
    created_at_us: int
    previous: int = 0  # the link of the segment before; 0 when there is none or it is not known
    answers_to: int = 0  # after a repair: the link by which the next segment knows this one
    replaces: int = 0  # after a repair: the salt of the file that was here before

    def pack(self) -> bytes:
        fields = _HEADER.pack(SEGMENT_MAGIC, VERSION, 0, 0, self.log_id.bytes, *self[1:])
        return fields + _SUM.pack(checksum(fields))


class BadSegment(Exception):
    """The segment's own header, state or seal cannot be read."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


class UnknownVersion(BadSegment):
    """Whole, but written by a version that is not known here."""


def new_salt() -> int:
    return secrets.randbits(63) | 1


def read_segment_header(view: memoryview) -> SegmentHeader:
    if len(view) < HEADER_BYTES:
        raise BadSegment(0, "the file ends inside the segment's header")
    magic, version, _, _, log_id, *fields = _HEADER.unpack_from(view, 0)
    if checksum(view[: _HEADER.size]) != _SUM.unpack_from(view, _HEADER.size)[0]:
        raise BadSegment(0, "the segment's header does not match its checksum")
    if magic != SEGMENT_MAGIC:
        raise BadSegment(0, "this is not a segment of a log")
    if version != VERSION:
        raise UnknownVersion(0, f"format version {version} is not known here, only {VERSION}")
    return SegmentHeader(UUID(bytes=log_id), *fields)


def control_header(kind: Kind, payload: Bytes, *, position: int, salt: int) -> Header:
    """The header of a frame that takes no offsets."""
    return Header(
        MAGIC, VERSION, kind, 0, position, salt, 0, 0, 0, 0, 0, 0, 0, 0,
        checksum(payload), len(payload), 0, 0, 0, 0,
    )  # fmt: skip


def frame_bytes(header: Header, payload: Bytes) -> bytes:
    """A whole frame without a producer."""
    return b"".join((pack(header), payload, padding(len(payload))))


def encode_start(header: SegmentHeader, state: bytes) -> bytes:
    """What a new segment begins with."""
    parts = [header.pack()]
    position = HEADER_BYTES
    for _ in range(COPIES):
        head = control_header(Kind.STATE, state, position=position, salt=header.salt)
        parts.append(frame_bytes(head, state))
        position += head.frame_bytes
    return b"".join(parts)


class SegmentStart(NamedTuple):
    """The state frame that was readable, and where the frames after all copies begin."""

    state: memoryview
    frames_from: int


def read_start(view: memoryview, salt: int) -> SegmentStart:
    try:
        first = read_frame(view, HEADER_BYTES, salt)
    except BadFrame as error:
        return _second_state(view, salt, error)
    _require_state(first)
    return SegmentStart(first.payload, HEADER_BYTES + COPIES * first.header.frame_bytes)


def _second_state(view: memoryview, salt: int, damage: BadFrame) -> SegmentStart:
    """The other copy, known by its place: the two are equal and lie one behind the other."""
    for position in candidates(view, HEADER_BYTES + 1):
        try:
            frame = read_frame(view, position, salt)
        except BadFrame:
            continue
        if frame.header.kind == Kind.STATE and position == HEADER_BYTES + frame.header.frame_bytes:
            return SegmentStart(frame.payload, frame.end)
        break
    raise BadSegment(HEADER_BYTES, f"no copy of the state: {damage.reason}") from damage


def _require_state(frame: Frame) -> None:
    if frame.header.kind != Kind.STATE:
        raise BadSegment(frame.header.position, "the segment does not begin with a state")


def link(salt: int, index_sum: int) -> int:
    """What the next segment's header keeps of this one: its salt alone would not tell apart two
    files that a copied log and its original continued differently."""
    return checksum(_LINK.pack(salt, index_sum)) or 1


def read_link(view: memoryview, header: SegmentHeader) -> int | None:
    """The link of a sealed segment; None when it is open, or its seal unreadable."""
    if header.answers_to:
        return header.answers_to
    position = index_position(view, header.salt)
    if position is None:
        return None
    try:
        return link(header.salt, read_header(view, position, header.salt)[0].payload_sum)
    except BadFrame:
        return None


def encode_seal(index: bytes, *, position: int, salt: int, durable: int) -> bytes:
    """What is written at `position`, behind the last frame, when a segment is sealed."""
    head = control_header(Kind.INDEX, index, position=position, salt=salt)
    head = head._replace(durable=durable)
    fields = _TRAILER.pack(TRAILER_MAGIC, salt, position)
    return b"".join((frame_bytes(head, index), fields, _SUM.pack(checksum(fields))))


def index_position(view: memoryview, salt: int) -> int | None:
    """Where the index of a sealed segment lies; None when the segment is not sealed."""
    if len(view) < HEADER_BYTES + TRAILER_BYTES:
        return None
    trailer = view[-TRAILER_BYTES:]
    if checksum(trailer[: _TRAILER.size]) != _SUM.unpack_from(trailer, _TRAILER.size)[0]:
        return None
    magic, found_salt, position = _TRAILER.unpack_from(trailer, 0)
    return position if (magic, found_salt) == (TRAILER_MAGIC, salt) else None


def read_index(view: memoryview, salt: int) -> SealedIndex:
    position = index_position(view, salt)
    if position is None:
        raise BadSegment(len(view), "the segment is not sealed")
    frame = read_frame(view, position, salt)
    if frame.header.kind != Kind.INDEX:
        raise BadSegment(position, "the seal points to something that is no index")
    return SealedIndex(frame.payload)


def damaged(path: object, position: int, reason: str) -> Corruption:
    """The error for damage that a reader or the writer met."""
    return Corruption(
        f"{path} is damaged at byte {position}: {reason}",
        hint="`calve wal verify` lists what is affected; `calve wal repair` is the way out",
        context={"file": str(path), "position": str(position)},
    )
