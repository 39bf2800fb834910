"""The writer's state and files, moved on one group at a time by whoever holds the log's lock.

Knows what is durable, rotates, lets committed segments go, and stops for good (`Fenced`) when it
cannot know any more what is on the disk. Has no threads and takes no locks.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from calve.clock import Instant
from calve.errors import CalveError, Fenced, UnknownOutcome
from calve.wal.bells import Bells
from calve.wal.group import Group
from calve.wal.recovery import OpenedLog
from calve.wal.retention import DiskBound, Retention, refuse_failed_write
from calve.wal.writer import NO_SPACE, Broken, NotWritten, create_segment, next_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from uuid import UUID

    from calve.clock import Clock
    from calve.model import TableName
    from calve.wal.durable import DurableEnd
    from calve.wal.files import Files
    from calve.wal.frame import Kind
    from calve.wal.layout import LogLayout
    from calve.wal.options import LogOptions
    from calve.wal.retention import AskCommitted
    from calve.wal.state import Stream

_LOG: Final = logging.getLogger(__name__)


class Journal:
    def __init__(
        self, opened: OpenedLog, files: Files, layout: LogLayout, options: LogOptions, clock: Clock
    ) -> None:
        self.identity = opened.identity
        self.state = opened.state
        self._stopped: str | None = None
        self._guard = _Guard(self)
        self._files = files
        self._layout = layout
        self._options = options
        self._clock = clock
        self._lock = opened.lock
        self._durable = opened.durable
        self._segment = opened.segment
        self._first_segment = opened.first_segment
        self._last_append_at = self._last_sync_at = clock.monotonic()
        self._retention = Retention(
            files, layout, opened.identity.log_id, opened_at=self._last_append_at
        )
        self._bound = DiskBound(files, layout, options, clock, opened.sealed_bytes)
        self.ask_committed: AskCommitted | None = None
        self.bells = Bells()
        self._written: set[TableName] = set()  # topics whose rows are not published yet

    @property
    def bytes_used(self) -> int:
        return self._bound.sealed_bytes + self._segment.position

    def new_group(self, bytes_bound: int, *, is_bounded: bool = True) -> Group:
        """Make room, then begin a group where the log ends.

        What is not bounded may be written to a full log: it is small and helps to empty it.
        """
        with self._guard:
            if is_bounded:
                self._require_room(bytes_bound)
            self._rotate_if_full(bytes_bound)
        segment = self._segment
        return Group(self.state, segment.place(), segment.schemas, self._now_us())

    def write(self, group: Group) -> None:
        if not group.buffers:
            return
        with self._guard:
            self._with_room(lambda: self._segment.write(group))
            self._take_in(group)
            self._last_append_at = self._clock.monotonic()

    def _take_in(self, group: Group) -> None:
        state = self.state
        state.advance(((stream, rows.end) for stream, rows in group.rows.items()), group.time_us)
        for key, sequence, offsets in group.produced:
            state.producers.record(key, sequence, offsets)
        for header, payload in group.controls:
            state.apply(header, None, memoryview(payload))
        if self.bells.has_listeners:
            self._written.update(rows.stream.topic for rows in group.rows.values())

    def sync_if_due(self) -> None:
        """Sync what was written, where acknowledgements wait for that."""
        if self._is_sync_due():
            self.sync()

    def _is_sync_due(self) -> bool:
        if self._options.sync_mode == "periodic":
            # Here, because under load nothing else gets a turn.
            since = self._last_append_at - self._last_sync_at
            return since >= self._options.sync_interval_seconds
        return self._options.sync_mode == "always"

    def write_control(
        self, frames: Sequence[tuple[Kind, int, bytes]], *, is_bounded: bool = True
    ) -> None:
        """Write frames that take no offsets, and sync them whatever the mode."""
        bytes_bound = sum(len(payload) + 256 for _, _, payload in frames)
        group = self.new_group(bytes_bound, is_bounded=is_bounded)
        for kind, stream, payload in frames:
            group.add_control(kind, stream, payload)
        self.write(group)
        self.sync()

    def write_hole(self, stream: Stream, first: int, end: int) -> None:
        group = self.new_group(4096, is_bounded=False)
        group.add_hole(stream, first, end)
        self.write(group)
        self.sync()

    def sync(self) -> None:
        with self._guard:
            if self._segment.durable == self._segment.position and self._is_published:
                return
            self._segment.sync()
            self._last_sync_at = self._clock.monotonic()
            self._publish(self._durable.publish)

    @property
    def _is_published(self) -> bool:
        segment, end = self._segment, self._durable.end
        return (end.segment, end.position) == (segment.header.number, segment.durable)

    def persist_durable_end(self) -> None:
        """Put the published end on the disk, so that damage before it is known as such."""
        with self._guard:
            if not self._durable.is_persisted:
                self._publish(self._durable.persist)

    def _publish(self, publish: Callable[[DurableEnd], None]) -> None:
        try:
            publish(self._segment.durable_end(self._first_segment))
        except OSError as error:
            raise Broken(f"the durable end could not be published: {error}") from error
        if self._written:
            self.bells.ring(self._written)
            self._written.clear()

    def is_idle(self, seconds: float) -> bool:
        return self._clock.monotonic() - self._last_append_at >= seconds

    def rotate(self) -> None:
        """Seal the open segment and begin the next, unless it is empty."""
        with self._guard:
            if not self._segment.is_empty:
                self._with_room(self._rotate)

    def _rotate(self) -> None:
        old = self._segment
        old.seal()
        if not self._is_published:
            # What is sealed is synced, also when there is no room for the next segment.
            self._publish(self._durable.publish)
        # Times never go back from one segment to the next, so that they can be searched.
        began_at_us = max(self._now_us(), self.state.last_time_us)
        header = next_header(
            self.identity.log_id, old.header.number + 1, began_at_us, previous=old.link
        )
        bytes_max = self._options.segment_bytes_max
        self._segment = create_segment(self._files, self._layout, header, self.state, bytes_max)
        self._bound.sealed_bytes += old.sealed_bytes
        self._retention.sealed(old.header.number, self._clock.monotonic())
        with suppress(OSError):  # it is sealed and synced
            old.close()
        self._publish(self._durable.persist)

    def _require_room(self, more_bytes: int) -> None:
        bound, open_bytes = self._bound, self._segment.position
        if bound.has_room(open_bytes, more_bytes):
            return
        if self._make_room():
            bound.look_again()
        bound.require_room(open_bytes, more_bytes)

    def _with_room(self, write: Callable[[], None]) -> None:
        """Write; where the disk is full, let go of committed rows and do it once more."""
        try:
            write()
        except NotWritten as error:
            if error.cause.errno not in NO_SPACE or not self._make_room():
                raise
            write()

    def _rotate_if_full(self, more_bytes: int) -> None:
        is_full = self._segment.position + more_bytes > self._options.segment_bytes_max
        if self._segment.is_sealed or (is_full and not self._segment.is_empty):
            self._with_room(self._rotate)

    def _make_room(self) -> int:
        """Let go of committed rows, whatever their age; how many segments went."""
        with ExitStack() as asked:
            try:
                asked.enter_context(self._knowing(None))
            except CalveError as error:
                _LOG.warning("nobody tells what is committed: %s", error.message)
                return 0
            return self._remove_committed(older_than=None)

    def trim(self, committed: Mapping[UUID, int] | None) -> int:
        with self._guard, self._knowing(committed):
            return self._remove_committed(older_than=self._hot_since())

    def is_trim_due(self, committed: Mapping[UUID, int] | None) -> bool:
        """Whether `trim` would let go of something if that were committed, or everything."""
        first, newest = self._first_segment, self._segment.header.number
        with self._guard:
            try:
                return self._retention.has_removable(
                    first, newest, self.state, self._hot_since(), committed
                )
            except OSError as error:
                raise NotWritten(error) from error  # a look that failed changed nothing

    def _hot_since(self) -> Instant:
        return Instant.now(self._clock).before(self._options.hot_window_seconds)

    @contextmanager
    def _knowing(self, committed: Mapping[UUID, int] | None) -> Iterator[None]:
        """Remember what is committed; without it, ask, since it may have been set back."""
        with ExitStack() as asked:
            if committed is None and self.ask_committed is not None:
                committed = asked.enter_context(self.ask_committed())
            is_all = self.ask_committed is not None
            self._retention.tell(committed or {}, self.state, is_all=is_all)
            yield

    def _remove_committed(self, older_than: Instant | None) -> int:
        newest = self._segment.header.number
        found = self._retention.removable(self._first_segment, newest, self.state, older_than)
        try:
            removed = list(found)
            leftover = list(self._retention.leftover(self._first_segment, self.state))
        except OSError as error:
            raise NotWritten(error) from error  # a look that failed changed nothing
        if removed:
            self._remove(removed)
        self._unlink(leftover)
        return len(removed)

    def _remove(self, numbers: Sequence[int]) -> None:
        """Say on the disk that they are gone, then unlink: a crash between leaves no gap."""
        self._first_segment = numbers[-1] + 1
        self._publish(self._durable.persist)
        self._unlink(numbers)

    def _unlink(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._retention.removed(number)
            path = self._layout.segment(number)
            with suppress(OSError):  # then it is removed some other time
                size = self._files.size(path)
                self._files.unlink(path)
                self._bound.sealed_bytes -= size

    def _now_us(self) -> int:
        return Instant.now(self._clock).wall_us

    @property
    def directory(self) -> Path:
        return self._layout.root

    @property
    def failure(self) -> Fenced | None:
        """Why the log stopped, if it did."""
        return None if self._stopped is None else self.refusal()

    def refusal(self) -> Fenced:
        """A new object each time: one that is raised keeps its tracebacks."""
        return Fenced(
            f"the log in {self._layout.root} stopped: {self._stopped}",
            hint="nothing was acknowledged since; open the log again, which looks at what "
            "reached the disk",
        )

    def require_usable(self) -> None:
        if self._stopped is not None:
            raise self.refusal()

    def fence(self, reason: str) -> None:
        """Stop for good; the first reason stays."""
        if self._stopped is None:
            self._stopped = reason

    def close(self, *, cleanly: bool) -> None:
        """Can be repeated, but not cleanly, when it was interrupted."""
        with ExitStack() as closing:  # each of them, also when another fails
            closing.callback(self._lock.release)
            closing.callback(self._durable.close)
            closing.callback(self._segment.close)
            if cleanly:
                self.sync()
                self._segment.trim_allocation()
                self.persist_durable_end()


class _Guard:
    """Around whatever touches the disk: what it refused, as what the caller must do."""

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __enter__(self) -> None:
        self._journal.require_usable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, CalveError):
            return
        if isinstance(error, NotWritten):
            raise refuse_failed_write(error.cause) from error
        if isinstance(error, Broken | OSError):
            self._journal.fence(str(error))
            raise unknown_outcome(str(error)) from error
        self._journal.fence(f"it was interrupted by {type(error).__name__}")


def unknown_outcome(reason: str) -> UnknownOutcome:
    return UnknownOutcome(
        f"whether the rows are in the log is not known: {reason}",
        hint="send them once more with the same producer and sequence when the log is open again; "
        "without these, look for them first",
    )
