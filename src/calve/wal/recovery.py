"""Opening a log: from whatever a crash left to exactly a prefix that holds every acknowledged row.

Only the newest segment is read, so opening costs the same whatever the log's size. A torn tail is
cut before anything is appended. Whatever else is not as it should be raises Corruption or
Conflict and changes nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID, uuid4

from calve.errors import Conflict, Corruption
from calve.wal.chain import SegmentChain
from calve.wal.durable import DurableEnd, DurableFile, read_durable
from calve.wal.frame import Previous, UnknownFormat
from calve.wal.identity import (
    LogIdentity,
    read_identity,
    require_log,
    require_same_place,
    write_identity,
)
from calve.wal.index import SegmentIndex
from calve.wal.layout import TEMPORARY, LogLayout, is_own, segment_number, segment_numbers
from calve.wal.scan import Walk, proof_of_damage
from calve.wal.segment import (
    BadSegment,
    SegmentHeader,
    damaged,
    index_position,
    read_link,
    read_segment_header,
    read_start,
)
from calve.wal.state import LogState, NotDense
from calve.wal.writer import (
    OpenSegment,
    SegmentEnd,
    create_segment,
    next_header,
    preallocate,
    sync,
    write_buffers,
)

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from calve.wal.files import File, FileLock, Files
    from calve.wal.options import LogOptions


_AGAIN_BYTES: Final = 1 << 26  # at a time: a system reads less than 2 GiB at once


@dataclass(slots=True)
class OpenedLog:
    """Everything a writer goes on with."""

    identity: LogIdentity
    lock: FileLock
    durable: DurableFile
    state: LogState
    segment: OpenSegment
    first_segment: int
    sealed_bytes: int


class Recovered(NamedTuple):
    """The newest segment as it was found, up to its last whole append."""

    header: SegmentHeader
    state: LogState
    end: SegmentEnd
    starts_at: int
    is_sealed: bool
    link: int | None


def lock_log(files: Files, layout: LogLayout) -> FileLock:
    if not files.exists(layout.lock):
        raise Corruption(
            f"{layout.lock} is missing",
            hint="if no other process writes this log, `calve wal repair --adopt` makes it again",
            context={"file": str(layout.lock)},
        )
    lock = files.lock(layout.lock)
    if lock is None:
        raise Conflict(
            f"{layout.root} has a writer already",
            hint="one process at a time writes a log; stop the other one first",
            context={"writer": "another"},
        )
    return lock


def exists(files: Files, layout: LogLayout) -> bool:
    """Whether a log was ever finished here. What a crash left of making one does not count."""
    if not files.exists(layout.root):
        return False
    if files.exists(layout.identity):
        return True
    segments = segment_numbers(files, layout)
    if not segments:
        if files.exists(layout.durable):  # it comes after the first segment, and goes before it
            require_all_segments(layout, [], read_durable(files, layout.durable))
        return False
    if segments == [1] and _was_never_used(files, layout):
        return False
    read_identity(files, layout)  # raises: the file is missing, and rows are there
    return True


def _was_never_used(files: Files, layout: LogLayout) -> bool:
    """Whether a crash left it while the log was made: a first segment without a frame, and a
    durable end that speaks of no other and of nothing more, if there is one yet."""
    view = files.map(layout.segment(1))
    try:
        header = read_segment_header(view)
        start = read_start(view, header.salt)
    except BadSegment:
        return False
    begin = start.frames_from
    synced = begin
    if files.exists(layout.durable):
        try:
            end = read_durable(files, layout.durable)
        except Corruption:
            return False  # it is put in its place whole
        if (end.segment, end.salt) != (1, header.salt):
            return False
        synced = end.position
    is_empty = not any(Walk(view, begin, header.salt))
    return is_empty and proof_of_damage(view, begin, header.salt, synced) is None


def create_log(files: Files, layout: LogLayout, options: LogOptions, now: datetime) -> None:
    """Make a new log. Its identity is written last: before that, there is no log."""
    files.make_directory(layout.root)
    if not files.exists(layout.lock):
        files.create(layout.lock).close()
    lock = lock_log(files, layout)
    try:
        _create_locked(files, layout, options, now)
    finally:
        lock.release()


def _create_locked(files: Files, layout: LogLayout, options: LogOptions, now: datetime) -> None:
    if exists(files, layout):
        return  # somebody made it between the look and the lock
    if files.exists(layout.durable):
        files.unlink(layout.durable)
        files.sync_directory(layout.root)
    for name in files.names(layout.root):
        if is_own(name):  # whatever else lies here is somebody's
            files.unlink(layout.root / name)
    files.sync_directory(layout.root)
    identity = LogIdentity(log_id=uuid4(), place=files.place(layout.lock), created_at=now)
    header = next_header(identity.log_id, 1, _microseconds(now))
    segment = create_segment(files, layout, header, LogState(), options.segment_bytes_max)
    end = segment.durable_end(1)
    segment.close()
    DurableFile.create(files, layout.durable, end._replace(generation=1))
    files.sync_directory(layout.root)  # the names before the one that makes it a log
    write_identity(files, layout, identity)
    files.sync_directory(layout.root)


def open_log(
    files: Files, layout: LogLayout, options: LogOptions, expected: UUID | None
) -> OpenedLog:
    lock = lock_log(files, layout)
    try:
        return _open_locked(files, layout, options, expected, lock)
    except BaseException:
        lock.release()
        raise


def _open_locked(
    files: Files, layout: LogLayout, options: LogOptions, expected: UUID | None, lock: FileLock
) -> OpenedLog:
    identity = read_identity(files, layout)
    if expected is not None:
        require_log(layout, identity.log_id, expected)
    require_same_place(files, layout, identity)
    end = read_durable(files, layout.durable)
    found, first = _find_end(files, layout, options, identity, end)
    _tidy(files, layout, end)
    with ExitStack() as undo:
        durable = DurableFile.open(files, layout.durable)
        undo.callback(durable.close)
        if found.is_sealed:
            _sync_seal(files, layout.segment(found.header.number), found, end)
            durable.persist(_sealed_end(found, first))
        segment = _go_on(files, layout, options, found, end)
        undo.callback(segment.close)
        durable.persist(segment.durable_end(first))
        sealed_bytes = _sealed_bytes(files, layout, segment)
        undo.pop_all()
    return OpenedLog(identity, lock, durable, found.state, segment, first, sealed_bytes)


def _sealed_bytes(files: Files, layout: LogLayout, segment: OpenSegment) -> int:
    sizes = files.sizes(layout.root).items()
    return sum(
        size
        for name, size in sizes
        if segment_number(name) is not None and name != segment.path.name
    )


def _find_end(
    files: Files, layout: LogLayout, options: LogOptions, identity: LogIdentity, end: DurableEnd
) -> tuple[Recovered, int]:
    """The newest segment and the first one's number. Looks at everything and changes nothing."""
    chain = SegmentChain(files, layout, identity.log_id)
    numbers = segment_numbers(files, layout)
    require_all_segments(layout, [n for n in numbers if n >= end.first_segment], end)
    found = recover(files, layout, chain, numbers[-1], end, options.producers_max)
    if found.header.number > end.segment:
        # A crash came between its name and the durable end, which vouches for the one before.
        _require_spoken_of(layout, chain.require_continues(found.header), end)
    return found, chain.first_segment(numbers, end)


