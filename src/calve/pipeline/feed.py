"""What the driver remembers of each topic and its partitions from one cycle to the next.

All of it can be forgotten: the table says how far it has come, the log what follows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from calve.pipeline.due import Pace
from calve.pipeline.plan import FileRatio

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

    from calve.errors import CalveError
    from calve.pipeline.backoff import Health
    from calve.pipeline.due import Waiting
    from calve.pipeline.work import TableShape
    from calve.sources.source_log import SourceLog
    from calve.tables.offsets import LogRange
    from calve.tables.positions import Position
    from calve.topics.topic import Topic


@dataclass(slots=True)
class Parcel:
    """A range that is written and not known to be in its table: committed with the same files."""

    rows: LogRange
    operation_id: str
    files: list[DataFile]
    dead_letters: list[DataFile]
    schema: Schema
    topic_version: int  # with which its rows were told from dead letters
    log_bytes: int
    row_count: int
    dead_letter_count: int
    ingested_until_us: int
    by_age: bool
    is_skip: bool  # all of its rows are set aside
    written_at: float  # by the clock that never jumps
    let_go: str  # what the table said of dead letters that were dropped, when it was read
    letters_at: str  # where the table lies that its dead letters were written for

    @property
    def paths(self) -> list[str]:
        return [file.file_path for file in (*self.files, *self.dead_letters)]


@dataclass(slots=True)
class PartitionFeed:
    """One partition on its way into the topic's table."""

    number: int
    pace: Pace = field(default_factory=Pace)
    log: SourceLog | None = None
    log_error: CalveError | None = None  # why it could not be looked at
    durable: int = 0  # as it was last looked at
    committed: int | None = None  # None: the table has to be asked, or the state told
    last_seen: Position | None = None
    published: int | None = None
    resets: int = 0  # how often the state had set it back, when the table was last asked
    parcel: Parcel | None = None
    waiting: Waiting | None = None
    waiting_range: tuple[int, int] = (0, 0)
    committed_at: datetime | None = None

    @property
    def is_behind(self) -> bool:
        """Whether there is something to bring to the table, or may be."""
        return self.committed is None or self.committed < self.durable

    def follow_resets(self, resets: int) -> None:
        """Ask the table again if the committed offset was set back, which is then no wonder."""
        if resets != self.resets:
            self.resets = resets
            self.committed = self.last_seen = self.published = None

    def forget_told(self) -> None:
        """The table has less than the state was told: ask it again, and tell that."""
        self.committed = self.published = None

    def forget_position(self) -> None:
        """Somebody else has a hand in the table: ask it again."""
        self.committed = None
        self.parcel = None


@dataclass(slots=True)
class TopicFeed:
    """One topic and its table. While it is busy, one thread alone works on it."""

    topic: Topic
    health: Health
    partitions: dict[int, PartitionFeed] = field(default_factory=dict)
    ratio: FileRatio = field(default_factory=FileRatio)
    dead_letters: TableShape | None = None
    knows_dead_letters: bool = False  # whether it was looked for their table
    is_due_now: bool = False
    served_at: float = 0.0
    _busy: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_busy(self) -> bool:
        return self._busy.locked()

    def take(self) -> bool:
        return self._busy.acquire(blocking=False)

    def give_back(self) -> None:
        self._busy.release()

    def follow(self, topic: Topic) -> None:
        """Take over what became of the topic."""
        if topic.partitions != self.topic.partitions:
            self.partitions.clear()
        self.topic = topic
        for number in topic.partitions:
            self.partitions.setdefault(number, PartitionFeed(number))
