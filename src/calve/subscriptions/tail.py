"""The log of a topic's partitions, as readers see it: what it holds, and runs of its entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from calve.errors import Conflict, NotFound, Unavailable
from calve.topics.table_rows import runs_of
from calve.wal import LogReader

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from calve.topics.topic import Binding, Topic
    from calve.wal import Entry, Offsets, Stream


class Trimmed(Exception):
    """The log has let go of the rows: they are in the table."""


class PartitionLog(Protocol):
    """The log of one partition."""

    @property
    def begins_at(self) -> int:
        """The offset with which this life of the partition began."""
        ...

    def offsets(self) -> Offsets:
        """What it holds, as of the last look."""
        ...

    def run(self, start: int, end: int) -> list[Entry]:
        """Some entries from an offset on, all of one kind and schema; Trimmed if they are gone."""
        ...

    def offset_at(self, moment: datetime) -> int:
        """The first offset that came at a time or later."""
        ...


class Logs(Protocol):
    """Finds the log of each partition."""

    def refresh(self) -> int:
        """Look how far they are; a number that is another one whenever that is further."""
        ...

    def log(self, topic: Topic, partition: int) -> PartitionLog:
        """Unavailable or Conflict says why it cannot be read."""
        ...

    def close(self) -> None: ...


class LocalLogs:
    """Those in one directory of this machine. For one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: LogReader | None = None
        self._generation: int | None = None
        self._streams: dict[Binding, Stream] = {}

    def refresh(self) -> int:
        if self._reader is None:
            try:
                self._reader = LogReader(self._directory)
            except NotFound:
                return -1  # made by the first rows
        else:
            self._reader.refresh()
        return self._reader.generation

    def log(self, topic: Topic, partition: int) -> PartitionLog:
        binding = topic.partitions[partition]
        reader = self._reader
        if reader is None or reader.log_id != binding.log_id:
            found = "there is none" if reader is None else f"that is log {reader.log_id}"
            raise Unavailable(
                f"partition {partition} of topic {topic.name} is in log {binding.log_id}, and in "
                f"{self._directory} {found}",
                hint="open the lake with the settings of the service that takes the rows in, so "
                "that wal.path is its log",
                context={"expected": str(binding.log_id)},
            )
        stream = self._streams.get(binding)
        if stream is None:
            stream = self._streams[binding] = _stream(reader, topic, partition, binding)
        return LocalLog(reader, stream)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class LocalLog:
    """A `PartitionLog` over a reader of its directory."""

    def __init__(self, reader: LogReader, stream: Stream) -> None:
        self._reader = reader
        self._stream = stream

    @property
    def begins_at(self) -> int:
        return self._stream.first_offset

    def offsets(self) -> Offsets:
        return self._reader.offsets(self._stream)

    def run(self, start: int, end: int) -> list[Entry]:
        try:
            return next(runs_of(self._reader.read(self._stream, start, end)), [])
        except NotFound as error:
            if "first" not in error.context:
                raise
            raise Trimmed from error

    def offset_at(self, moment: datetime) -> int:
        return self._reader.offset_at(self._stream, moment)


def _stream(reader: LogReader, topic: Topic, partition: int, binding: Binding) -> Stream:
    for stream in reader.streams:
        if stream.id == binding.stream_id:
            return stream
    raise Conflict(
        f"partition {partition} of topic {topic.name} has its rows in stream {binding.stream_id}, "
        f"which is not in log {binding.log_id}: the log or the state is older than the other",
        hint="bring back the newer one of the two",
        context={"expected": str(binding.stream_id)},
    )
