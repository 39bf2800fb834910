"""The operator's way out of damage: give up what is lost, in writing, and go on.

A damaged segment is kept aside as it is and written anew from its whole frames, with a hole where
offsets are lost; every reader meets the hole and reports it. Nothing is given up that was not
accepted by name. Works on a log that nobody writes; a crash leaves the old segment or the new.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from calve.errors import Conflict, Corruption, InvalidRequest, NotFound
from calve.wal.chain import SegmentChain, find_header, find_link
from calve.wal.draft import SegmentDraft
from calve.wal.durable import DurableEnd, DurableFile, read_durable, write_all
from calve.wal.files import translating
from calve.wal.frame import Kind, checksum, read_frame
from calve.wal.group import OFFSET_MAX
from calve.wal.identity import LogIdentity, read_identity, write_identity
from calve.wal.layout import segment_numbers, temporary
from calve.wal.log import Log
from calve.wal.options import LogOptions
from calve.wal.recovery import lock_log
from calve.wal.segment import (
    BadSegment,
    SegmentHeader,
    new_salt,
    read_segment_header,
)
from calve.wal.state import LogState
from calve.wal.survey import LostRange, SegmentSurvey, Survey, Surveyor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from calve.model import TableName
    from calve.wal.files import Files
    from calve.wal.layout import LogLayout

_NAMES_MAX: Final = 5
_RANGE: Final = re.compile(r"(\d{1,19})\.\.(\d{1,19})", re.ASCII)
_GENERATION_UNSEEN: Final = (1 << 32) + 1  # above any that readers may have seen


class AcceptedLoss(NamedTuple):
    """Offsets of a topic that the operator gives up, `first` up to but not including `end`."""

    topic: TableName
    partition: int
    first: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"


class Hole(NamedTuple):
    """Offsets that are lost, with the name of their stream."""

    name: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was done, or would be."""

    rewritten: list[Path] = field(default_factory=list)
    kept_aside: list[Path] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)


def repair(
    files: Files,
    layout: LogLayout,
    accepted: Sequence[AcceptedLoss],
    *,
    accept_unknown: bool = False,
    dry_run: bool,
) -> RepairReport:
    """Write damaged segments anew. Raises Conflict, changing nothing, unless every lost offset
    is accepted; `accept_unknown` also gives up what nothing in the log tells of: a newest segment
    that cannot be read at all, and offsets that may have been in a damaged part of it."""
    _require_offsets(accepted)
    accepted = _joined(accepted)
    with _repairing(files, layout):
        found = Surveyor(files, layout).survey()
        _require_known_format(found)
        _require_known_loss(found, accept_unknown=accept_unknown)
        _lose_what_comes_next(found, accepted)
        _require_accepted(found, accepted)
        _lose_what_is_doubtful(found, accepted)
        report = _plan(files, layout, found)
        if not dry_run:
            _Repair(files, layout, found).run()
        return report


@contextmanager
def _repairing(files: Files, layout: LogLayout) -> Iterator[None]:
    """Nobody else writes meanwhile. What the disk refuses halfway can be repaired again."""
    with translating(layout.root, "repaired"):
        lock = lock_log(files, layout)
        try:
            yield
        finally:
            lock.release()


def give_up(
    files: Files, layout: LogLayout, accepted: Sequence[AcceptedLoss], *, dry_run: bool
) -> None:
    """Record offsets behind the end of whole streams as lost: the log is older than its tables.

    All of them or none: NotFound for a stream that is not there, Conflict for other offsets than
    those that come next.
    """
    _require_offsets(accepted)
    if dry_run:
        with _repairing(files, layout):
            found = Surveyor(files, layout).survey()
            _require_next({found.name(each): end for each, end in found.ends.items()}, accepted)
        return
    with Log(layout.root, LogOptions(free_bytes_min=0), files=files, background=False) as log:
        _require_next({each.name: log.next_offset(each) for each in log.streams}, accepted)
        for one in accepted:
            log.record_hole(log.stream(one.topic, one.partition), one.first, one.end)


def _joined(accepted: Sequence[AcceptedLoss]) -> list[AcceptedLoss]:
    """One loss for those of a topic that follow each other: what is lost is told in one, too."""
    joined: list[AcceptedLoss] = []
    for one in sorted(accepted, key=lambda each: (each.name, each.first)):
        if joined and joined[-1].name == one.name and one.first <= joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(joined[-1].end, one.end))
        else:
            joined.append(one)
    return joined


def _require_offsets(accepted: Sequence[AcceptedLoss]) -> None:
    for one in accepted:
        if one.end > OFFSET_MAX:
            raise InvalidRequest(f"offset {one.end} is too large, {OFFSET_MAX} is the largest")


def _require_next(ends: dict[str, int], accepted: Sequence[AcceptedLoss]) -> None:
    """Refuse what cannot be recorded, one after the other, in streams that end there."""
    for one in accepted:
        end = ends.get(one.name)
        if end is None:
            raise NotFound(
                f"the log has no topic {one.topic} with partition {one.partition}",
                hint="`calve wal inspect` shows what it has",
            )
        if one.first != end:
            raise Conflict(
                f"{one.name} ends at {end}, so {one.first}..{one.end} cannot be recorded as lost",
                hint="give up what comes next: from there on",
            )
        ends[one.name] = one.end


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


