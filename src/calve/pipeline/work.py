"""What goes between the driver and its tasks, as plain data that any Python can unpack.

A piece is a range of one partition's log that one task reads and writes to data files; several
pieces that follow each other may make one commit. Nothing here opens anything.
"""

from __future__ import annotations

import msgspec

from calve.protocol import Problem
from calve.sources.place import LogPlace, LogSpan
from calve.topics.topic import Topic


class TableShape(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be known of a table to write data files for it.

    `metadata` is Iceberg's own JSON without the snapshots, `schema` the one that the files are
    written with, which the table may only get with their commit. `io` are the properties of its
    files' store, with secrets.
    """

    name: str
    location: str
    metadata: bytes
    schema: str
    io: dict[str, str]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets from `start` up to `end` of one partition of a topic, for one table."""

    number: int  # among those of a job
    topic: Topic
    partition: int
    place: LogPlace
    start: int
    end: int
    table: TableShape
    dead_letters: TableShape | None  # None if the topic has no such table yet
    operation_id: str  # with which the names of the data files begin
    file_bytes: int  # how large a data file is meant to become
    set_aside: str = ""  # why all of its rows become dead letters, if somebody skips them
    log_bytes: int = 0  # about how much of the log it is, as far as the driver knows
    ticket: bytes = b""  # signed, for a service that needs tokens: tasks have none

    @property
    def span(self) -> LogSpan:
        return LogSpan(
            self.topic.name, self.partition, self.place, self.start, self.end, self.ticket
        )


class PieceDone(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a piece: its files, which nobody has committed, or why there are none.

    `files` and `dead_letters` are pickled lists of PyIceberg's DataFile.
    """

    number: int
    files: bytes = b""
    dead_letters: bytes = b""
    rows: int = 0
    dead_letter_rows: int = 0
    lost: tuple[tuple[int, int], ...] = ()  # holes of the log in the range
    checksum: str = ""  # of the last frame
    log_bytes: int = 0
    file_bytes: int = 0
    ingested_until_us: int = 0  # when the newest of the rows was taken in
    problem: Problem | None = None
    needs_dead_letters: bool = False  # then nothing was written: there is no table for them
