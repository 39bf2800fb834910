"""Reads the offsets of a whole snapshot, several files at a time, in the order of their offsets.

Those of dead letters are counted with them: together they are every offset once.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from calve.errors import Corruption
from calve.maintenance.coverage import Coverage
from calve.maintenance.gaps import Gaps
from calve.maintenance.verification import told
from calve.tables.offset_scan import (
    OffsetFile,
    OffsetReader,
    grouped,
    readable_offset_files,
    stated_offsets,
)
from calve.tables.ranges import Ranges
from calve.tables.removals import Removals
from calve.tables.runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyiceberg.table import Table

_WORKERS_MAX: Final = 4
_PROBLEMS_MAX: Final = 100
NOTHING: Final = Removals()


class PartitionCount:
    """What was seen of one partition, whose rows should be the offsets from 0 up to `end`."""

    def __init__(self, end: int, recorded: Ranges) -> None:
        self.end = end
        self.rows = 0
        self.dead_letters = 0
        self.beyond = Ranges()
        self.doubled = Ranges()
        self.gaps = Gaps(recorded)
        self._coverage = Coverage(end)

    def add(self, offsets: NDArray[np.int64]) -> None:
        self.rows += len(offsets)
        self._cover(offsets)

    def add_dead_letters(self, offsets: NDArray[np.int64], end: int) -> None:
        """Count dead letters, which should lie before `end`: their table may be read later."""
        newer = np.searchsorted(offsets, (self.end, max(self.end, end)))
        self.dead_letters += int(newer[0])
        self._cover(np.concatenate((offsets[: newer[0]], offsets[newer[1] :])))

    def _cover(self, offsets: NDArray[np.int64]) -> None:
        start, stop = np.searchsorted(offsets, (self._coverage.settled, self.end))
        # What lies before what is settled was noticed as lying outside the bounds of its file.
        outside = [offsets[: np.searchsorted(offsets, 0)], offsets[stop:]]
        for part in outside:
            if len(part):
                self.beyond = self.beyond.merged(Ranges.of_runs(Runs.of_sorted(part)))
        if start < stop:
            self._coverage.add(offsets[start:stop])

    def settle(self, before: int) -> None:
        gaps, doubled = self._coverage.settle(before)
        self.gaps.add(gaps)
        self.doubled = self.doubled.merged(Ranges.of_runs(doubled))

    def close(self) -> None:
        self.settle(self.end)
        self.gaps.close()


@dataclass(slots=True)
class Sweep:
    """The counts of all partitions, and what is wrong with single files.

    `damage` tells of those that cannot be read: what they hold is not counted.
    """

    partitions: dict[int, PartitionCount]
    unnumbered_rows: int = 0
    problems: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Source:
    """Files with rows of a topic, or with dead letters, which should lie before `letter_ends`."""

    table: Table
    files: Sequence[OffsetFile]
    letter_ends: Mapping[int, int] | None = None


def sweep(
    table: Table,
    snapshot_id: int | None,
    ends: Mapping[int, int],
    letters: Sequence[Source] = (),
    discarded: Removals = NOTHING,
    go_on: Callable[[], object] = lambda: None,
) -> Sweep:
    """Count every offset of a snapshot; `ends` are the committed offsets of the partitions.

    `discarded` are those that were removed from the dead letters on purpose. `go_on` is called
    before each file, and raises where nobody wants to know any more.
    """
    recorded = Removals.parse(table.properties)
    for partition, end in ends.items():
        before = discarded.ranges(partition).below(end)
        recorded = recorded.merged(Removals({partition: before}))
    files, damage = readable_offset_files(table, snapshot_id)
    found = _Sweeper(recorded, ends, go_on).run([Source(table, files), *letters])
    found.damage[:0] = map(told, damage)
    return found


class _Sweeper:
    def __init__(
        self,
        recorded: Removals,
        ends: Mapping[int, int],
        go_on: Callable[[], object] = lambda: None,
    ) -> None:
        self._recorded = recorded
        self._go_on = go_on
        self._lock = threading.Lock()
        self._found = Sweep({each: self._partition(each, end) for each, end in ends.items()})
        self._untold = 0

    def run(self, sources: Sequence[Source]) -> Sweep:
        workers = max(1, min(os.cpu_count() or 1, _WORKERS_MAX))
        running: deque[tuple[OffsetFile, Future[None]]] = deque()
        with ThreadPoolExecutor(workers, thread_name_prefix="calve-verify") as pool:
            try:
                for part in heapq.merge(*map(_parts, sources), key=_first):
                    self._go_on()
                    if len(running) >= 2 * workers:
                        running.popleft()[1].result()
                        self._settle(running[0][0])
                    running.append((part.file, pool.submit(self._count_readable, part)))
                for _, future in running:
                    future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        for partition in self._found.partitions.values():
            partition.close()
        if self._untold:
            self._found.damage.append(f"{self._untold} more files cannot be read")
        return self._found

    def _count_readable(self, part: _Part) -> None:
        """Count a file; one that is gone or damaged does not keep others from being counted."""
        try:
            self._count(part)
        except Corruption as error:
            with self._lock:
                if len(self._found.damage) < _PROBLEMS_MAX:
                    self._found.damage.append(_unread(part, error))
                else:
                    self._untold += 1

    def _count(self, part: _Part) -> None:
        reader = part.reader or OffsetReader(part.table, [part.file])
        for piece in reader.pieces(part.file):
            with self._lock:
                for number, offsets in piece.offsets.items():
                    self._check_bounds(part.file, offsets)
                    if part.letter_ends is None:
                        self._at(number).add(offsets)
                    else:
                        end = part.letter_ends.get(number, 0)
                        self._at(number).add_dead_letters(offsets, end)
                if part.letter_ends is None:
                    self._found.unnumbered_rows += piece.unnumbered

    def _check_bounds(self, file: OffsetFile, offsets: NDArray[np.int64]) -> None:
        """Readers leave out a file by what its manifest says: that must be true."""
        if file.first is None or file.last is None:
            return
        if file.first <= offsets[0] and offsets[-1] <= file.last:
            return
        told = (
            f"{file.path} has offsets {offsets[0]} to {offsets[-1]}, but its manifest says "
            f"{file.first} to {file.last}: readers will leave out rows"
        )
        if len(self._found.problems) < _PROBLEMS_MAX:
            self._found.problems.append(told)

    def _settle(self, oldest: OffsetFile) -> None:
        """Of the files that are not done yet, none begins before this one."""
        if oldest.first is not None:
            with self._lock:
                for partition in self._found.partitions.values():
                    partition.settle(oldest.first)

    def _at(self, number: int) -> PartitionCount:
        found = self._found.partitions.get(number)
        if found is None:
            found = self._found.partitions[number] = self._partition(number, 0)
        return found

    def _partition(self, number: int, end: int) -> PartitionCount:
        return PartitionCount(end, self._recorded.ranges(number))


class _Part(NamedTuple):
    table: Table
    file: OffsetFile
    reader: OffsetReader | None  # None if the file needs one of its own
    letter_ends: Mapping[int, int] | None


def _parts(source: Source) -> Iterator[_Part]:
    for group in grouped(source.files):
        reader = _reader(source.table, group)
        for file in group:
            yield _Part(source.table, file, reader, source.letter_ends)


def _reader(table: Table, group: Sequence[OffsetFile]) -> OffsetReader | None:
    """One for all of them, unless deletes of one cannot be read."""
    try:
        return OffsetReader(table, group)
    except Corruption:
        return None


def _unread(part: _Part, error: Corruption) -> str:
    stated = stated_offsets(part.table, part.file.task.file)
    held = [
        f"{each.first}-{each.end} of partition {partition}"
        for partition, runs in stated.items()
        for each in Ranges.of_runs(runs)
    ]
    said = f"has offsets {', '.join(held)}" if held else "does not say which offsets it has"
    return f"{part.file.path} cannot be read, and its manifest {said}: {told(error)}"


def _first(part: _Part) -> int:
    return -1 if part.file.first is None else part.file.first
