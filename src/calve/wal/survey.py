"""Looking at every byte of a log without changing one: what is whole, and what is lost.

Goes on behind damage: the next whole frame is found by its salt and position, and the offsets
that are missing are known from the frames around, from the next segment's state, and from what
each frame says of the one before it. `verify` reports this; `repair` acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.wal.chain import SegmentChain, find_header
from calve.wal.durable import DurableEnd, read_durable
from calve.wal.frame import (
    COPIES,
    HEADER_BYTES,
    BadFrame,
    Flag,
    Frame,
    Header,
    Kind,
    UnknownFormat,
    read_frame,
)
from calve.wal.identity import read_identity
from calve.wal.layout import segment_numbers
from calve.wal.moment import look
from calve.wal.scan import frame_or_damage, next_whole, proof_of_damage, written_end
from calve.wal.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from calve.wal.segment import (
    BadSegment,
    SegmentHeader,
    UnknownVersion,
    index_position,
    read_index,
    read_segment_header,
    read_start,
)
from calve.wal.state import LogState, StartOffsets, Stream, decode_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from calve.wal.files import Files
    from calve.wal.index import SealedIndex
    from calve.wal.layout import LogLayout


# A row takes a bit at the least: so many offsets a lost byte may have held.
ROWS_PER_BYTE_MAX: Final = 8


class LostRange(NamedTuple):
    """Offsets of one stream that no whole frame holds."""

    stream: int
    first: int
    end: int


@dataclass(slots=True)
class Damage:
    """A place in a file that is not as it was written, and what is lost with it."""

    path: Path
    begin: int
    end: int
    reason: str
    lost: list[LostRange] = field(default_factory=list)
    # Offsets that may have been given to rows here, of streams that nothing behind speaks of.
    doubtful: list[LostRange] = field(default_factory=list)
    # Streams that were opened here, as it seems, and whose name is nowhere else.
    nameless: list[int] = field(default_factory=list)
    is_loss_known: bool = True  # whether `lost` is all of it


@dataclass(slots=True)
class SegmentSurvey:
    """One segment: the frames that are whole, in order, and the damage between them."""

    number: int
    path: Path
    header: SegmentHeader | None = None
    state: LogState | None = None
    frames: list[Header] = field(default_factory=list)
    headless: list[Header] = field(default_factory=list)  # whole headers of damaged payloads
    damages: list[Damage] = field(default_factory=list)
    is_sealed: bool = False
    is_missing: bool = False
    is_foreign: bool = False  # of a format that is not known here: nothing to be repaired
    bytes: int = 0
    ends_at: int = 0
    torn_bytes: int = 0


@dataclass(slots=True)
class Survey:
    durable: DurableEnd
    segments: list[SegmentSurvey]
    names: dict[int, Stream]
    ends: dict[int, int]  # each stream's end, as far as it is known

    @property
    def damages(self) -> list[Damage]:
        return [damage for segment in self.segments for damage in segment.damages]

    @property
    def lost(self) -> list[LostRange]:
        return merge([lost for damage in self.damages for lost in damage.lost])

    @property
    def doubtful(self) -> list[LostRange]:
        """Offsets that may be lost, too: nothing tells."""
        return merge([one for damage in self.damages for one in damage.doubtful])

    def name(self, stream: int) -> str:
        return self.names[stream].name

    def describe(self, lost: LostRange) -> str:
        return f"{self.name(lost.stream)}:{lost.first}..{lost.end}"

    @property
    def flags(self) -> list[str]:
        """What a repair must be told to give up all of it."""
        unknown = [] if all(each.is_loss_known for each in self.damages) else ["--accept-unknown"]
        return [f"--accept-loss {self.describe(lost)}" for lost in self.lost] + unknown


def merge(ranges: list[LostRange]) -> list[LostRange]:
    merged: list[LostRange] = []
    for one in sorted(ranges):
        last = merged[-1] if merged else None
        if last is not None and last.stream == one.stream and one.first <= last.end:
            merged[-1] = last._replace(end=max(last.end, one.end))
        else:
            merged.append(one)
    return merged


class Surveyor:
    """Walks over a log's segments, oldest first, and keeps count of every stream."""

    def __init__(self, files: Files, layout: LogLayout) -> None:
        self._files = files
        self._layout = layout
        self._chain = SegmentChain(files, layout, read_identity(files, layout).log_id)
        self._moment = look(files, layout)
        self._names: dict[int, Stream] = {}
        self._unnamed: set[int] = set()  # streams met before anything said where they begin
        self._begin()

    def _begin(self) -> None:
        self._expected: dict[int, int] = {}
        self._closed: set[int] = set()
        self._last_damaged: SegmentSurvey | None = None
        self._hiding: list[Damage] = []  # that may have held frames of which nothing tells yet
        self._seen_at: dict[int, int] = {}  # where in the segment a stream was last spoken of
        # Before a log's very first segment there was nothing; before another, nobody knows what.
        self._knows_before = self._moment.durable.first_segment == 1

    def survey(self) -> Survey:
        durable = self._moment.durable
        numbers = self._numbers()
        views = ((number, self._view(number)) for number in reversed(numbers))
        misplaced = self._chain.misplaced(views, durable)
        kept = self._walk(numbers, misplaced)
        if self._unnamed & self._names.keys():
            self._begin()  # a later segment knew the name: now its losses can be told
            kept = self._walk(numbers, misplaced)
        if kept and kept[-1].damages and kept[-1].state is None:
            self._hide_all(kept[-1])
        self._compare_with_durable(kept, durable)
        self._doubt()
        ends = {stream: end for stream, end in self._expected.items() if stream in self._names}
        return Survey(durable, kept, self._names, ends)

    def _walk(self, numbers: range, misplaced: dict[int, str]) -> list[SegmentSurvey]:
        segments = [self._segment(number, misplaced.get(number)) for number in numbers]
        return [segment for segment in segments if segment is not None]

    def _numbers(self) -> range:
        there = segment_numbers(self._files, self._layout)
        first = self._chain.first_segment(there, self._moment.durable)
        return range(first, self._moment.newest + 1)

    def _view(self, number: int) -> memoryview | None:
        if number >= self._moment.durable.segment:
            return self._moment.views.get(number)
        try:
            return self._files.map(self._layout.segment(number))
        except FileNotFoundError:
            return None

    def _segment(self, number: int, misplaced: str | None) -> SegmentSurvey | None:
        found = SegmentSurvey(number, self._layout.segment(number))
        view = self._view(number)
        if view is None:
            if read_durable(self._files, self._layout.durable).first_segment > number:
                return None  # retention was faster
            found.is_missing = True
            found.damages.append(Damage(found.path, 0, 0, "the file is missing"))
        else:
            found.bytes = len(view)
            self._read(view, found, misplaced)
        if found.damages:
            self._last_damaged = found
            found.damages[-1].is_loss_known &= found.state is not None or self._knows_before
        return found

    def _read(self, view: memoryview, found: SegmentSurvey, misplaced: str | None) -> None:
        if misplaced is not None:
            found.damages.append(Damage(found.path, 0, len(view), misplaced))
            return
        self._read_start(view, found)
        if found.state is not None:
            self._read_frames(view, found)

    def _read_start(self, view: memoryview, found: SegmentSurvey) -> None:
        found.header = find_header(view, self._chain.log_id, found.number)
        try:
            read_segment_header(view)
        except BadSegment as error:
            found.damages.append(Damage(found.path, 0, SEGMENT_HEADER_BYTES, error.reason))
            found.is_foreign = isinstance(error, UnknownVersion)
        if found.header is None:
            return
        try:
            start = read_start(view, found.header.salt)
        except BadSegment as error:
            found.damages.append(Damage(found.path, error.position, len(view), error.reason))
            return
        found.state = LogState.decode(start.state)
        found.ends_at = start.frames_from
        self._check_state_copies(view, found)
        self._take_starts(found, StartOffsets(start.state))

    def _check_state_copies(self, view: memoryview, found: SegmentSurvey) -> None:
        assert found.header is not None
        size = (found.ends_at - SEGMENT_HEADER_BYTES) // COPIES
        for position in range(SEGMENT_HEADER_BYTES, found.ends_at, size):
            try:
                read_frame(view, position, found.header.salt)
            except BadFrame as error:
                found.damages.append(
                    Damage(found.path, position, position + size, f"a state: {error.reason}")
                )

    def _take_starts(self, found: SegmentSurvey, starts: StartOffsets) -> None:
        """Compare what the segment says of its beginning with what came before it."""
        assert found.state is not None
        self._names |= {stream.number: stream for stream in found.state.streams}
        for number, offset in zip(starts.numbers, starts.offsets, strict=True):
            expected = self._expected.get(number, self._opened_in_damage(number, offset))
            if expected < offset:
                self._lose(self._last_damaged or found, LostRange(number, expected, offset))
        self._expected = dict(zip(starts.numbers, starts.offsets, strict=True))
        self._last_damaged = None
        self._knows_before = True
        self._hiding.clear()
        self._seen_at.clear()

    def _opened_in_damage(self, stream: int, otherwise: int) -> int:
        """Where a stream began that nothing before spoke of: in the segment that is damaged."""
        is_known = self._last_damaged is not None and self._knows_before
        return self._names[stream].first_offset if is_known else otherwise

    def _read_frames(self, view: memoryview, found: SegmentSurvey) -> None:
        assert found.header is not None
        durable = self._moment.durable
        salt = found.header.salt
        found.is_sealed = index_position(view, salt) is not None
        for append in self._appends(view, found, _must_hold(view, found, durable)):
            for frame in append:
                self._take(found, frame)
        self._check_schemas(found)
        self._check_seal(view, found, is_last=found.number >= durable.segment)

    def _appends(self, view: memoryview, found: SegmentSurvey, limit: int) -> Iterator[list[Frame]]:
        """Whole frames, an append at a time; behind damage it goes on with the next whole header.

        Before `limit` whatever is not whole is damage; behind it, it may be a torn tail, and the
        append in which it begins counts not at all. What damage left of an append counts.
        """
        assert found.header is not None
        append: list[Frame] = []
        position = found.ends_at
        while True:
            frame, bad = frame_or_damage(view, position, found.header.salt)
            if frame is not None and frame.header.kind != Kind.INDEX:
                append.append(frame)
                position = frame.end
                if not frame.header.flags & Flag.MORE:
                    yield append
                    append = []
                    found.ends_at = position
                continue
            following = next_whole(view, position, found.header.salt)
            if frame is None and not proof_of_damage(view, position, found.header.salt, limit):
                if found.number < self._moment.durable.segment:
                    yield append  # it was sealed once, and all of it synced
                    return
                begin = append[0].header.position if append else position
                found.torn_bytes = len(view) - begin if append or bad else 0
                return
            yield append
            append = []
            found.ends_at = position
            if frame is not None:
                return
            position = self._damaged(found, position, bad, following, limit)
            if position >= limit and following is None:
                return

    def _damaged(
        self,
        found: SegmentSurvey,
        position: int,
        bad: BadFrame | None,
        following: Header | None,
        limit: int,
    ) -> int:
        """Note the damage, and say where to go on."""
        found.is_foreign |= isinstance(bad, UnknownFormat)
        reason = bad.reason if bad else "nothing is written here"
        header = bad.header if bad else None
        end = following.position if following else limit
        damage = Damage(found.path, position, end, reason)
        found.damages.append(damage)
        if header is not None and header.takes_offsets:
            found.headless.append(header)
            self._expect(found, header)
        if following is not None and following.previous_end:
            self._lose_up_to(found, following.previous_stream, following.previous_end)
            self._seen_at[following.previous_stream] = following.position
        begin = position if header is None else header.position + header.frame_bytes
        if self._may_hide_more(found, begin, end, following):
            self._hiding.append(damage)
        return end

    def _may_hide_more(
        self, found: SegmentSurvey, begin: int, end: int, following: Header | None
    ) -> bool:
        """Whether frames that took offsets may lie here beside the one that is known of.

        That is the last of them: the frame behind the damage, or the durable end, says where it
        lies, unless an older Calve wrote them.
        """
        if following is None or following.kind == Kind.INDEX:
            assert found.header is not None
            durable = self._moment.durable
            is_durables = (found.number, found.header.salt) == (durable.segment, durable.salt)
            known_at = durable.last_position if is_durables else 0
        elif following.previous_end:
            known_at = following.previous_position
        else:
            return False
        return known_at > begin if known_at else end - begin >= 2 * HEADER_BYTES

    def _hide_all(self, newest: SegmentSurvey) -> None:
        """Nothing in it can be read, and nothing comes behind it to tell: any stream's rows may
        have been in what was written of it."""
        damage, durable = newest.damages[-1], self._moment.durable
        synced = durable.position if newest.number == durable.segment else 0
        damage.end = max(written_end(self._view(newest.number)), synced)
        damage.is_loss_known = False
        self._hiding.append(damage)
        self._seen_at.clear()

    def _doubt(self) -> None:
        """Say of which streams nothing tells whether damage took rows of them as well. Each place
        may have held some: what is doubtful of one begins where that of the last one ends."""
        reached = dict(sorted(self._expected.items()))
        for damage in self._hiding:
            rows_max = ROWS_PER_BYTE_MAX * (damage.end - damage.begin)
            for stream, end in reached.items():
                if stream in self._names and self._seen_at.get(stream, 0) < damage.end:
                    reached[stream] = end + rows_max
                    damage.doubtful.append(LostRange(stream, end, end + rows_max))
            damage.is_loss_known &= not damage.doubtful

    def _take(self, found: SegmentSurvey, frame: Frame) -> None:
        header = frame.header
        found.frames.append(header)
        if header.takes_offsets:
            self._expect(found, header, is_whole=True)
        elif header.kind == Kind.STREAM_OPENED:
            stream = decode_stream(frame.payload)
            self._names[stream.number] = stream
            self._expected.setdefault(stream.number, stream.first_offset)
            self._seen_at.setdefault(stream.number, header.position)
        elif header.kind == Kind.STREAM_CLOSED:
            self._expected.pop(header.stream, None)
            self._closed.add(header.stream)

    def _expect(self, found: SegmentSurvey, header: Header, *, is_whole: bool = False) -> None:
        self._lose_up_to(found, header.stream, header.first_offset)
        if not is_whole:
            self._lose(found, LostRange(header.stream, header.first_offset, header.end_offset))
        self._expected[header.stream] = header.end_offset
        self._seen_at[header.stream] = header.position

    def _lose_up_to(self, found: SegmentSurvey, stream: int, end: int) -> None:
        if stream in self._closed:
            return  # its rows wait for nobody
        named = self._names.get(stream)
        if named is None:
            self._unnamed.add(stream)
            if found.damages and stream not in self._expected:
                found.damages[-1].nameless.append(stream)
                found.damages[-1].is_loss_known = False
        expected = self._expected.get(stream, named.first_offset if named else end)
        if expected < end:
            self._lose(found, LostRange(stream, expected, end))
        self._expected[stream] = max(expected, end)

    def _lose(self, found: SegmentSurvey, lost: LostRange) -> None:
        if lost.stream not in self._names:
            return  # nobody can accept it by name
        if not found.damages:
            found.damages.append(
                Damage(found.path, 0, 0, "offsets are missing although every frame is whole")
            )
        found.damages[-1].lost.append(lost)

    def _check_schemas(self, found: SegmentSurvey) -> None:
        """Rows whose schema is gone are unreadable, though their frames are whole."""
        present = {header.schema for header in found.frames if header.kind == Kind.SCHEMA}
        for header in found.frames:
            if header.schema and header.takes_offsets and header.schema not in present:
                self._lose(found, LostRange(header.stream, header.first_offset, header.end_offset))

    def _check_seal(self, view: memoryview, found: SegmentSurvey, *, is_last: bool) -> None:
        assert found.header is not None
        if not found.is_sealed:
            if not is_last:
                found.damages.append(
                    Damage(found.path, found.ends_at, len(view), "the segment is not sealed")
                )
            return
        try:
            index = read_index(view, found.header.salt)
        except (BadFrame, BadSegment) as error:
            found.damages.append(Damage(found.path, error.position, len(view), error.reason))
        else:
            self._compare_with_index(found, index)

    def _compare_with_index(self, found: SegmentSurvey, index: SealedIndex) -> None:
        """It knows where each stream of the segment ended, also when no segment follows yet."""
        if not found.damages:
            return
        for stream in index.streams():
            frames = index.frames(stream)
            assert frames is not None
            self._lose_up_to(found, stream, frames.end_offset)
        self._hiding.clear()

    def _compare_with_durable(self, segments: list[SegmentSurvey], durable: DurableEnd) -> None:
        """The last frame that was published, if nothing else speaks of it any more."""
        last = segments[-1] if segments else None
        if last is None or last.number != durable.segment:
            return
        if last.header is not None and last.header.salt != durable.salt:
            return  # repaired, and the durable end does not know it yet
        if durable.last_end and durable.last_stream in self._expected:
            self._lose_up_to(last, durable.last_stream, durable.last_end)
            self._seen_at[durable.last_stream] = durable.position


def survey(files: Files, layout: LogLayout) -> Survey:
    """Look at a log, whether or not somebody writes it at the moment."""
    return Surveyor(files, layout).survey()


def _must_hold(view: memoryview, found: SegmentSurvey, durable: DurableEnd) -> int:
    """Up to where everything in a segment was synced for certain."""
    assert found.header is not None
    if (found.number, found.header.salt) == (durable.segment, durable.salt):
        return durable.position
    seal = index_position(view, found.header.salt)
    if seal is not None:
        return seal
    return len(view) if found.number < durable.segment else 0
