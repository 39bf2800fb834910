"""Holds a topic's log against its table: whether they belong together, follow each other, agree.

Both may be written meanwhile. The durable offset only grows, so it is held against the committed
offset that was read before it; what the log begins with follows the committed offset, so it is held
against the one read after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from calve.errors import Conflict, Corruption, NotFound
from calve.maintenance.verification import LogState, told
from calve.model import TableName
from calve.tables.positions import Position
from calve.tables.ranges import Ranges
from calve.tables.runs import Runs
from calve.wal import Claim, Kind, LogReader, Offsets, OsFiles, Stream
from calve.wal.identity import require_stream
from calve.wal.layout import LogLayout, is_log

if TYPE_CHECKING:
    from calve.maintenance.bound_log import BoundStream

_HEX: Final = 16
# Why a log cannot be opened.
Damage: TypeAlias = Conflict | Corruption


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where to look for a topic's log: in a directory that was given, or else where the lake's own
    is. `bound` are the streams that this must have."""

    given: Path | None = None
    own: Path | None = None
    bound: Callable[[TableName], Mapping[int, BoundStream]] = lambda _: {}


@contextmanager
def opened_log(topic: TableName, at: Whereabouts) -> Iterator[TopicLog | None]:
    """The topic's log; None if it is the lake's own, which neither has the topic nor must have it.

    One that cannot be opened is told of by `check`. NotFound if there is none where one was given.
    """
    place = at.given or at.own
    if place is None:
        yield None
        return
    bound = at.bound(topic)
    with _reader(place, is_given=at.given is not None) as found:
        log = TopicLog(place, found, topic, bound, must_be_there=at.given is None)
        yield log if log.partitions or at.given is not None else None


@contextmanager
def _reader(place: Path, *, is_given: bool) -> Iterator[LogReader | Damage | None]:
    if not is_given and not is_log(OsFiles(), LogLayout(place)):
        yield None
        return
    try:
        opened = LogReader(place)
    except (Conflict, Corruption) as error:
        yield error
        return
    with opened as reader:
        yield reader


