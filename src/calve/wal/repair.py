"""The operator's way out of damage: give up what is lost, in writing, and go on.

A damaged segment is kept aside as it is and written anew from its whole frames, with a hole where
offsets are lost; every reader meets the hole and reports it. Nothing is given up that was not
accepted by name. Works on a log that nobody writes; a crash leaves the old segment or the new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from calve.errors import Conflict, Corruption, InvalidRequest
from calve.wal.durable import DurableEnd, DurableFile, read_durable, write_all
from calve.wal.frame import (
    COPIES,
    HEADER_BYTES,
    Flag,
    Header,
    Kind,
    checksum,
    pack,
    padding,
    read_frame,
)
from calve.wal.identity import LogIdentity, read_identity, write_identity
from calve.wal.index import SegmentIndex
from calve.wal.layout import temporary
from calve.wal.log import Log
from calve.wal.options import LogOptions
from calve.wal.recovery import lock_log, segment_numbers
from calve.wal.segment import (
    BadSegment,
    SegmentHeader,
    control_header,
    encode_seal,
    encode_start,
    new_salt,
    read_segment_header,
)
from calve.wal.state import LogState, NotDense
from calve.wal.survey import LostRange, SegmentSurvey, Survey, Surveyor, merge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from calve.model import TableName
    from calve.wal.files import Bytes, Files
    from calve.wal.layout import LogLayout


class AcceptedLoss(NamedTuple):
    """Offsets of a topic that the operator gives up, `first` up to but not including `end`."""

    topic: TableName
    partition: int
    first: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was done, or would be."""

    rewritten: list[Path] = field(default_factory=list)
    kept_aside: list[Path] = field(default_factory=list)
    holes: list[LostRange] = field(default_factory=list)


def repair(
    files: Files,
    layout: LogLayout,
    accepted: Sequence[AcceptedLoss],
    *,
    accept_unknown: bool = False,
    dry_run: bool,
) -> RepairReport:
    """Write damaged segments anew. Raises Conflict, changing nothing, unless every lost offset
    is accepted; `accept_unknown` also gives up a newest segment that cannot be read at all."""
    lock = lock_log(files, layout)
    try:
        found = Surveyor(files, layout, is_live=False).survey()
        _require_known_format(found)
        _require_known_loss(found, accept_unknown=accept_unknown)
        _lose_what_comes_next(found, accepted)
        _require_accepted(found, accepted)
        report = _plan(layout, found)
        if not dry_run:
            _Repair(files, layout, found).run()
        return report
    finally:
        lock.release()


def give_up(directory: Path, accepted: Sequence[AcceptedLoss], files: Files) -> None:
    """Record offsets behind the end of whole streams as lost: the log is older than its tables."""
    with Log(directory, LogOptions(free_bytes_min=0), files=files, background=False) as log:
        for one in accepted:
            log.record_hole(log.stream(one.topic, one.partition), one.first, one.end)


def _lose_what_comes_next(found: Survey, accepted: Sequence[AcceptedLoss]) -> None:
    """Accepted offsets behind the end of a damaged log: nothing in it can tell whether they
    were there. They count as lost, so that they are never given to other rows."""
    newest = found.segments[-1]
    if not newest.damages:
        return
    for number, end in found.ends.items():
        for one in accepted:
            if found.name(number) == one.name and one.first <= end < one.end:
                newest.damages[-1].lost.append(LostRange(number, end, one.end))


def _require_known_format(found: Survey) -> None:
    for segment in found.segments:
        if segment.is_foreign:
            raise Conflict(
                f"{segment.path}: {segment.damages[0].reason}",
                hint="it is not damaged: open it with the version of Calve that wrote it",
                context={"file": str(segment.path)},
            )


def _require_known_loss(found: Survey, *, accept_unknown: bool) -> None:
    """What older segments held is known from those behind them; for the newest nobody knows."""
    newest = found.segments[-1]
    if newest.damages and newest.state is None and not accept_unknown:
        raise Conflict(
            f"{newest.path} cannot be read at all, so nobody knows which offsets it held",
            hint="bring back the file from a copy, or `calve wal repair --accept-unknown`: a "
            "table that has committed more than is left will ask for --accept-loss",
            context={"file": str(newest.path)},
        )


def _require_accepted(found: Survey, accepted: Sequence[AcceptedLoss]) -> None:
    open_losses = [lost for lost in found.lost if not _is_accepted(found, lost, accepted)]
    if open_losses:
        named = [f"{found.name(lost.stream)}:{lost.first}..{lost.end}" for lost in open_losses]
        raise Conflict(
            f"the repair would lose {', '.join(named)}",
            hint="bring back the damaged file from a copy, or accept it: `calve wal repair "
            + " ".join(f"--accept-loss {name}" for name in named)
            + "`",
            context={"lost": ",".join(named)},
        )


