"""What has to be known of the log of a partition, wherever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from calve.sources.place import LogPlace
    from calve.wal import Entry
    from calve.wal.extent import Extent


class Trimmed(Exception):
    """The log has let go of the rows that were asked for: they are in the table."""


class SourceLog(Protocol):
    """The log of one partition of a topic."""

    @property
    def place(self) -> LogPlace: ...

    @property
    def durable(self) -> int: ...

    @property
    def begins_at(self) -> int:
        """The offset with which this life of the partition began."""
        ...

    def require(self, committed: int) -> None:
        """Conflict if the log cannot be the one whose rows a table has up to there."""
        ...

    def extent(self, start: int, end: int) -> Extent:
        """What it holds between two offsets, as far as that can be told without reading it."""
        ...

    def cut(self, start: int, offset: int) -> int:
        """A good place to end a range at, before an offset or there, and behind `start`."""
        ...


class ReadableLog(SourceLog, Protocol):
    """The same for those who read it from where they are."""

    @property
    def first(self) -> int:
        """The first offset that it still holds."""
        ...

    def run(self, start: int, end: int, bytes_max: int = ...) -> list[Entry]:
        """Entries from `start` on, as many as are worked on together; Trimmed if they are gone.

        About so many bytes of them, but one at least.
        """
        ...

    def offset_at(self, moment: datetime) -> int:
        """The first offset that came at a time or later; the durable end if none did."""
        ...
