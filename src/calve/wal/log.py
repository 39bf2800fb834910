"""The log: append, acknowledge when durable, rotate, and let go of what is committed.

One writer per directory. Appends of all threads and topics share writes and syncs: a waiting
caller that finds nobody at it writes and syncs for all (no hand-over when alone); under load a
thread of the log does so, and callers only wait. An acknowledgement waits for its own rows.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID, uuid4

import pyarrow as pa

from calve.clock import Clock, SystemClock
from calve.errors import CalveError, Conflict, InvalidRequest, NotFound, Unavailable
from calve.wal.files import Files, OsFiles
from calve.wal.frame import PRODUCER_BYTES_MAX, Kind
from calve.wal.identity import Claim, require_stream
from calve.wal.journal import Journal, unknown_outcome
from calve.wal.layout import LogLayout
from calve.wal.options import LogOptions
from calve.wal.payload import Part, Rejected, SchemaCache, require_rows
from calve.wal.pending import Acknowledgement, PendingAppend, Producer
from calve.wal.reader import LogReader
from calve.wal.recovery import create_log, exists, open_log
from calve.wal.retention import refuse_pending
from calve.wal.state import Stream, encode_stream
from calve.wal.writer import Broken, NotWritten

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from calve.model import TableName

_TICK_SECONDS: Final = 0.25
_ENCODED_BY_CALLER_BYTES: Final = 1 << 16
_SEQUENCE_MAX: Final = (1 << 63) - 1
_OFFSET_MAX: Final = (1 << 63) - 1
_PARTITION_MAX: Final = (1 << 31) - 1


class NewStream(NamedTuple):
    topic: TableName
    partition: int = 0
    first_offset: int = 0  # the table's committed offset, when it has rows already


class Log:
    """The write-ahead log in one directory, open for writing."""

    def __init__(
        self,
        directory: Path,
        options: LogOptions | None = None,
        *,
        expected: UUID | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
        background: bool = True,
    ) -> None:
        """Open the log, or make it if there is none and none was `expected`.

        Without `background` nothing happens between calls: no periodic sync, no sealing of an
        idle segment. For tests, and for tools that come and go.
        """
        self.schemas = SchemaCache()
        self._process = os.getpid()
        self._layout = LogLayout(directory)
        self._options = options or LogOptions()
        self._files = files or OsFiles()
        self._journal = _open(
            self._files, self._layout, self._options, clock or SystemClock(), expected
        )
        self._leader = threading.Lock()
        self._pending: deque[PendingAppend] = deque()
        self._pending_bytes = 0
        self._pending_lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        if background:
            self._thread = threading.Thread(target=self._run, name="calve-wal", daemon=True)
            self._thread.start()

    @property
    def log_id(self) -> UUID:
        return self._journal.identity.log_id

    @property
    def directory(self) -> Path:
        return self._layout.root

    @property
    def bytes_used(self) -> int:
        return self._journal.bytes_used

    @property
    def is_fenced(self) -> bool:
        """Whether the log has stopped for good and must be opened again."""
        return self._journal.failure is not None

    @property
    def streams(self) -> list[Stream]:
        with self._holding():
            return list(self._journal.state.streams)

    def stream(self, topic: TableName, partition: int = 0) -> Stream:
        stream = self._journal.state.find(topic, partition)
        if stream is None:
            raise NotFound(f"the log has no topic {topic} with partition {partition}")
        return stream

    def next_offset(self, stream: Stream) -> int:
        """The offset that the next append gets."""
        with self._holding():
            return self._journal.state.next_offsets[stream.number]

    def reader(self) -> LogReader:
        return LogReader(self._layout.root, files=self._files)

    def require(self, topic: TableName, partition: int, claim: Claim) -> Stream:
        """The stream, if it is the one that a registry or a table speaks of; Conflict if not."""
        stream = self.stream(topic, partition)
        with self.reader() as reader:
            offsets = reader.offsets(stream)
            require_stream(stream, claim, first=offsets.first, durable=offsets.durable)
            reader.require_content(stream, claim)
        return stream

    def create_stream(self, topic: TableName, partition: int = 0, first_offset: int = 0) -> Stream:
        return self.create_streams([NewStream(topic, partition, first_offset)])[0]

    def create_streams(self, wanted: Iterable[NewStream]) -> list[Stream]:
        """Begin the logs of topics, durably, all in one sync."""
        with self._leading():
            state = self._journal.state
            streams = [
                Stream(number, uuid4(), *new)
                for number, new in enumerate(wanted, state.next_stream)
            ]
            for stream in streams:
                _require_in_range(stream)
            _require_new(streams, state.streams)
            self._journal.write_control(
                [(Kind.STREAM_OPENED, s.number, encode_stream(s)) for s in streams]
            )
            return [self.stream(stream.topic, stream.partition) for stream in streams]

    def delete_stream(self, stream: Stream) -> None:
        """End a topic's log. Made again, it is another stream with another id."""
        with self._leading():
            if self._journal.state.stream(stream.number) != stream:
                raise NotFound(f"{stream.name} was deleted already")
            closed = (Kind.STREAM_CLOSED, stream.number, b"")
            self._journal.write_control([closed], is_bounded=False)

    def record_hole(self, stream: Stream, first: int, end: int) -> None:
        """Give up the offsets from the stream's end up to `end`: known loss, never reused."""
        if end > _OFFSET_MAX:
            raise InvalidRequest(f"offset {end} is too large, {_OFFSET_MAX} is the largest")
        with self._leading():
            found = self._journal.state.next_offsets[stream.number]
            if found != first or end <= first:
                raise Conflict(
                    f"{stream.name} ends at {found}, so {first}..{end} cannot be recorded as lost"
                )
            self._journal.write_hole(stream, first, end)

    def append(
        self,
        stream: Stream,
        rows: Part | Sequence[Part],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Acknowledgement:
        """Append rows and return their offsets once they are safe under the sync mode.

        A list of parts, record batches and lists of `Rejected`, is one append: its offsets are
        contiguous, and after a crash it is there whole or not at all.
        """
        return self._enqueue(stream, rows, _producer(producer, sequence)).wait()

    def submit(
        self,
        stream: Stream,
        rows: Part | Sequence[Part],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> PendingAppend:
        """Like `append`, but returns at once with a handle. Order is kept.

        The rows are written when somebody waits, or has a callback, for this append or a later
        one; with nobody waiting, within a quarter of a second. Until then they must not change.
        """
        return self._enqueue(stream, rows, _producer(producer, sequence))

    def _enqueue(
        self, stream: Stream, rows: Part | Sequence[Part], producer: Producer | None
    ) -> PendingAppend:
        self._require_own_process()
        parts = _parts(rows)
        for part in parts:
            require_rows(part)
        pending = PendingAppend(stream, parts, producer, self)
        if pending.bytes_bound > _ENCODED_BY_CALLER_BYTES:
            # Large ones side by side; small ones by whoever writes, where threads do not
            # contend for the interpreter's lock.
            pending.encode()
        with self._pending_lock:
            self._require_open()
            waiting = self._pending_bytes + pending.bytes_bound
            if self._pending and waiting > self._options.pending_bytes_max:
                raise refuse_pending(self._options.pending_bytes_max)
            self._pending_bytes = waiting
            self._pending.append(pending)
        return pending

    def _require_own_process(self) -> None:
        """Before any lock is taken: a fork copies locks that nobody will ever release."""
        if os.getpid() != self._process:
            raise InvalidRequest(
                f"the log in {self._layout.root} was opened by process {self._process}, which "
                "forked this one",
                hint="send the rows to that process; readers may be opened in any",
            )

    def _require_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the log is closed", hint="open it again")
        self._journal.require_usable()

    def flush(self) -> None:
        """Return when everything submitted so far is written and synced, whatever the mode."""
        with self._leading():
            self._journal.sync()

    def rotate(self) -> None:
        """Seal the open segment and begin the next, unless it is empty."""
        with self._leading():
            self._journal.rotate()

    def trim(self, committed: Mapping[UUID, int]) -> int:
        """Let go of segments whose rows are all committed and older than the hot window.

        `committed` maps stream ids to the offsets that are in their tables. Returns how many
        segments went.
        """
        with self._leading():
            return self._journal.trim(committed)

    def lead_for(self, pending: PendingAppend) -> None:
        """Write and sync for everybody until `pending` is done, unless somebody is at it."""
        self._require_own_process()
        while not pending.is_done:
            if not self._leader.acquire(blocking=False):
                return  # whoever holds the lock looks at the queue after giving it up
            try:
                self._commit_some()
            finally:
                self._leader.release()
                if self._pending:
                    self.wake()

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Hold the leader's lock. A caller that found it taken waits: so look for them after."""
        self._require_own_process()
        try:
            with self._leader:
                yield
        finally:
            if self._pending:
                self.wake()

    @contextmanager
    def _leading(self) -> Iterator[None]:
        """Lead, after everything that was submitted before."""
        with self._holding():
            self._require_open()
            self._commit_all()
            yield

    def _commit_all(self) -> None:
        while self._pending:
            self._commit_some()

    def _commit_some(self) -> None:
        """One group: write it, sync it, acknowledge it."""
        taken = self._take_pending()
        if not taken:
            return
        try:
            self._write(taken)
        except CalveError as error:
            self._fail(taken, error)
        except BaseException as error:
            self._fail(taken, unknown_outcome(f"{type(error).__name__} while it was written"))
            raise

    def _write(self, taken: list[PendingAppend]) -> None:
        group = self._journal.new_group(sum([pending.bytes_bound for pending in taken]))
        for pending in taken:
            group.add(pending)
        self._journal.write(group)
        for pending, refusal in group.refused:
            pending.fail(refusal)
        for pending, result in group.acknowledged:
            pending.succeed(result)

    def _take_pending(self) -> list[PendingAppend]:
        taken: list[PendingAppend] = []
        room = min(self._options.group_bytes_max, self._options.segment_bytes_max)
        with self._pending_lock:
            while self._pending and (not taken or self._pending[0].bytes_bound <= room):
                pending = self._pending.popleft()
                self._pending_bytes -= pending.bytes_bound
                room -= pending.bytes_bound
                taken.append(pending)
        return taken

    def _fail(self, taken: list[PendingAppend], error: CalveError) -> None:
        for pending in taken:
            if not pending.is_done:
                pending.fail(error)
        failure = self._journal.failure
        if failure is not None:
            for pending in self._take_all():
                pending.fail(failure)

    def _take_all(self) -> list[PendingAppend]:
        with self._pending_lock:
            taken = list(self._pending)
            self._pending.clear()
            self._pending_bytes = 0
        return taken

    def wake(self) -> None:
        """Have the queue looked at: by the log's thread, or here and now if it has none."""
        self._require_own_process()
        if self._thread is None:
            while self._pending and self._leader.acquire(blocking=False):
                try:
                    self._commit_all()
                finally:
                    self._leader.release()
        elif not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        try:
            self._keep_writing()
        except BaseException as error:
            # Nobody sees this thread die; those who wait for it must be told.
            reason = f"its thread met {type(error).__name__}: {error}"
            self._journal.fence(reason)
            self._fail([], unknown_outcome(reason))
            raise

    def _keep_writing(self) -> None:
        is_periodic = self._options.sync_mode == "periodic"
        tick = self._options.sync_interval_seconds if is_periodic else _TICK_SECONDS
        while not self._is_closed:
            self._wake.wait(tick)
            self._wake.clear()
            while self._pending:
                with self._leader:
                    self._commit_some()
            with self._holding():
                self._do_what_is_due()

    def _do_what_is_due(self) -> None:
        journal = self._journal
        if self._is_closed or journal.failure is not None:
            return
        try:
            if self._options.sync_mode == "periodic":
                journal.sync()
            if journal.is_idle(_TICK_SECONDS):
                journal.persist_durable_end()
            if journal.is_idle(self._options.hot_window_seconds):
                journal.rotate()  # so that its rows, once committed, can go
        except CalveError:
            return  # fenced, or refused for now: the next append says so

    def close(self) -> None:
        """Write and sync what is pending, and let another writer in.

        In a forked process only its copies of the descriptors are closed: the log is not its own.
        """
        if os.getpid() != self._process:
            self._close_copies()
            return
        with self._pending_lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        with self._leader:
            self._commit_all()
            self._journal.close(cleanly=self._journal.failure is None)

    def _close_copies(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._journal.close(cleanly=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _open(
    files: Files, layout: LogLayout, options: LogOptions, clock: Clock, expected: UUID | None
) -> Journal:
    try:
        if not exists(files, layout):
            if expected is not None:
                raise _missing(layout, expected)
            create_log(files, layout, options, clock.now())
        opened = open_log(files, layout, options, expected)
        return Journal(opened, files, layout, options, clock)
    except (Broken, NotWritten, OSError) as error:
        raise Unavailable(
            f"the log in {layout.root} cannot be opened: {error}",
            hint="look at the disk and the directory's permissions, then try again",
        ) from error


def _missing(layout: LogLayout, expected: UUID) -> Conflict:
    return Conflict(
        f"{layout.root} holds no log, but log {expected} was expected",
        hint="bring back the directory, or start the topics anew: `calve topic alter TOPIC "
        "--new-log` continues at the table's committed offset",
        context={"expected": str(expected)},
    )


def _require_in_range(stream: Stream) -> None:
    """What the columns of a state cannot hold would make the log unreadable."""
    if not 0 <= stream.first_offset <= _OFFSET_MAX:
        raise InvalidRequest(f"a first offset is 0 to {_OFFSET_MAX}, not {stream.first_offset}")
    if not 0 <= stream.partition <= _PARTITION_MAX:
        raise InvalidRequest(f"a partition is 0 to {_PARTITION_MAX}, not {stream.partition}")


def _require_new(streams: Sequence[Stream], present: Iterable[Stream]) -> None:
    taken = {(stream.topic, stream.partition) for stream in present}
    for stream in streams:
        if (stream.topic, stream.partition) in taken:
            raise Conflict(
                f"the log has topic {stream.topic} with partition {stream.partition} already"
            )
        taken.add((stream.topic, stream.partition))


def _parts(rows: Part | Sequence[Part]) -> Sequence[Part]:
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    if not rows:
        raise InvalidRequest("an append needs at least one row")
    return [rows] if isinstance(rows[0], Rejected) else rows


def _producer(producer: str | None, sequence: int | None) -> Producer | None:
    if producer is None and sequence is None:
        return None
    if producer is None or sequence is None:
        raise InvalidRequest("producer and sequence come together or not at all")
    if not 0 < len(producer.encode()) <= PRODUCER_BYTES_MAX:
        raise InvalidRequest(f"a producer's id has 1 to {PRODUCER_BYTES_MAX} bytes")
    if not 0 <= sequence <= _SEQUENCE_MAX:
        raise InvalidRequest("a producer's sequence begins at 0 and counts up")
    return Producer(producer, sequence)
