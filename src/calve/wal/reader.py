"""Reading the log, in any process, beside the writer and without asking it.

A reader follows the published durable end and never reads past it, so it sees no row that a
power cut could take back. Frames are handed out over the mapped file, uncopied, and every one is
checked. Any place, by offset or by time, is found in O(log n). Not safe to share between threads.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import Conflict, Corruption, NotFound
from calve.wal.chain import SegmentChain, is_spoken_of
from calve.wal.durable import DurableEnd, read_durable
from calve.wal.files import Files, OsFiles
from calve.wal.frame import (
    BadFrame,
    Frame,
    Header,
    Kind,
    read_frame,
    read_header,
)
from calve.wal.identity import read_identity
from calve.wal.index import FrameIndex, SegmentIndex, StreamFrames
from calve.wal.layout import LogLayout, is_log
from calve.wal.payload import UNDECODABLE, Rejected, decode_batch, decode_rejected, decode_schema
from calve.wal.segment import (
    BadSegment,
    SegmentHeader,
    damaged,
    read_index,
    read_start,
)
from calve.wal.state import LogState, NotDense, StartOffsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from calve.model import TableName
    from calve.wal.identity import Claim
    from calve.wal.index import SealedIndex
    from calve.wal.state import Stream

SEGMENTS_MAPPED_MAX: Final = 32
_POLL_SECONDS_MIN: Final = 0.0005
_POLL_SECONDS_MAX: Final = 0.02


class _SegmentGone(Exception):
    """Retention removed a segment between two looks."""


class Offsets(NamedTuple):
    """The first offset that the log still holds, and the end of what is durable."""

    first: int
    durable: int


class Entry(NamedTuple):
    """A frame's rows, or a hole. `batch` lies over the mapped file and keeps it alive."""

    kind: Kind
    first_offset: int
    end_offset: int
    ingested_at_us: int
    batch: pa.RecordBatch | None
    content_sum: int

    @property
    def ingested_at(self) -> datetime:
        return datetime.fromtimestamp(self.ingested_at_us / 1_000_000, UTC)

    @property
    def rejected(self) -> list[Rejected]:
        assert self.kind == Kind.REJECTED
        return decode_rejected(self.batch)

    def between(self, start: int, end: int) -> Entry:
        """The part of the entry from `start` to `end`."""
        start, end = max(start, self.first_offset), min(end, self.end_offset)
        if (start, end) == (self.first_offset, self.end_offset):
            return self
        batch = self.batch and self.batch.slice(start - self.first_offset, end - start)
        return self._replace(first_offset=start, end_offset=end, batch=batch)


class MappedSegment:
    """One segment, mapped; its parts are proven whole when they are first used."""

    def __init__(
        self, path: Path, view: memoryview, header: SegmentHeader, synced: int | None = None
    ) -> None:
        """`synced` is where an open segment may still change: nothing behind it is looked at."""
        self.path = path
        self.view = view
        self.header = header
        self.is_damaged = False  # then a repair may have put another file in its place
        try:
            self._start = read_start(view[:synced], header.salt)
        except BadSegment as error:
            raise damaged(path, error.position, error.reason) from error
        self._schemas: dict[int, pa.Schema] = {}

    @property
    def frames_from(self) -> int:
        return self._start.frames_from

    def state(self) -> LogState:
        return LogState.decode(self._start.state)

    @cached_property
    def _starts(self) -> StartOffsets:
        return StartOffsets(self._start.state)

    def start_offset(self, stream: Stream) -> int:
        """The offset the stream had reached when the segment began."""
        at = bisect_left(self._starts.numbers, stream.number)
        if at < len(self._starts.numbers) and self._starts.numbers[at] == stream.number:
            return self._starts.offsets[at]
        return stream.first_offset  # the stream was opened later

    def damaged(self, position: int, reason: str) -> Corruption:
        self.is_damaged = True
        return damaged(self.path, position, reason)

    @cached_property
    def index(self) -> SealedIndex:
        try:
            return read_index(self.view, self.header.salt)
        except (BadFrame, BadSegment) as error:
            raise self.damaged(error.position, error.reason) from error

    def frame(self, position: int) -> Frame:
        try:
            return read_frame(self.view, position, self.header.salt)
        except BadFrame as error:
            raise self.damaged(error.position, error.reason) from error

    def header_at(self, position: int) -> Header:
        try:
            return read_header(self.view, position, self.header.salt)[0]
        except BadFrame as error:
            raise self.damaged(error.position, error.reason) from error

    def schema(self, number: int, index: FrameIndex) -> pa.Schema:
        found = self._schemas.get(number)
        if found is None:
            position = index.schema_position(number)
            if position is None:
                raise self.damaged(0, f"schema {number:016x} is not in the segment")
            payload = self.frame(position).payload
            with self._decoding(position):
                found = self._schemas[number] = decode_schema(payload)
        return found

    @contextmanager
    def _decoding(self, position: int) -> Iterator[None]:
        """The bytes are those that were written; Arrow may still not make rows of them."""
        try:
            yield
        except UNDECODABLE as error:
            raise self.damaged(position, f"Arrow cannot decode it: {error}") from error

    def entry(self, position: int, index: FrameIndex) -> Entry:
        frame = self.frame(position)
        header = frame.header
        batch = None
        if header.kind != Kind.HOLE:
            schema = self.schema(header.schema, index)
            with self._decoding(position):
                batch = decode_batch(frame.payload, header.flags, schema)
        return Entry(
            Kind(header.kind),
            header.first_offset,
            header.end_offset,
            header.ingested_at_us,
            batch,
            header.content_sum,
        )


