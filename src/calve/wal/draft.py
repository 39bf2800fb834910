"""A damaged segment written anew in memory: its whole frames, and holes for what is lost.

Sealed, with the same number and place in the chain, and a salt of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.errors import Corruption
from calve.wal.frame import (
    COPIES,
    HEADER_BYTES,
    Flag,
    Header,
    Kind,
    Previous,
    checksum,
    pack,
    padding,
    read_frame,
)
from calve.wal.index import SegmentIndex
from calve.wal.segment import SegmentHeader, control_header, encode_seal, encode_start, link
from calve.wal.state import LogState, NotDense, Stream, encode_stream
from calve.wal.survey import SegmentSurvey, merge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calve.wal.files import Bytes


class SegmentDraft:
    def __init__(
        self,
        old: SegmentSurvey,
        start: LogState,
        header: SegmentHeader,
        names: Mapping[int, Stream],
    ) -> None:
        """`names` are the streams of the whole log: the frame that opened one may be lost. What
        is of none of them is left out: nobody could ask for it."""
        self.header = header
        self._old = old
        self._names = names
        self._opened = {stream.number for stream in start.streams}
        self._losses = merge([lost for damage in old.damages for lost in damage.lost])
        self._frames = [h for h in old.frames if not h.takes_offsets or h.stream in names]
        self._headless = [header for header in old.headless if header.stream in names]
        self.state = LogState.decode(memoryview(start.encode()))
        nameless = [stream for damage in old.damages for stream in damage.nameless]
        # A number means one stream for ever, also to whoever read the damaged file.
        self.state.next_stream = max([start.next_stream, *(each + 1 for each in nameless)])
        encoded = self.state.encode()
        self._parts: list[Bytes] = [encode_start(self.header, encoded)]
        self.position = len(self._parts[0])
        self._index = SegmentIndex()
        self._previous = Previous()
        self._whole_at = {frame.position for frame in self._frames}

    def copy_frames(self, view: memoryview, schemas: dict[int, bytes]) -> None:
        for schema, payload in schemas.items():
            for _ in range(COPIES):
                head = control_header(Kind.SCHEMA, payload, position=0, salt=0)
                self._emit(head._replace(schema=schema), None, memoryview(payload))
        known = {h.schema for h in self._old.frames if h.kind == Kind.SCHEMA} | schemas.keys()
        known.add(0)
        everything = sorted([*self._frames, *self._headless], key=lambda header: header.position)
        whole = set(self._frames)
        for header in everything:
            if header in whole and header.schema in known:
                self._copy(view, header)
            elif header.takes_offsets:
                self._fill_gap(header)
                self._hole_for(view, header)
        self._fill_ends()

    def _copy(self, view: memoryview, header: Header) -> None:
        self._fill_gap(header)
        frame = read_frame(view, header.position, header.salt)
        self._emit(self._without_lost_rest(header), frame.producer, frame.payload)

    def _without_lost_rest(self, header: Header) -> Header:
        """An append whose other frames are lost ends here."""
        if not header.flags & Flag.MORE:
            return header
        follows = header.position + header.frame_bytes
        if follows in self._whole_at:
            return header
        return header._replace(flags=header.flags & ~Flag.MORE)

    def _hole_for(self, view: memoryview, header: Header) -> None:
        """A hole that still knows its producer, so that the next sequence is no gap."""
        begin = header.position + HEADER_BYTES
        producer = bytes(view[begin : begin + header.producer_bytes]).decode(errors="replace")
        flags = header.flags & Flag.PRODUCED
        hole = header._replace(
            kind=Kind.HOLE, flags=flags, schema=0, payload_bytes=0, payload_sum=checksum(b"")
        )
        self._emit(hole, producer if flags else None, memoryview(b""))

    def _fill_gap(self, header: Header) -> None:
        if header.takes_offsets:
            self._open(header.stream)
            self._fill(header.stream, header.first_offset)

    def _fill_ends(self) -> None:
        """What was lost of a stream that no later frame of this segment speaks of."""
        for lost in self._losses:
            self._open(lost.stream)
            self._fill(lost.stream, lost.end)

    def _open(self, number: int) -> None:
        """Open a stream anew whose opening is lost, with the rows before the first that is left."""
        stream = self._names.get(number)
        if number in self._opened or stream is None:
            return
        payload = encode_stream(stream)
        for _ in range(COPIES):
            head = control_header(Kind.STREAM_OPENED, payload, position=0, salt=0)
            head = head._replace(stream=number, ingested_at_us=self.state.last_time_us)
            self._emit(head, None, memoryview(payload))

    def _fill(self, stream: int, end: int) -> None:
        first = self.state.next_offsets.get(stream, end)
        if first < end:
            head = control_header(Kind.HOLE, b"", position=0, salt=0)
            head = head._replace(stream=stream, ingested_at_us=self.state.last_time_us)
            self._emit(head.covering(first, end), None, memoryview(b""))

    def _emit(self, header: Header, producer: str | None, payload: memoryview) -> None:
        name = b"" if producer is None else producer.encode()
        header = header._replace(
            position=self.position,
            salt=self.header.salt,
            durable=self.position,
            previous_stream=self._previous.stream,
            previous_end=self._previous.end,
            previous_position=self._previous.position,
            producer_bytes=len(name),
        )
        try:
            self.state.apply(header, producer, payload)
        except NotDense as error:
            raise Corruption(
                f"{self._old.path} cannot be put in order: {error}",
                hint="bring back the file from a copy",
                context={"file": str(self._old.path)},
            ) from error
        if header.kind == Kind.STREAM_OPENED:
            self._opened.add(header.stream)
        self._index.add(header)
        self._parts += (pack(header, name), payload, padding(len(payload)))
        self.position += header.frame_bytes
        if header.takes_offsets:
            self._previous = Previous(header.stream, header.end_offset, header.position)

    @property
    def link(self) -> int:
        """What the next segment calls this one."""
        return self.header.answers_to or link(self.header.salt, checksum(self._index.encode()))

    def finish(self) -> bytes:
        at = self.position
        seal = encode_seal(self._index.encode(), position=at, salt=self.header.salt, durable=at)
        return b"".join((*self._parts, seal))
