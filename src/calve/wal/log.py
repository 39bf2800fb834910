"""The log: append, acknowledge when durable, rotate, and let go of what is committed.

One writer per directory. Appends of all threads and topics share writes and syncs; an
acknowledgement waits for its own rows. The public face of writing: who writes when is decided in
`leader`, what happens on the disk in `journal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID, uuid4

from calve.clock import Clock, SystemClock
from calve.errors import Conflict, Fenced, InvalidRequest, NotFound
from calve.wal.files import Files, OsFiles, disk_refused
from calve.wal.frame import Kind
from calve.wal.group import OFFSET_MAX
from calve.wal.identity import Claim, require_stream
from calve.wal.journal import Journal
from calve.wal.layout import LogLayout
from calve.wal.leader import GroupLeader
from calve.wal.options import LogOptions
from calve.wal.payload import Part
from calve.wal.pending import Acknowledgement, PendingAppend, Producer, parts_of
from calve.wal.producers import ProducerKey
from calve.wal.reader import LogReader
from calve.wal.recovery import create_log, exists, open_log
from calve.wal.state import Stream, encode_stream
from calve.wal.writer import Broken, NotWritten

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from calve.model import TableName
    from calve.wal.bells import Bells
    from calve.wal.retention import AskCommitted

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
        self._layout = LogLayout(directory)
        self._files = files or OsFiles()
        options = options or LogOptions()
        self._journal = _open(self._files, self._layout, options, clock or SystemClock(), expected)
        try:
            self._leader = GroupLeader(self._journal, options, background=background)
        except BaseException:
            self._journal.close(cleanly=False)
            raise

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
    def failure(self) -> Fenced | None:
        """Why the log has stopped, if it has."""
        return self._journal.failure

    @property
    def streams(self) -> list[Stream]:
        with self._leader.holding():
            return list(self._journal.state.streams)

    def stream(self, topic: TableName, partition: int = 0) -> Stream:
        stream = self._journal.state.find(topic, partition)
        if stream is None:
            raise NotFound(f"the log has no topic {topic} with partition {partition}")
        return stream

    def next_offset(self, stream: Stream) -> int:
        """The offset that the next append gets."""
        with self._leader.holding():
            return self._next_offset(stream)

    def _next_offset(self, stream: Stream) -> int:
        found = self._journal.state.next_offsets.get(stream.number)
        if found is None:
            raise NotFound(f"{stream.name} was deleted")
        return found

    def producer_count(self, stream: Stream) -> int:
        """How many producers of the stream are remembered."""
        with self._leader.holding():
            return self._journal.state.producers.count(stream.number)

    def repeated(self, stream: Stream, producer: str, sequence: int) -> Acknowledgement | None:
        """The acknowledgement of an append that was submitted before; None if it was not."""
        with self._leader.leading():
            producers = self._journal.state.producers
            key = ProducerKey(stream.number, producer)
            if sequence > producers.last_sequence(key):
                return None
            first, end = producers.find(key, sequence) or (None, None)
            return Acknowledgement(first, end, is_repeat=True)

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
        with self._leader.leading():
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
        with self._leader.leading():
            if self._journal.state.stream(stream.number) != stream:
                raise NotFound(f"{stream.name} was deleted already")
            closed = (Kind.STREAM_CLOSED, stream.number, b"")
            self._journal.write_control([closed], is_bounded=False)

    def record_hole(self, stream: Stream, first: int, end: int) -> None:
        """Give up the offsets from the stream's end up to `end`: known loss, never reused."""
        if end > OFFSET_MAX:
            raise InvalidRequest(f"offset {end} is too large, {OFFSET_MAX} is the largest")
        with self._leader.leading():
            found = self._next_offset(stream)
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
        return self.submit(stream, rows, producer=producer, sequence=sequence).wait()

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
        is_produced = producer is not None or sequence is not None
        sender = Producer.of(producer, sequence) if is_produced else None
        pending = PendingAppend(stream, parts_of(rows), sender, self._leader)
        self._leader.put(pending)
        return pending

    def flush(self) -> None:
        """Return when everything submitted so far is written and synced, whatever the mode."""
        with self._leader.leading():
            self._journal.sync()

    def rotate(self) -> None:
        """Seal the open segment and begin the next, unless it is empty."""
        with self._leader.leading():
            self._journal.rotate()

    def ask_committed(self, ask: AskCommitted) -> None:
        """Have it ask what is committed when it is full, and whenever it is not told.

        What is answered must not be set back before the block ends. Nobody appends meanwhile.
        """
        self._journal.ask_committed = ask

    def ring(self, bells: Bells) -> None:
        """Have those who listen there woken when their rows are durable."""
        self._journal.bells = bells

    def trim(self, committed: Mapping[UUID, int] | None = None) -> int:
        """Let go of segments whose rows are all committed and older than the hot window.

        `committed` maps stream ids to the offsets that are in their tables; without it the log
        asks. Returns how many segments went.
        """
        with self._leader.leading():
            return self._journal.trim(committed)

    def is_trim_due(self, committed: Mapping[UUID, int] | None = None) -> bool:
        """Whether `trim` would let go of something, were that committed, or were everything."""
        with self._leader.holding():
            return self._journal.is_trim_due(committed)

    def close(self) -> None:
        """Write and sync what is pending, finish every handle, and let another writer in.

        In a forked process only its copies of the descriptors are closed: the log is not its own.
        """
        if self._leader.is_copy:
            self._leader.close_copies()
        else:
            self._leader.close()

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
        raise disk_refused(layout.root, "opened", error) from error


def _missing(layout: LogLayout, expected: UUID) -> Conflict:
    return Conflict(
        f"{layout.root} holds no log, but log {expected} was expected",
        hint="bring back the directory; if it is lost, open a new log there without `expected`: "
        "`Log.create_stream` begins a topic where its table's rows end",
        context={"expected": str(expected)},
    )


def _require_in_range(stream: Stream) -> None:
    """What the columns of a state cannot hold would make the log unreadable."""
    if not 0 <= stream.first_offset <= OFFSET_MAX:
        raise InvalidRequest(f"a first offset is 0 to {OFFSET_MAX}, not {stream.first_offset}")
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
