"""Holds a topic's log against its table: whether they belong together, follow each other, agree.

Both may be written meanwhile. The durable offset only grows, so it is held against the committed
offset that was read before it; what the log begins with follows the committed offset, so it is held
against the one read after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from calve.errors import CalveError, Conflict, Corruption, NotFound
from calve.maintenance.verification import LogState
from calve.model import TableName
from calve.tables.positions import Position
from calve.tables.ranges import Ranges
from calve.tables.runs import Runs
from calve.wal import Claim, Kind, LogReader, Offsets, OsFiles, Stream
from calve.wal.identity import require_stream
from calve.wal.layout import LogLayout, is_log

_HEX: Final = 16


@contextmanager
def opened_log(
    topic: TableName, given: Path | None = None, own: Path | None = None
) -> Iterator[TopicLog | None]:
    """The log in the directory that was given, or the lake's own, if it is there and has the topic.

    NotFound if there is none where one was given.
    """
    place = given or own
    if place is None or (given is None and not is_log(OsFiles(), LogLayout(place))):
        yield None
        return
    with LogReader(place) as reader:
        found = TopicLog(reader, topic)
        yield found if given or found.partitions else None


class TopicLog:
    """The streams of one topic in a log."""

    def __init__(self, reader: LogReader, topic: TableName) -> None:
        self._reader = reader
        self._streams = {each.partition: each for each in reader.streams if each.topic == topic}
        self._topic = topic

    @property
    def partitions(self) -> set[int]:
        return set(self._streams)

    def check(
        self, partition: int, before: Position | None, newest: Callable[[], Position | None]
    ) -> LogState | None:
        """Hold the log against a position that was read before, and against the newest one.

        None if it has the topic's other partitions alone: this one is another ingest process's.
        """
        stream = self._streams.get(partition)
        if stream is None and self._streams:
            return None
        if stream is None:
            told = (f"the log has no topic {self._topic} with partition {partition}",)
            return LogState(None, None, told if before is not None else ())
        self._reader.refresh()
        offsets = self._reader.offsets(stream)
        problems: list[str] = []
        with _noted(problems):
            self._require_same(stream, offsets, before, newest())
            if before is not None:
                self._reader.require_content(stream, _claim(before))
            self._read_tail(stream, before.offset if before else 0, offsets.durable)
        return LogState(offsets.first, offsets.durable, tuple(problems))

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
        begins, durable = self._reader.offsets(stream)
        try:
            for entry in self._reader.read(stream, max(first, begins), min(end, durable)):
                if entry.kind == Kind.HOLE:
                    yield entry.first_offset, entry.end_offset
        except (NotFound, Corruption):
            # What went meanwhile or cannot be read explains nothing; `check` tells of damage.
            return

    @staticmethod
    def _require_same(
        stream: Stream, offsets: Offsets, before: Position | None, after: Position | None
    ) -> None:
        if before is not None:
            first = min(offsets.first, before.offset)
            claim = _claim(before)
            require_stream(stream, claim, first=first, durable=offsets.durable)
        claim = _claim(after) if after else Claim(stream.id, 0)
        committed = claim.committed or 0
        durable = max(offsets.durable, committed)
        require_stream(stream, claim, first=offsets.first, durable=durable)

    def _read_tail(self, stream: Stream, start: int, end: int) -> None:
        expected = start
        try:
            for entry in self._reader.read(stream, start, end):
                if entry.first_offset != expected:
                    raise Conflict(
                        f"{stream.name} goes on with offset {entry.first_offset} in the log, "
                        f"and {expected} was expected"
                    )
                expected = entry.end_offset
        except NotFound:
            # They are in the table by now, and the log has let go of them.
            return


def _claim(position: Position) -> Claim:
    return Claim(position.log, position.offset, _number(position.checksum))


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
        problems.append(_told(error))


def _told(error: CalveError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
