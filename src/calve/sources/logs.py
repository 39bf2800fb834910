"""The logs that rows are taken from: where they are, how far they are durable, how much that is.

Each is opened once and looked at in every cycle. One whose directory is here is read where it
lies; of another a service is asked, which knows offsets but neither bytes nor times.
"""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, Conflict, NotFound, Unavailable
from calve.protocol.trust import authorities_in
from calve.sources.asking import FLIGHT, is_tls
from calve.sources.place import LogPlace, TlsWay
from calve.sources.remote_log import RemoteLogs
from calve.sources.source_log import Trimmed
from calve.topics.table_rows import RUN_BYTES, runs_of
from calve.wal import Claim, LogReader
from calve.wal.extent import extent_of
from calve.wal.identity import require_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from calve.settings import Settings
    from calve.settings.tree import IngestSettings
    from calve.sources.source_log import ReadableLog
    from calve.topics.topic import Binding, Topic
    from calve.wal import Entry, Stream
    from calve.wal.extent import Extent

_ANSWER_SECONDS: Final = 2.0  # for a service elsewhere to tell how far its log is
_POLL_SECONDS: Final = 0.05


class Logs:
    """Finds the log of each partition, by its id."""

    def __init__(self, settings: Settings, *, flight: str | None = None) -> None:
        """`flight` is where the service that writes the log of `wal.path` is asked for rows."""
        named = [each.strip() for each in settings.pipeline.logs.split(",") if each.strip()]
        own = [str(settings.wal.path)] if settings.wal.path else []
        self._directories = [*own, *(each for each in named if not each.startswith(FLIGHT))]
        self._flight = {own[0]: flight} if own else {}
        remote = [each for each in named if each.startswith(FLIGHT)]
        asks_over_tls = any(map(is_tls, [*remote, flight or ""]))
        self._tls = _way_of(settings.ingest) if asks_over_tls else None
        self._remote = RemoteLogs(remote, tls=self._tls, token=settings.pipeline.token)
        self._local: dict[str, _LocalLogs] = {}
        self._unopened: dict[str, CalveError] = {}

    def refresh(self, *, ask: bool = False) -> int:
        """Look how far they are; a number that is another one whenever that is further.

        With `ask`, services elsewhere are asked and waited for; else what they told last counts.
        """
        if ask:
            self._remote.ask()
        for directory in self._directories:
            if directory not in self._local:
                self._open(directory)
        return sum(each.refresh() for each in self._local.values()) + self._remote.refresh()

    def _open(self, directory: str) -> None:
        self._unopened.pop(directory, None)
        try:
            self._local[directory] = _LocalLogs(
                Path(directory), self._flight.get(directory), self._tls
            )
        except NotFound:
            return  # no row was taken in yet
        except CalveError as error:
            self._unopened[directory] = error
        except OSError as error:
            self._unopened[directory] = _unreadable(directory, error)

    def log(self, topic: Topic, partition: int) -> ReadableLog | None:
        """The partition's log; None while a service elsewhere that may have it is being asked.

        An error that says why there is none stops that partition alone.
        """
        binding = topic.partitions[partition]
        for held in self._local.values():
            if held.log_id == binding.log_id:
                return held.log(topic, partition, binding)
        if self._remote.is_configured:
            return self._remote.log(topic, partition, binding)
        for error in self._unopened.values():
            raise error
        raise _not_found(topic, partition, binding, self._directories)

    def close(self) -> None:
        for each in self._local.values():
            each.close()
        self._remote.close()