class TopicLog:
    """The streams of one topic in a log, and those that the registry says are `bound` to it."""

    def __init__(
        self,
        place: Path,
        found: LogReader | Damage | None,
        topic: TableName,
        bound: Mapping[int, BoundStream],
        *,
        must_be_there: bool = True,
    ) -> None:
        self._place = place
        self._damage = None if isinstance(found, LogReader) else found
        self._open = found if isinstance(found, LogReader) else None
        streams = self._open.streams if self._open else ()
        self._streams = {each.partition: each for each in streams if each.topic == topic}
        self._known = bound
        self._bound = bound if must_be_there else {}
        self._topic = topic

    @property
    def partitions(self) -> set[int]:
        """Those of the topic; the first one for a log that cannot say which it has."""
        known = {*self._streams, *self._bound}
        return known or ({0} if self._damage else set())

    @property
    def _reader(self) -> LogReader:
        assert self._open is not None
        return self._open

    def check(
        self, partition: int, before: Position | None, newest: Callable[[], Position | None]
    ) -> LogState | None:
        """Hold the log against a position that was read before, and against the newest one.

        None if it has the topic's other partitions alone: this one is another ingest process's.
        """
        stream = self._streams.get(partition)
        bound = self._bound.get(partition)
        if self._damage is not None:
            is_elsewhere = bool(self._bound) and bound is None
            return None if is_elsewhere else LogState(None, None, (told(self._damage),))
        if bound is not None and (stream is None or stream.id != bound.stream_id):
            return LogState(None, None, (self._missing(partition, bound, before),))
        if stream is None and self.partitions:
            return None
        if stream is None:
            absent = (f"the log has no topic {self._topic} with partition {partition}",)
            return LogState(None, None, absent if before is not None else ())
        return self._checked(stream, before, newest)

    def _checked(
        self, stream: Stream, before: Position | None, newest: Callable[[], Position | None]
    ) -> LogState:
        first: int | None = None
        durable: int | None = None
        problems: list[str] = []
        holes: list[tuple[int, int]] = []
        with _noted(problems):
            self._reader.refresh()
            offsets = first, durable = self._reader.offsets(stream)
            self._require_same(stream, offsets, before, newest())
            if before is not None:
                self._reader.require_content(stream, self._claim(stream, before))
            start = before.offset if before else 0
            holes.extend(self._tail_holes(stream, start, offsets.durable))
        lost = Ranges.of_runs(Runs.of_pairs(holes))
        return LogState(first, durable, tuple(problems), lost.ranges)

    def holes(self, partition: int, wanted: Runs) -> Runs:
        """The offsets among those wanted that the log knows to be lost."""
        stream = self._streams.get(partition)
        if stream is None:
            return Runs.empty()
        found: list[tuple[int, int]] = []
        for range_ in Ranges.of_runs(wanted):
            found.extend(self._holes(stream, range_.first, range_.end))
        return Runs.of_pairs(found)

    def _holes(self, stream: Stream, first: int, end: int) -> Iterator[tuple[int, int]]:
        try:
            begins, durable = self._reader.offsets(stream)
            for entry in self._reader.read(stream, max(first, begins), min(end, durable)):
                if entry.kind == Kind.HOLE:
                    yield entry.first_offset, entry.end_offset
        except (NotFound, Corruption):
            # What went meanwhile or cannot be read explains nothing; `check` tells of damage.
            return

    def _missing(self, partition: int, bound: BoundStream, before: Position | None) -> str:
        if self._open is None:
            found = "where no log is"
        elif self._open.log_id != bound.log_id:
            found = f"where log {self._open.log_id} is"
        else:
            found = "which is older than the registry, or newer"
        return (
            f"the log is missing: partition {partition} of topic {self._topic} is in stream "
            f"{bound.stream_id} of log {bound.log_id}, which should be in {self._place}, {found}; "
            f"rows from offset {before.offset if before else 0} on cannot be accounted for (bring "
            "that directory back; if it is lost for good, "
            f"`calve topic alter {self._topic} --new-log` goes on where the table ends)"
        )

    def _require_same(
        self, stream: Stream, offsets: Offsets, before: Position | None, after: Position | None
    ) -> None:
        if before is not None:
            first = min(offsets.first, before.offset)
            claim = self._claim(stream, before)
            require_stream(stream, claim, first=first, durable=offsets.durable)
        claim = self._claim(stream, after) if after else Claim(stream.id, 0)
        committed = claim.committed or 0
        durable = max(offsets.durable, committed)
        require_stream(stream, claim, first=offsets.first, durable=durable)

    def _claim(self, stream: Stream, position: Position) -> Claim:
        """What a table remembers of a stream, or of the one that this has taken over from.

        As the pipeline has it: somebody has decided so, and it begins where the table ended.
        """
        known = self._known.get(stream.partition)
        begins_at = known.begins_at if known and known.stream_id == stream.id else None
        if begins_at == position.offset == stream.first_offset and position.log != stream.id:
            return Claim(stream.id, position.offset)
        return Claim(position.log, position.offset, _number(position.checksum))

    def _tail_holes(self, stream: Stream, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Read the tail, which must be without a gap; the holes in it."""
        expected = start
        try:
            for entry in self._reader.read(stream, start, end):
                if entry.first_offset != expected:
                    raise Conflict(
                        f"{stream.name} goes on with offset {entry.first_offset} in the log, "
                        f"and {expected} was expected"
                    )
                expected = entry.end_offset
                if entry.kind == Kind.HOLE:
                    yield entry.first_offset, entry.end_offset
        except NotFound:
            # They are in the table by now, and the log has let go of them.
            return


def _number(checksum: str) -> int | None:
    try:
        return int(checksum, _HEX)
    except ValueError:
        return None


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except (Conflict, Corruption) as error:
        problems.append(told(error))
