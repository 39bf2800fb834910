"""What the driver has to know of the log of a partition, wherever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from calve.pipeline.work import LogPlace
    from calve.wal.extent import Extent


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
        """A good place to end a range at, not far before an offset and behind `start`."""
        ...
