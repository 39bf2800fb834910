"""What an audit of a topic found, as plain values for those who show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from calve.errors import CalveError
from calve.tables.ranges import Range


@dataclass(frozen=True, slots=True)
class Removed:
    """Offsets that were taken out on purpose, and the kept snapshots that did it."""

    snapshot_ids: tuple[int, ...]
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class LogState:
    """What the log holds of a partition, and where it contradicts the table.

    `lost` are its holes from the committed offset on.
    """

    first: int | None
    durable: int | None
    problems: tuple[str, ...] = ()
    lost: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition: every offset below the committed one is there once, or is told of here.

    `rows` counts those with an offset, `dead_letters` those that were set aside. `missing`,
    `doubled` and `beyond` are defects; `removed` and `known_loss` are not. `returned` counts
    offsets that are recorded as removed and are there.
    """

    partition: int
    committed: int
    rows: int
    missing: tuple[Range, ...]
    doubled: tuple[Range, ...]
    beyond: tuple[Range, ...]
    removed: tuple[Range, ...]
    removed_by: tuple[Removed, ...]
    known_loss: tuple[Range, ...]
    returned: int
    log: LogState | None
    problems: tuple[str, ...]
    dead_letters: int = 0

    @property
    def is_sound(self) -> bool:
        in_log = self.log.problems if self.log else ()
        return not (self.missing or self.doubled or self.beyond or self.problems or in_log)


@dataclass(frozen=True, slots=True)
class OrphanFile:
    """A data file that no snapshot refers to; a young one may be about to be committed."""

    path: str
    bytes: int
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class Verification:
    """A topic's table at one snapshot. `unnumbered_rows` were inserted by hand.

    `dead_letters` are the rows that were set aside, `pending_dead_letters` those among them that
    are not in the table of dead letters yet.
    A topic of which nothing was committed yet has no table: then this is about its log alone.
    """

    topic: str
    table: str
    snapshot_id: int | None
    is_sound: bool
    rows: int
    unnumbered_rows: int
    partitions: tuple[PartitionReport, ...]
    problems: tuple[str, ...]
    orphans: tuple[OrphanFile, ...] | None = None
    dead_letters: int = 0
    pending_dead_letters: int = 0
    has_table: bool = True


def told(error: CalveError) -> str:
    """An error as one of the problems."""
    return f"{error.message} ({error.hint})" if error.hint else error.message