def _is_accepted(found: Survey, lost: LostRange, accepted: Sequence[AcceptedLoss]) -> bool:
    name = found.name(lost.stream)
    return any(
        one.name == name and one.first <= lost.first and lost.end <= one.end for one in accepted
    )


def _plan(layout: LogLayout, found: Survey) -> RepairReport:
    damaged = [segment for segment in found.segments if segment.damages]
    aside = [aside_path(layout, segment) for segment in damaged if not segment.is_missing]
    return RepairReport([segment.path for segment in damaged], aside, found.lost)


def aside_path(layout: LogLayout, segment: SegmentSurvey) -> Path:
    salt = segment.header.salt if segment.header else 0
    return layout.aside / f"{segment.path.name}.{salt:016x}"


class _Repair:
    def __init__(self, files: Files, layout: LogLayout, found: Survey) -> None:
        self._files = files
        self._layout = layout
        self._found = found
        self._log_id = read_identity(files, layout).log_id

    def run(self) -> None:
        before: LogState | None = None
        for segment in self._found.segments:
            if segment.damages:
                start = segment.state or before or self._state_from_next(segment)
                before = self._rewrite(segment, start)
            else:
                before = self._end_state(segment)

    def _end_state(self, segment: SegmentSurvey) -> LogState:
        """What is known at the end of a segment that is whole."""
        assert segment.state is not None
        state = LogState.decode(memoryview(segment.state.encode()))
        view = self._files.map(segment.path)
        for header in segment.frames:
            state.apply_frame(read_frame(view, header.position, header.salt))
        return state

    def _state_from_next(self, segment: SegmentSurvey) -> LogState:
        """Names and offsets from the segment behind, when nothing is left before this one: what
        was in it counts as no longer in the log."""
        later = (one.state for one in self._found.segments if one.number > segment.number)
        state = next((one for one in later if one is not None), None)
        if state is None:
            raise Corruption(
                f"{segment.path} holds the names of all topics, and both copies are damaged",
                hint="bring back the file from a copy",
                context={"file": str(segment.path)},
            )
        return LogState.decode(memoryview(state.encode()))

    def _rewrite(self, segment: SegmentSurvey, start: LogState) -> LogState:
        view = memoryview(b"") if segment.is_missing else self._files.map(segment.path)
        draft = _SegmentDraft(segment, start, self._log_id)
        draft.copy_frames(view, self._schemas(segment))
        self._keep_aside(segment, view)
        _write_file(self._files, segment.path, draft.finish())
        self._point_durable_at(draft)
        return draft.state

    def _schemas(self, segment: SegmentSurvey) -> dict[int, bytes]:
        """Schemas that rows here need and that only other segments still hold."""
        present = {header.schema for header in segment.frames if header.kind == Kind.SCHEMA}
        wanted = {h.schema for h in segment.frames if h.takes_offsets and h.schema} - present
        found: dict[int, bytes] = {}
        for other in self._found.segments:
            for header in other.frames:
                if header.kind == Kind.SCHEMA and header.schema in wanted - found.keys():
                    content = self._files.map(other.path)
                    frame = read_frame(content, header.position, header.salt)
                    found[header.schema] = bytes(frame.payload)
        return found

    def _keep_aside(self, segment: SegmentSurvey, view: memoryview) -> None:
        if segment.is_missing:
            return
        self._files.make_directory(self._layout.aside)
        path = aside_path(self._layout, segment)
        if not self._files.exists(path):
            _write_file(self._files, path, bytes(view))

    def _point_durable_at(self, draft: _SegmentDraft) -> None:
        durable = DurableFile.open(self._files, self._layout.durable)
        try:
            if durable.end.segment == draft.header.number:
                durable.persist(
                    durable.end._replace(salt=draft.header.salt, position=draft.position)
                )
        finally:
            durable.close()