def _tidy(files: Files, layout: LogLayout, end: DurableEnd) -> None:
    """Remove what a crash left half made; no segment: that only retention does.

    The durable file is made anew, because after a failed sync its pages may be clean in the cache
    and not on the disk: then one torn write would leave no slot that is near the log's end.
    """
    for name in files.names(layout.root):
        if is_own(name) and name.endswith(TEMPORARY):
            files.unlink(layout.root / name)
    DurableFile.create(files, layout.durable, end)
    # The last writer may have stopped because just this failed.
    files.sync_directory(layout.root)


def _go_on(
    files: Files, layout: LogLayout, options: LogOptions, found: Recovered, end: DurableEnd
) -> OpenSegment:
    if found.is_sealed:
        return _begin_next(files, layout, options, found)
    return _reopen(files, layout.segment(found.header.number), found, end, options)


def _begin_next(
    files: Files, layout: LogLayout, options: LogOptions, found: Recovered
) -> OpenSegment:
    """Go on behind a sealed segment, as the writer that sealed it would have."""
    old = found.header
    header = next_header(
        old.log_id, old.number + 1, found.state.last_time_us, previous=found.link or 0
    )
    return create_segment(files, layout, header, found.state, options.segment_bytes_max)


def require_all_segments(layout: LogLayout, numbers: list[int], end: DurableEnd) -> None:
    if end.first_segment > end.segment:
        raise Corruption(
            f"{layout.durable} says that the log begins behind its end",
            hint="`calve wal repair --durable` writes it again",
            context={"file": str(layout.durable)},
        )
    newest = max(end.segment, numbers[-1] if numbers else 0)
    missing = sorted(set(range(end.first_segment, newest + 1)) - set(numbers))
    if missing:
        raise Corruption(
            f"{layout.segment(missing[0])} is missing",
            hint="bring the file back, or see `calve wal verify` for what is lost with it",
            context={"missing": ",".join(str(number) for number in missing)},
        )
    if newest > end.segment + 1:
        raise Corruption(
            f"{layout.durable} speaks of segment {end.segment}, but {newest} is there",
            hint="the file is older than the log: `calve wal repair --durable` writes it again",
            context={"file": str(layout.durable)},
        )