class Tail:
    """The open segment: follows the durable end, and indexes what it passes."""

    def __init__(self, segment: MappedSegment) -> None:
        self.segment = segment
        self.index = SegmentIndex()
        self.state = segment.state()
        self._position = segment.frames_from

    def follow(self, files: Files, end: DurableEnd) -> None:
        """Can be repeated when it fails: then it goes on where it stopped."""
        if end.position > len(self.segment.view):
            path = self.segment.path
            view = files.map(path)
            self.segment = MappedSegment(path, view, self.segment.header, end.position)
        while self._position < end.position:
            header = self.segment.header_at(self._position)
            self._take_in(header)
            self._position += header.frame_bytes

    def _take_in(self, header: Header) -> None:
        payload = memoryview(b"")
        if header.kind == Kind.STREAM_OPENED:
            payload = self.segment.frame(self._position).payload
        try:
            self.state.apply(header, None, payload)
        except NotDense as error:
            raise self.segment.damaged(self._position, str(error)) from error
        self.index.add(header)


class LogReader:
    def __init__(
        self,
        directory: Path,
        *,
        files: Files | None = None,
        mapped_max: int = SEGMENTS_MAPPED_MAX,
    ) -> None:
        """At most `mapped_max` segments stay mapped besides those whose rows somebody holds."""
        self._layout = LogLayout(directory)
        self._files = files or OsFiles()
        self._mapped_max = mapped_max
        self._mapped: OrderedDict[int, MappedSegment] = OrderedDict()
        if not is_log(self._files, self._layout):
            raise NotFound(f"{directory} holds no log")
        self.log_id = read_identity(self._files, self._layout).log_id
        self._chain = SegmentChain(self._files, self._layout, self.log_id)
        self._end, self._tail = self._newest_tail()

    def refresh(self) -> None:
        """Look how far the log is synced by now."""
        end = read_durable(self._files, self._layout.durable)
        is_damaged = self._tail.segment.is_damaged
        if end.generation == self._end.generation and not is_damaged:
            return
        tail = self._tail.segment.header
        # Both are taken over last: what failed before is done again by the next look.
        if (tail.number, tail.salt) == (end.segment, end.salt) and not is_damaged:
            self._tail.follow(self._files, end)
            self._end = end
        else:
            self._end, self._tail = self._newest_tail()
            self._mapped.clear()  # a repair may have put another file in a segment's place

    def _newest_tail(self) -> tuple[DurableEnd, Tail]:
        while True:
            end = read_durable(self._files, self._layout.durable)
            try:
                return end, self._new_tail(end)
            except FileNotFoundError as error:
                # Gone for good, or removed by retention since the look at the durable end.
                if read_durable(self._files, self._layout.durable).generation == end.generation:
                    path = self._layout.segment(end.segment)
                    raise damaged(path, 0, "the file is missing") from error

    def _new_tail(self, end: DurableEnd) -> Tail:
        path = self._layout.segment(end.segment)
        view = self._files.map(path)
        header = self._chain.own_header(end.segment, view)
        if not is_spoken_of(header, end.salt):
            raise damaged(path, 0, f"it is not the file that {self._layout.durable} speaks of")
        tail = Tail(MappedSegment(path, view, header, end.position or None))
        if header.salt == end.salt:
            tail.follow(self._files, end)
        return tail

    @property
    def generation(self) -> int:
        """A number that is another one whenever more is durable."""
        return self._end.generation

    @property
    def streams(self) -> list[Stream]:
        return list(self._tail.state.streams)

    def stream(self, topic: TableName, partition: int = 0) -> Stream:
        stream = self._tail.state.find(topic, partition)
        if stream is None:
            raise NotFound(f"the log has no topic {topic} with partition {partition}")
        return stream

    def offsets(self, stream: Stream) -> Offsets:
        durable = self._tail.state.next_offsets.get(stream.number)
        if durable is None:
            raise NotFound(f"{stream.name} was deleted")
        while True:
            try:
                return Offsets(self._start_offset(self._end.first_segment, stream), durable)
            except _SegmentGone:
                continue

    def durable_offset(self, stream: Stream) -> int | None:
        """The same for its end alone, at the cost of one look-up; None if it was deleted."""
        return self._tail.state.next_offsets.get(stream.number)

    def header(self, stream: Stream, offset: int) -> Header:
        """Of the frame that holds an offset, which must be durable; NotFound if it is gone."""
        while True:
            try:
                return self._header(stream, offset)
            except _SegmentGone:
                continue

    def _header(self, stream: Stream, offset: int) -> Header:
        segment, _, frames = self._holding(stream, offset)
        return segment.header_at(frames.positions[frames.holding(offset)])

    def _holding(
        self, stream: Stream, offset: int
    ) -> tuple[MappedSegment, FrameIndex, StreamFrames]:
        """The segment that holds an offset; NotFound if retention took it."""
        first = self.offsets(stream).first
        if offset < first:
            raise NotFound(
                f"offset {offset} of {stream.name} is no longer in the log; it begins at {first}",
                hint="its rows are in the table",
                context={"first": str(first)},
            )
        segment, index = self._open(self._segment_holding(stream, offset))
        frames = index.frames(stream.number)
        if frames is None or not frames.first_offset <= offset < frames.end_offset:
            raise segment.damaged(0, f"offset {offset} of {stream.name} is not indexed")
        return segment, index, frames

    def read(self, stream: Stream, start: int, end: int | None = None) -> Iterator[Entry]:
        """Everything from `start` up to `end`, or to what is durable now, in order."""
        durable = self.offsets(stream).durable
        end = durable if end is None else min(end, durable)
        while start < end or start < self.offsets(stream).first:
            try:
                for entry in self._read_segment(stream, start, end):
                    yield entry
                    start = entry.end_offset
            except _SegmentGone:
                continue  # retention was faster; what it left decides

    def _read_segment(self, stream: Stream, start: int, end: int) -> Iterator[Entry]:
        """The entries of the segment that holds `start`."""
        segment, index, frames = self._holding(stream, start)
        for at in range(frames.holding(start), len(frames.positions)):
            if frames.offsets[at] >= end:
                return
            yield self._entry(segment, index, stream, frames, at).between(start, end)

    def _entry(
        self,
        segment: MappedSegment,
        index: FrameIndex,
        stream: Stream,
        frames: StreamFrames,
        at: int,
    ) -> Entry:
        try:
            entry = segment.entry(frames.positions[at], index)
        except Corruption as error:
            is_last = at + 1 == len(frames.offsets)
            end = frames.end_offset if is_last else frames.offsets[at + 1]
            raise Corruption(
                f"{error.message}; offsets {frames.offsets[at]}..{end} of {stream.name}",
                hint=error.hint,
                context={**error.context, "first": str(frames.offsets[at]), "end": str(end)},
            ) from error
        if entry.first_offset != frames.offsets[at]:
            raise segment.damaged(frames.positions[at], "the index names another frame")
        return entry

    def offset_at(self, stream: Stream, moment: datetime) -> int:
        """The first offset that came at `moment` or later; the durable end if none did."""
        time_us = int(moment.timestamp() * 1_000_000)
        while True:
            try:
                return self._offset_at(stream, time_us)
            except _SegmentGone:
                continue

    def _offset_at(self, stream: Stream, time_us: int) -> int:
        numbers = range(self._end.first_segment, self._end.segment + 1)
        at = max(bisect_left(numbers, time_us, key=self._start_time) - 1, 0)
        _, index = self._open(numbers[at])
        frames = index.frames(stream.number)
        found = None if frames is None else frames.offset_at(time_us)
        if found is not None:
            return found
        # Whatever the stream has in later segments came later than that.
        later = numbers[at + 1 :]
        return self._start_offset(later[0], stream) if later else self.offsets(stream).durable

    def _start_time(self, number: int) -> int:
        return self._segment(number).header.created_at_us

    def wait(self, stream: Stream, past: int, timeout_seconds: float) -> bool:
        """Return when the durable offset is past `past`: True, or False after the time-out.

        Looks at one small file in the page cache, ever more slowly while nothing comes.
        """
        deadline = time.monotonic() + timeout_seconds
        pause = _POLL_SECONDS_MIN
        while True:
            self.refresh()
            if self.offsets(stream).durable > past:
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            time.sleep(min(pause, remaining))
            pause = min(2 * pause, _POLL_SECONDS_MAX)

    def content_sum(self, stream: Stream, end: int) -> int | None:
        """The sum of the frame that ends at `end`; None when the log does not hold it."""
        while True:
            try:
                return self._content_sum(stream, end)
            except _SegmentGone:
                continue

    def _content_sum(self, stream: Stream, end: int) -> int | None:
        offsets = self.offsets(stream)
        if not offsets.first < end <= offsets.durable:
            return None
        header = self._header(stream, end - 1)
        return header.content_sum if header.end_offset == end else None

    def require_content(self, stream: Stream, claim: Claim) -> None:
        """Raise Conflict when the log holds other rows than those that were committed."""
        if claim.committed is None or claim.content_sum is None:
            return
        found = self.content_sum(stream, claim.committed)
        if found is not None and found != claim.content_sum:
            raise Conflict(
                f"{stream.name} holds other rows before offset {claim.committed} than its table",
                hint="one of the two was restored from another time; bring back its newer state",
                context={"found": f"{found:016x}", "expected": f"{claim.content_sum:016x}"},
            )

    def _open(self, number: int) -> tuple[MappedSegment, FrameIndex]:
        if number == self._end.segment:
            return self._tail.segment, self._tail.index
        segment = self._segment(number)
        return segment, segment.index

    def _segment(self, number: int) -> MappedSegment:
        if number == self._end.segment:
            return self._tail.segment
        found = self._mapped.get(number)
        if found is None or found.is_damaged:
            found = self._mapped[number] = self._map(number)
            if len(self._mapped) > self._mapped_max:
                self._mapped.popitem(last=False)
        self._mapped.move_to_end(number)
        return found

    def _map(self, number: int) -> MappedSegment:
        path = self._layout.segment(number)
        try:
            view = self._files.map(path)
            header = self._chain.own_header(number, view)
            self._chain.require_continued(header, view)
            return MappedSegment(path, view, header)
        except FileNotFoundError as error:
            self.refresh()
            if number < self._end.first_segment:
                raise _SegmentGone from error
            raise damaged(path, 0, "the file is missing") from error

    def _start_offset(self, number: int, stream: Stream) -> int:
        return self._segment(number).start_offset(stream)

    def _segment_holding(self, stream: Stream, offset: int) -> int:
        numbers = range(self._end.first_segment, self._end.segment + 1)
        at = bisect_left(numbers, offset + 1, key=lambda n: self._start_offset(n, stream))
        return numbers[max(at - 1, 0)]

    def close(self) -> None:
        self._mapped.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