class _SegmentDraft:
    """A segment written anew in memory: sealed, with the same number and another salt."""

    def __init__(self, old: SegmentSurvey, start: LogState, log_id: UUID) -> None:
        created_at_us = max(old.header.created_at_us if old.header else 0, start.last_time_us)
        self.header = SegmentHeader(log_id, old.number, new_salt(), created_at_us)
        self._old = old
        self._losses = merge([lost for damage in old.damages for lost in damage.lost])
        encoded = start.encode()
        self.state = LogState.decode(memoryview(encoded))
        self._parts: list[Bytes] = [encode_start(self.header, encoded)]
        self.position = len(self._parts[0])
        self._index = SegmentIndex()
        self._previous = (0, 0)

    def copy_frames(self, view: memoryview, schemas: dict[int, bytes]) -> None:
        for schema, payload in schemas.items():
            for _ in range(COPIES):
                head = control_header(Kind.SCHEMA, payload, position=0, salt=0)
                self._emit(head._replace(schema=schema), None, memoryview(payload))
        known = {h.schema for h in self._old.frames if h.kind == Kind.SCHEMA} | schemas.keys()
        known.add(0)
        everything = sorted(
            [*self._old.frames, *self._old.headless], key=lambda header: header.position
        )
        whole = set(self._old.frames)
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
        if any(other.position == follows for other in self._old.frames):
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
            self._fill(header.stream, header.first_offset)

    def _fill_ends(self) -> None:
        """What was lost of a stream that no later frame of this segment speaks of."""
        for lost in self._losses:
            self._fill(lost.stream, lost.end)

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
            previous_stream=self._previous[0],
            previous_end=self._previous[1],
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
        self._index.add(header)
        self._parts += (pack(header, name), payload, padding(len(payload)))
        self.position += header.frame_bytes
        if header.takes_offsets:
            self._previous = (header.stream, header.end_offset)

    def finish(self) -> bytes:
        seal = encode_seal(self._index.encode(), position=self.position, salt=self.header.salt)
        return b"".join((*self._parts, seal))


def _write_file(files: Files, path: Path, content: bytes) -> None:
    """Put a file in its place whole, on the disk, over whatever was there."""
    draft = temporary(path)
    if files.exists(draft):
        files.unlink(draft)
    file = files.create(draft)
    try:
        write_all(file, 0, content)
        file.sync()
    finally:
        file.close()
    files.rename(draft, path)
    files.sync_directory(path.parent)


def rewrite_durable(files: Files, layout: LogLayout) -> DurableEnd:
    """Write the durable end again, from the segments that are there."""
    lock = lock_log(files, layout)
    try:
        numbers = segment_numbers(files, layout)
        if not numbers:
            raise Corruption(f"{layout.root} holds no segment", hint="bring back the directory")
        header = read_segment_header(files.map(layout.segment(numbers[-1])))
        generation = _generation(files, layout) + 1
        end = DurableEnd(generation, numbers[0], numbers[-1], header.salt, 0)
        if files.exists(temporary(layout.durable)):
            files.unlink(temporary(layout.durable))
        DurableFile.create(files, layout.durable, end)
        files.sync_directory(layout.root)
    except BadSegment as error:
        raise Corruption(f"the newest segment is damaged: {error.reason}") from error
    finally:
        lock.release()
    return end


def _generation(files: Files, layout: LogLayout) -> int:
    try:
        return read_durable(files, layout.durable).generation
    except Corruption:
        return 1 << 32  # above any that readers may have seen


def rewrite_identity(files: Files, layout: LogLayout, now: datetime) -> LogIdentity:
    """Write who the log is again, from what its segments say."""
    lock = lock_log(files, layout)
    try:
        ids: set[UUID] = set()
        for number in segment_numbers(files, layout):
            ids.add(_log_id(files, layout.segment(number)))
        if len(ids) != 1:
            raise Conflict(
                f"the segments in {layout.root} belong to {len(ids)} logs",
                hint="leave only the files that belong together",
            )
        identity = LogIdentity(log_id=ids.pop(), place=files.place(layout.lock), created_at=now)
        write_identity(files, layout, identity)
        files.sync_directory(layout.root)
    finally:
        lock.release()
    return identity


def _log_id(files: Files, path: Path) -> UUID:
    try:
        return read_segment_header(files.map(path)).log_id
    except BadSegment as error:
        raise Corruption(f"{path} is damaged: {error.reason}") from error


def adopt(files: Files, layout: LogLayout) -> LogIdentity:
    """Let a copy take the place of its original, which must never be written again."""
    if not files.exists(layout.lock):
        files.create(layout.lock).close()
    lock = lock_log(files, layout)
    try:
        found = read_identity(files, layout)
        identity = LogIdentity(
            log_id=found.log_id, place=files.place(layout.lock), created_at=found.created_at
        )
        write_identity(files, layout, identity)
        files.sync_directory(layout.root)
    finally:
        lock.release()
    return identity


def parse_loss(text: str) -> tuple[str | None, int, int]:
    """`A..B` or `NAME:A..B`."""
    name, colon, numbers = text.rpartition(":")
    first, dots, end = numbers.partition("..")
    if not dots or not first.isdigit() or not end.isdigit() or int(first) >= int(end):
        raise InvalidRequest(
            f"{text!r} is not a range of offsets", hint="write A..B: from A up to, not including, B"
        )
    return (name if colon else None), int(first), int(end)