def recover(
    files: Files,
    layout: LogLayout,
    chain: SegmentChain,
    number: int,
    durable: DurableEnd,
    producers_max: int,
) -> Recovered:
    """Read a segment to its end. Raises Corruption for anything but a torn tail."""
    path = layout.segment(number)
    view = files.map(path)
    header = chain.own_header(number, view)
    try:
        start = read_start(view, header.salt)
    except BadSegment as error:
        raise damaged(path, error.position, error.reason) from error
    state = LogState.decode(start.state, producers_max)
    walk = Walk(view, start.frames_from, header.salt)
    end = _replay(walk, state, path)
    is_sealed = index_position(view, header.salt) is not None and walk.index_at == walk.end
    synced = durable.position if (number, header.salt) == (durable.segment, durable.salt) else 0
    if isinstance(walk.stop, UnknownFormat):
        raise damaged(path, walk.end, walk.stop.reason)
    if number == durable.segment:
        _require_spoken_of(layout, header, durable, is_sealed=is_sealed)
    if not is_sealed:
        proof = proof_of_damage(view, walk.end, header.salt, synced)
        if proof is not None:
            reason = walk.stop.reason if walk.stop else "nothing is written here"
            raise damaged(path, walk.end, f"{reason}, yet {proof}")
    seal = read_link(view, header) if is_sealed else None
    return Recovered(header, state, end, start.frames_from, is_sealed, seal)


def _require_spoken_of(
    layout: LogLayout, header: SegmentHeader, durable: DurableEnd, *, is_sealed: bool = True
) -> None:
    """Only a repair puts another file in a segment's place, and that one is sealed."""
    if header.salt != durable.salt and not (is_sealed and header.replaces == durable.salt):
        path = layout.segment(header.number)
        raise damaged(path, 0, f"it is not the file that {layout.durable} speaks of")


def _replay(walk: Walk, state: LogState, path: Path) -> SegmentEnd:
    index = SegmentIndex()
    previous = Previous()
    for append in walk:
        for frame in append:
            try:
                state.apply_frame(frame)
            except NotDense as error:
                raise damaged(path, frame.header.position, str(error)) from error
            index.add(frame.header)
            if frame.header.takes_offsets:
                header = frame.header
                previous = Previous(header.stream, header.end_offset, header.position)
    return SegmentEnd(walk.end, index, previous)


def _reopen(
    files: Files, path: Path, found: Recovered, durable: DurableEnd, options: LogOptions
) -> OpenSegment:
    """Cut the tail, and make sure of what is left."""
    file = files.open(path)
    try:
        file.truncate(found.end.position)
        _write_again(file, found, durable)
        preallocate(file, options.segment_bytes_max)
        sync(file)
    except BaseException:
        file.close()
        raise
    segment = OpenSegment(file, path, found.header, found.end)
    segment.starts_at = found.starts_at
    return segment


def _sync_seal(files: Files, path: Path, found: Recovered, durable: DurableEnd) -> None:
    """A crash came between the seal and the next segment: the seal may not be on the disk."""
    file = files.open(path)
    try:
        _write_again(file, found, durable)
        sync(file)
    finally:
        file.close()


def _sealed_end(found: Recovered, first_segment: int) -> DurableEnd:
    """What is sealed is synced. The durable end must say so before there is a next segment: after
    a repair it may still speak of the one before, and would then be two behind."""
    header, end = found.header, found.end
    place = (header.number, header.salt, end.position)
    return DurableEnd(0, first_segment, *place, *end.previous)


def _write_again(file: File, found: Recovered, durable: DurableEnd) -> None:
    """Write what is not known to be synced once more.

    After a failed sync the kernel may hold pages as clean that never reached the disk; only what
    is written again, the length too, is surely synced by the next sync.
    """
    position = durable.position if found.header.salt == durable.salt else 0
    file.truncate(file.size())
    while again := file.read_at(position, min(file.size() - position, _AGAIN_BYTES)):
        write_buffers(file, position, [again])
        position += len(again)


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)
