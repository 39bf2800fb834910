"""Which segments may go, and whether there is room for more.

A segment goes when every row in it is committed to its table and older than the hot window. When
the log or its disk is full, committed rows go sooner; rows that are not committed never do. What is
committed is told, or asked for whenever rows are to go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from calve.errors import CalveError, Overloaded, Unavailable
from calve.wal.chain import SegmentChain
from calve.wal.frame import BadFrame
from calve.wal.layout import segment_numbers
from calve.wal.segment import BadSegment, damaged, read_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from calve.clock import Clock, Instant
    from calve.wal.files import Files
    from calve.wal.index import SealedIndex
    from calve.wal.layout import LogLayout
    from calve.wal.options import LogOptions
    from calve.wal.state import LogState

    AskCommitted: TypeAlias = Callable[[], AbstractContextManager[Mapping[UUID, int]]]

_FREE_SPACE_CHECK_SECONDS: Final = 0.1
RETRY_AFTER_MS: Final = 1000
_CONTEXT: Final = {"retry_after_ms": str(RETRY_AFTER_MS)}


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What retention needs of a sealed segment."""

    number: int
    ends: Mapping[int, int]
    last_time_us: int


def summarize(files: Files, layout: LogLayout, chain: SegmentChain, number: int) -> SegmentSummary:
    index = open_index(files, layout, chain, number)
    ends: dict[int, int] = {}
    last_time_us = 0
    for stream in index.streams():
        frames = index.frames(stream)
        assert frames is not None
        ends[stream] = frames.end_offset
        last_time_us = max(last_time_us, frames.times_us[-1])
    return SegmentSummary(number, ends, last_time_us)


def open_index(files: Files, layout: LogLayout, chain: SegmentChain, number: int) -> SealedIndex:
    path = layout.segment(number)
    view = files.map(path)
    header = chain.own_header(number, view)
    chain.require_continued(header, view)
    try:
        return read_index(view, header.salt)
    except (BadFrame, BadSegment) as error:
        raise damaged(path, error.position, error.reason) from error


class Retention:
    """Remembers what was committed, and finds the segments that are done with."""

    def __init__(self, files: Files, layout: LogLayout, log_id: UUID, opened_at: float) -> None:
        self._files = files
        self._layout = layout
        self._chain = SegmentChain(files, layout, log_id)
        self._committed: dict[UUID, int] = {}
        self._oldest: SegmentSummary | None = None
        self._opened_at = opened_at
        self._sealed_at: dict[int, float] = {}  # by the clock that never jumps

    def sealed(self, number: int, at: float) -> None:
        self._sealed_at[number] = at

    def removed(self, number: int) -> None:
        self._sealed_at.pop(number, None)

    def tell(self, committed: Mapping[UUID, int], state: LogState, *, is_all: bool) -> None:
        """Remember what is committed, of the streams that there are.

        If that is all that is known, a stream that it leaves out may have been set back since.
        """
        known = dict(committed) if is_all else self._committed | dict(committed)
        self._committed = {s.id: known[s.id] for s in state.streams if s.id in known}

    def removable(
        self, first: int, newest: int, state: LogState, older_than: Instant | None
    ) -> Iterator[int]:
        """Sealed segments that may go, oldest first; `older_than` None ignores their age."""
        for number in range(first, newest):
            summary = self._summary(number)
            if older_than is not None and not self._is_older(summary, older_than):
                return
            if not _is_committed(summary, state, self._committed):
                return
            yield number

    def has_removable(
        self,
        first: int,
        newest: int,
        state: LogState,
        older_than: Instant,
        committed: Mapping[UUID, int] | None,
    ) -> bool:
        """Whether anything would go if that were committed, or everything; remembers nothing."""
        if any(number < first for number in segment_numbers(self._files, self._layout)):
            return True
        if first >= newest or not self._is_older(summary := self._summary(first), older_than):
            return False
        return committed is None or _is_committed(summary, state, committed)

    def _is_older(self, summary: SegmentSummary, than: Instant) -> bool:
        """By either clock: the log's times lie ahead for as long as the wall's was set back."""
        sealed_at = self._sealed_at.get(summary.number, self._opened_at)
        return summary.last_time_us < than.wall_us or sealed_at < than.monotonic

    def leftover(self, first: int, state: LogState) -> Iterator[int]:
        """Segments before the log's first, which were to go already, and may: also here only
        what is committed for certain."""
        for number in segment_numbers(self._files, self._layout):
            if number < first and self._is_done_with(number, state):
                yield number

    def _is_done_with(self, number: int, state: LogState) -> bool:
        try:
            return _is_committed(self._summary(number), state, self._committed)
        except CalveError:
            return False  # not whole, or not ours: for somebody to look at

    def _summary(self, number: int) -> SegmentSummary:
        if self._oldest is None or self._oldest.number != number:
            self._oldest = summarize(self._files, self._layout, self._chain, number)
        return self._oldest


def _is_committed(summary: SegmentSummary, state: LogState, committed: Mapping[UUID, int]) -> bool:
    for number, end in summary.ends.items():
        stream = state.stream(number)
        # The rows of a topic that was deleted wait for nobody.
        if stream is not None and committed.get(stream.id, 0) < end:
            return False
    return True


@dataclass(slots=True)
class DiskBound:
    """Says no, with a delay, when the log or its disk is full; yes again when it is not."""

    files: Files
    layout: LogLayout
    options: LogOptions
    clock: Clock
    sealed_bytes: int = 0
    _checked_at: float = field(default=float("-inf"))
    _free_bytes: int = 0

    def has_room(self, open_bytes: int, more_bytes: int) -> bool:
        return not self._is_over(open_bytes, more_bytes) and not self._is_below_floor()

    def require_room(self, open_bytes: int, more_bytes: int) -> None:
        if self._is_over(open_bytes, more_bytes):
            raise _over_bound(
                f"the log holds its {self.options.disk_bytes_max} bytes (wal.disk_bytes_max)",
                "`Log.trim` lets rows go that are committed, `calve wal inspect` shows what is "
                "left",
            )
        if self._is_below_floor():
            raise _over_bound(
                f"only {self._free_bytes} bytes are free on the log's disk, "
                f"{self.options.free_bytes_min} must be (wal.free_bytes_min)",
                "make room on the disk",
            )

    def look_again(self) -> None:
        """At the disk, although it was looked at just now: something went."""
        self._checked_at = float("-inf")

    def _is_over(self, open_bytes: int, more_bytes: int) -> bool:
        return self.sealed_bytes + open_bytes + more_bytes > self.options.disk_bytes_max

    def _is_below_floor(self) -> bool:
        now = self.clock.monotonic()
        if now - self._checked_at >= _FREE_SPACE_CHECK_SECONDS:
            self._free_bytes = self._look()
            self._checked_at = now
        return self._free_bytes < self.options.free_bytes_min

    def _look(self) -> int:
        try:
            return self.files.free_bytes(self.layout.root)
        except OSError as error:
            raise refuse_failed_write(error) from error


def refuse_pending(bytes_max: int) -> Overloaded:
    return _over_bound(f"{bytes_max} bytes are waiting to be written already", "send more slowly")


def refuse_failed_write(cause: OSError) -> Unavailable:
    message = f"the log could not be written: {cause.strerror or cause}"
    return Unavailable(message, hint=_hint("look at the disk"), context=_CONTEXT)


def _over_bound(message: str, what_to_do: str) -> Overloaded:
    return Overloaded(message, hint=_hint(what_to_do), context=_CONTEXT)


def _hint(what_to_do: str) -> str:
    return f"retry in {RETRY_AFTER_MS} ms; {what_to_do}"
