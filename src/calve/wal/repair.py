"""The operator's way out of damage: give up what is lost, in writing, and go on.

A damaged segment is kept aside as it is and written anew from its whole frames, with a hole where
offsets are lost; every reader meets the hole and reports it. Nothing is given up that was not
accepted by name. Works on a log that nobody writes; a crash leaves the old segment or the new.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from calve.errors import Conflict, Corruption, InvalidRequest, NotFound
from calve.wal.chain import SegmentChain, find_header
from calve.wal.durable import DurableEnd, DurableFile, read_durable
from calve.wal.files import translating
from calve.wal.frame import Kind
from calve.wal.group import OFFSET_MAX
from calve.wal.identity import LogIdentity, read_identity, write_identity
from calve.wal.layout import segment_numbers, temporary
from calve.wal.log import Log
from calve.wal.options import LogOptions
from calve.wal.reader import LogReader
from calve.wal.recovery import lock_log
from calve.wal.rewrite import Rewrite, aside_path
from calve.wal.segment import (
    BadSegment,
    SegmentHeader,
    new_salt,
    read_segment_header,
)
from calve.wal.survey import Damage, LostRange, Survey, Surveyor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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

    def __str__(self) -> str:
        return f"{self.name}:{self.first}..{self.end}"


class Hole(NamedTuple):
    """Offsets that are lost, with the name of their stream."""

    name: str
    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.name}:{self.first}..{self.end}"


class LeftOut(NamedTuple):
    """Whole frames of streams that nothing names any more: nobody could ask for their rows."""

    streams: int = 0
    frames: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was done, or would be."""

    rewritten: list[Path] = field(default_factory=list)
    kept_aside: list[Path] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)


def repair(
    files: Files,
    layout: LogLayout,
    accepted: Sequence[AcceptedLoss],
    *,
    accept_unknown: bool = False,
    dry_run: bool,
) -> RepairReport:
    """Write damaged segments anew. Raises Conflict, changing nothing, unless every lost offset
    is accepted; `accept_unknown` also gives up what nothing in the log tells of: a segment at an
    end of it that cannot be read at all, offsets that may have been in a damaged part, and rows of
    streams whose name is lost."""
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
        rewrite = Rewrite(files, layout, found)
        drafts = rewrite.draft()
        if not dry_run:
            rewrite.replace(drafts)
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


def is_recorded(files: Files, layout: LogLayout, loss: AcceptedLoss) -> bool:
    """Whether all of it is a hole in the log already, so that there is nothing to give up."""
    with LogReader(layout.root, files=files) as reader:
        try:
            stream = reader.stream(loss.topic, loss.partition)
        except NotFound:
            return False
        offsets = reader.offsets(stream)
        if loss.first < offsets.first or offsets.durable < loss.end:
            return False
        entries = reader.read(stream, loss.first, loss.end)
        return all(entry.kind == Kind.HOLE for entry in entries)


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
    raise Conflict(
        f"{damage.path}: {_why_unknown(found, damage)}",
        hint=f"bring back the file from a copy, or `calve wal repair {' '.join(found.flags)}`: "
        f"{_what_follows(damage)}",
        context={"file": str(damage.path)},
    )


def _why_unknown(found: Survey, damage: Damage) -> str:
    if damage.nameless:
        count, frames, rows = _left_out(found)
        return (
            f"what opened {count} of its topics is destroyed, and nothing else tells their names; "
            f"{rows} rows of them, in {frames} frames, are still there"
        )
    if damage.doubtful:
        names = [found.name(one.stream) for one in damage.doubtful]
        more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
        return (
            f"several frames are destroyed behind byte {damage.begin}, and nothing "
            f"tells whether rows of {', '.join(names[:_NAMES_MAX])}{more} were among them"
        )
    return "it cannot be read at all, so nobody knows which offsets it held"


def _left_out(found: Survey) -> LeftOut:
    streams = {stream for damage in found.damages for stream in damage.nameless}
    frames = [
        header
        for segment in found.segments
        for header in segment.frames
        if header.takes_offsets and header.stream in streams
    ]
    rows = sum(header.end_offset - header.first_offset for header in frames)
    return LeftOut(len(streams), len(frames), rows)


def _what_follows(damage: Damage) -> str:
    if damage.nameless:
        return "then these rows are only in the file that is kept aside, and all other topics go on"
    if damage.doubtful:
        return "then these topics go on behind every offset that may have been given"
    return "a table that has committed more than is left will ask for --accept-loss"


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
    return RepairReport(damaged, aside, holes, _left_out(found))


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