def _lose_what_is_doubtful(found: Survey, accepted: Sequence[AcceptedLoss]) -> None:
    """Offsets that rows may have had are never given to others. An accepted loss that begins
    at a stream's end says how many they were; else as many count as lost as can have been."""
    told = {
        number
        for number, end in found.ends.items()
        if any(one.name == found.name(number) and one.first <= end < one.end for one in accepted)
    }
    for damage in found.damages:
        damage.lost += [one for one in damage.doubtful if one.stream not in told]


def _require_known_format(found: Survey) -> None:
    for segment in found.segments:
        if segment.is_foreign:
            raise Conflict(
                f"{segment.path}: {segment.damages[0].reason}",
                hint="it is not damaged: open it with the version of Calve that wrote it",
                context={"file": str(segment.path)},
            )


def _require_known_loss(found: Survey, *, accept_unknown: bool) -> None:
    """What a segment held is known from those around it; at either end there may be none."""
    unknown = [damage for damage in found.damages if not damage.is_loss_known]
    if not unknown or accept_unknown:
        return
    damage = unknown[0]
    if damage.doubtful:
        names = [found.name(one.stream) for one in damage.doubtful]
        more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
        raise Conflict(
            f"{damage.path}: several frames are destroyed behind byte {damage.begin}, and nothing "
            f"tells whether rows of {', '.join(names[:_NAMES_MAX])}{more} were among them",
            hint=f"bring back the file from a copy, or `calve wal repair {' '.join(found.flags)}`: "
            "then these topics go on behind every offset that may have been given",
            context={"file": str(damage.path)},
        )
    raise Conflict(
        f"{damage.path} cannot be read at all, so nobody knows which offsets it held",
        hint="bring back the file from a copy, or `calve wal repair --accept-unknown`: a "
        "table that has committed more than is left will ask for --accept-loss",
        context={"file": str(damage.path)},
    )


def _require_accepted(found: Survey, accepted: Sequence[AcceptedLoss]) -> None:
    open_losses = [lost for lost in found.lost if not _is_accepted(found, lost, accepted)]
    if open_losses:
        named = [found.describe(lost) for lost in open_losses]
        raise Conflict(
            f"the repair would lose {', '.join(named)}",
            hint="bring back the damaged file from a copy, or accept it: "
            f"`calve wal repair {' '.join(found.flags)}`",
            context={"lost": ",".join(named)},
        )


def _is_accepted(found: Survey, lost: LostRange, accepted: Sequence[AcceptedLoss]) -> bool:
    name = found.name(lost.stream)
    return any(
        one.name == name and one.first <= lost.first and lost.end <= one.end for one in accepted
    )


def _plan(files: Files, layout: LogLayout, found: Survey) -> RepairReport:
    damaged = [segment.path for segment in found.segments if segment.damages]
    there = [segment.path for segment in found.segments if not segment.is_missing]
    aside = [aside_path(layout, path, files.map(path)) for path in damaged if path in there]
    holes = [Hole(found.name(lost.stream), lost.first, lost.end) for lost in found.lost]
    return RepairReport(damaged, aside, holes)


def aside_path(layout: LogLayout, path: Path, content: memoryview) -> Path:
    """Named after what is in it: each file that a repair replaces is kept, and once."""
    return layout.aside / f"{path.name}.{checksum(content):016x}"


class _Before(NamedTuple):
    """The segment before, as it is after the repair; its state is made only when it is needed."""

    link: int
    state: Callable[[], LogState]


def _state_of(draft: SegmentDraft) -> LogState:
    return draft.state


