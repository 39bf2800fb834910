"""The logs that rows come from again: the one that is named, else that which the topic names.

Each partition has its own, maybe in another directory or behind a service elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from calve.errors import Conflict, NotFound
from calve.sources.logs import log_finder
from calve.state import found_state
from calve.topics.registry import TopicRegistry
from calve.wal import Claim, LogReader
from calve.wal.identity import require_stream

if TYPE_CHECKING:
    from uuid import UUID

    from calve.model import TableName
    from calve.settings import Settings
    from calve.sources.source_log import ReadableLog
    from calve.tables.positions import Position
    from calve.topics.topic import Topic


@dataclass(frozen=True, slots=True)
class ReplayedLogs:
    """Those of a topic. `named` is asked first; `settings` tell of the others."""

    named: Path
    settings: Settings
    topic: TableName

    def set_back(self, partition: int, position: Position, offset: int) -> Position:
        """The position at an earlier offset, if the log of the partition holds all that follows."""
        topic = None if self._is_in_named(position.log) else self._bound(partition, position.log)
        if topic is None:  # then the error says what is wrong with the one that is named
            return self._set_back_in(self.named, partition, position, offset)
        with log_finder(self.settings, topic) as find:
            log = find(partition)
            if log.place.directory:
                directory = Path(log.place.directory)
                return self._set_back_in(directory, partition, position, offset)
            return self._set_back_elsewhere(log, partition, position, offset)

    def _is_in_named(self, stream_id: UUID) -> bool:
        try:
            with LogReader(self.named) as reader:
                return any(each.id == stream_id for each in reader.streams)
        except NotFound:
            if self.named == self.settings.wal.path:
                return False  # where only a pipeline runs there is none
            raise

    def _bound(self, partition: int, stream_id: UUID) -> Topic | None:
        """The topic, if it has that stream as the partition's."""
        with found_state(self.settings) as state:
            topic = TopicRegistry(state).find(self.topic) if state is not None else None
        bound = topic.partitions.get(partition) if topic else None
        return topic if bound and bound.stream_id == stream_id else None

    def _set_back_in(
        self, directory: Path, partition: int, position: Position, offset: int
    ) -> Position:
        with LogReader(directory) as reader:
            stream = reader.stream(self.topic, partition)
            first, durable = reader.offsets(stream)
            claim = Claim(position.log, position.offset)
            require_stream(stream, claim, first=min(first, position.offset), durable=durable)
            self._require_held(partition, offset, first)
            found = reader.content_sum(stream, offset)
        return replace(position, offset=offset, checksum="" if found is None else f"{found:016x}")

    def _set_back_elsewhere(
        self, log: ReadableLog, partition: int, position: Position, offset: int
    ) -> Position:
        first = log.first
        log.require(max(first, position.offset))
        self._require_held(partition, offset, first)
        return replace(position, offset=offset, checksum="")  # which a service does not tell

    def _require_held(self, partition: int, offset: int, first: int) -> None:
        if offset < first:
            raise Conflict(
                f"the rows {offset} to {first} of {self.topic}/{partition} are no longer in the "
                f"log, which begins at {first}",
                hint="roll back without --replay: the rows are then recorded as removed",
                context={"first": str(first), "wanted": str(offset)},
            )