@contextmanager
def log_finder(settings: Settings, topic: Topic) -> Iterator[Callable[[int], ReadableLog]]:
    """Finds the log of a partition; services elsewhere get a while to answer, all together."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    with closing(Logs(settings)) as logs:

        def find(partition: int) -> ReadableLog:
            logs.refresh()
            while (log := logs.log(topic, partition)) is None:
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"the service that has the log of partition {partition} of topic "
                        f"{topic.name} does not answer",
                        hint="look whether it runs where pipeline.logs says",
                    )
                time.sleep(_POLL_SECONDS)
                logs.refresh()
            return log

        yield find


def _way_of(settings: IngestSettings) -> TlsWay:
    cert, key = settings.tls_client_cert, settings.tls_client_key
    return TlsWay(
        authorities=authorities_in(settings.trusted),
        cert_file=None if cert is None else str(cert),
        key_file=None if key is None else str(key),
    )


class _LocalLogs:
    """The streams of one directory."""

    def __init__(self, directory: Path, flight: str | None, tls: TlsWay | None) -> None:
        self._directory = directory
        self._flight = flight
        self._tls = tls
        self._reader = LogReader(directory)
        self._streams = {each.id: each for each in self._reader.streams}
        self._error: CalveError | None = None
        self._lock = Lock()

    @property
    def log_id(self) -> UUID:
        return self._reader.log_id

    def refresh(self) -> int:
        with self._lock:
            before = self._reader.generation
            try:
                self._reader.refresh()
                self._error = None
            except CalveError as error:
                self._error = error
            except OSError as error:
                self._error = _unreadable(str(self._directory), error)
            if self._reader.generation != before:
                self._streams = {each.id: each for each in self._reader.streams}
            return self._reader.generation

    def log(self, topic: Topic, partition: int, binding: Binding) -> _LocalLog:
        stream = self._streams.get(binding.stream_id)
        if stream is None:
            raise _no_stream(topic, partition, binding, self._directory)
        place = LogPlace(
            log_id=binding.log_id,
            stream_id=binding.stream_id,
            directory=str(self._directory),
            flight=self._flight,
            tls=self._tls,
        )
        return _LocalLog(self, stream, place)

    @contextmanager
    def reading(self) -> Iterator[LogReader]:
        """The reader, which is not for several threads; the error if it could not follow."""
        if self._error is not None:
            raise self._error
        with self._lock:
            yield self._reader

    def close(self) -> None:
        self._reader.close()


class _LocalLog:
    """A `ReadableLog` in a directory."""

    def __init__(self, owner: _LocalLogs, stream: Stream, place: LogPlace) -> None:
        self._owner = owner
        self._stream = stream
        self.place = place

    @property
    def durable(self) -> int:
        with self._owner.reading() as reader:
            return reader.durable_offset(self._stream) or 0

    @property
    def first(self) -> int:
        with self._owner.reading() as reader:
            return reader.offsets(self._stream).first

    @property
    def begins_at(self) -> int:
        return self._stream.first_offset

    def require(self, committed: int) -> None:
        with self._owner.reading() as reader:
            offsets = reader.offsets(self._stream)
        claim = Claim(self._stream.id, committed)
        require_stream(self._stream, claim, first=offsets.first, durable=offsets.durable)

    def extent(self, start: int, end: int) -> Extent:
        with self._owner.reading() as reader:
            return extent_of(reader, self._stream, start, end)

    def cut(self, start: int, offset: int) -> int:
        """The end of a frame, so that a table remembers the checksum of a whole one."""
        with self._owner.reading() as reader:
            header = reader.header(self._stream, offset)
        return header.first_offset if header.first_offset > start else offset

    def run(self, start: int, end: int, bytes_max: int = RUN_BYTES) -> list[Entry]:
        try:
            with self._owner.reading() as reader:
                return next(runs_of(reader.read(self._stream, start, end), bytes_max), [])
        except NotFound as error:
            if "first" not in error.context:
                raise
            raise Trimmed from error

    def offset_at(self, moment: datetime) -> int:
        with self._owner.reading() as reader:
            return reader.offset_at(self._stream, moment)


def _unreadable(directory: str, error: OSError) -> Unavailable:
    return Unavailable(
        f"the log in {directory} cannot be read: {error.strerror or error}",
        hint="look at the disk and the directory's permissions",
    )


def _not_found(
    topic: Topic, partition: int, binding: Binding, directories: Sequence[str]
) -> Unavailable:
    return Unavailable(
        f"partition {partition} of topic {topic.name} is in log {binding.log_id}, which is not in "
        f"{' or '.join(directories)}",
        hint="name its directory, or the Flight address of the process that writes it, in "
        "pipeline.logs. If the log is lost for good, "
        f"`calve topic alter {topic.name} --new-log` goes on where the table ends",
        context={"expected": str(binding.log_id)},
    )


def _no_stream(topic: Topic, partition: int, binding: Binding, directory: Path) -> Conflict:
    return Conflict(
        f"partition {partition} of topic {topic.name} has its rows in stream {binding.stream_id}, "
        f"which is not in log {binding.log_id} in {directory}: the log or the state is older than "
        "the other",
        hint="bring back the newer one of the two. If it is lost for good, "
        f"`calve topic alter {topic.name} --new-log` goes on where the table ends",
        context={"expected": str(binding.stream_id)},
    )