class _Repair:
    def __init__(self, files: Files, layout: LogLayout, found: Survey) -> None:
        self._files = files
        self._layout = layout
        self._found = found
        self._log_id = read_identity(files, layout).log_id
        # Before anything is rewritten, and lies elsewhere then.
        self._schemas = {s.number: self._find_schemas(s) for s in found.segments if s.damages}

    def run(self) -> None:
        before: _Before | None = None
        for segment, following in zip_longest(self._found.segments, self._found.segments[1:]):
            if segment.damages:
                draft = self._draft(segment, before, following.header if following else None)
                self._replace(segment, draft)
                before = _Before(draft.link, partial(_state_of, draft))
            else:
                before = _Before(self._link(segment), partial(self._end_state, segment))

    def _link(self, segment: SegmentSurvey) -> int:
        assert segment.header is not None
        return find_link(self._files.map(segment.path), segment.header) or 0

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

    def _draft(
        self, segment: SegmentSurvey, before: _Before | None, following: SegmentHeader | None
    ) -> SegmentDraft:
        start = segment.state or self._start_state(segment, before)
        header = self._header(segment, before, following)
        header = header._replace(created_at_us=max(header.created_at_us, start.last_time_us))
        draft = SegmentDraft(segment, start, header, self._found.names)
        draft.copy_frames(self._view(segment), self._schemas[segment.number])
        return draft

    def _start_state(self, segment: SegmentSurvey, before: _Before | None) -> LogState:
        if before is not None:
            return before.state()
        return LogState() if segment.number == 1 else self._state_from_next(segment)

    def _header(
        self, segment: SegmentSurvey, before: _Before | None, following: SegmentHeader | None
    ) -> SegmentHeader:
        """The old header, or what can be known of it, with what ties the file to its place."""
        old = segment.header or SegmentHeader(self._log_id, segment.number, 0, 0)
        durable = self._found.durable
        return old._replace(
            salt=new_salt(),
            previous=old.previous or (before.link if before else 0),
            answers_to=following.previous if following else 0,
            replaces=durable.salt if segment.number == durable.segment else old.salt,
        )

    def _view(self, segment: SegmentSurvey) -> memoryview:
        return memoryview(b"") if segment.is_missing else self._files.map(segment.path)

    def _replace(self, segment: SegmentSurvey, draft: SegmentDraft) -> None:
        self._keep_aside(segment)
        _write_file(self._files, segment.path, draft.finish())
        self._point_durable_at(draft)

    def _find_schemas(self, segment: SegmentSurvey) -> dict[int, bytes]:
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

    def _keep_aside(self, segment: SegmentSurvey) -> None:
        if segment.is_missing:
            return
        view = self._view(segment)
        self._files.make_directory(self._layout.aside)
        path = aside_path(self._layout, segment.path, view)
        if not self._files.exists(path):
            _write_file(self._files, path, bytes(view))

    def _point_durable_at(self, draft: SegmentDraft) -> None:
        durable = DurableFile.open(self._files, self._layout.durable)
        try:
            if durable.end.segment == draft.header.number:
                durable.persist(
                    durable.end._replace(
                        salt=draft.header.salt, position=draft.position, last_position=0
                    )
                )
        finally:
            durable.close()


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
    """Write the durable end again, from the segments that are there and what is left of it."""
    with _repairing(files, layout):
        numbers = segment_numbers(files, layout)
        if not numbers:
            raise Corruption(f"{layout.root} holds no segment", hint="bring back the directory")
        chain = SegmentChain(files, layout, read_identity(files, layout).log_id)
        header = _newest_header(files, layout, chain, numbers[-1])
        if len(numbers) > 1:
            # What is missing or damaged is for `verify`, which needs a durable end to begin with.
            with suppress(FileNotFoundError, Corruption):
                chain.require_continues(header)
        end = _durable_again(files, layout, numbers[0], header)
        if files.exists(temporary(layout.durable)):
            files.unlink(temporary(layout.durable))
        DurableFile.create(files, layout.durable, end)
        files.sync_directory(layout.root)
        return end


def _newest_header(
    files: Files, layout: LogLayout, chain: SegmentChain, number: int
) -> SegmentHeader:
    """The header, or what its frames tell of it; with a salt that no file has if there are none."""
    found = find_header(files.map(layout.segment(number)), chain.log_id, number)
    if found is None:
        return SegmentHeader(chain.log_id, number, new_salt(), 0)
    chain.require_own(found, number)
    return found


def _durable_again(
    files: Files, layout: LogLayout, first: int, newest: SegmentHeader
) -> DurableEnd:
    """What the old file proves of the newest segment stays: without it, damage at the log's end
    would look like a torn tail."""
    unknown = DurableEnd(_GENERATION_UNSEEN, first, newest.number, newest.salt, 0)
    try:
        old = read_durable(files, layout.durable)
    except Corruption:
        return unknown
    if (old.segment, old.salt) == (newest.number, newest.salt):
        return old._replace(generation=old.generation + 1, first_segment=first)
    return unknown._replace(generation=old.generation + 1)


def rewrite_identity(files: Files, layout: LogLayout, now: datetime) -> LogIdentity:
    """Write who the log is again, from what its segments say."""
    with _repairing(files, layout):
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
        return identity


def _log_id(files: Files, path: Path) -> UUID:
    try:
        return read_segment_header(files.map(path)).log_id
    except BadSegment as error:
        raise Corruption(f"{path} is damaged: {error.reason}") from error


def adopt(files: Files, layout: LogLayout) -> LogIdentity:
    """Let a copy take the place of its original, which must never be written again."""
    with translating(layout.root, "repaired"):
        if not files.exists(layout.lock):
            files.create(layout.lock).close()
    with _repairing(files, layout):
        found = read_identity(files, layout)
        identity = LogIdentity(
            log_id=found.log_id, place=files.place(layout.lock), created_at=found.created_at
        )
        write_identity(files, layout, identity)
        files.sync_directory(layout.root)
        return identity


def parse_loss(text: str) -> tuple[str | None, int, int]:
    """`A..B` or `NAME:A..B`."""
    name, colon, numbers = text.rpartition(":")
    found = _RANGE.fullmatch(numbers)
    first, end = (int(found[1]), int(found[2])) if found else (0, 0)
    if first >= end:
        raise InvalidRequest(
            f"{text!r} is not a range of offsets", hint="write A..B: from A up to, not including, B"
        )
    return (name if colon else None), first, end
