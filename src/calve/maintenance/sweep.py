"""Reads the offsets of a whole snapshot, several files at a time, in the order of their offsets."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from calve.maintenance.coverage import Coverage
from calve.maintenance.gaps import Gaps
from calve.tables.offset_scan import OffsetFile, OffsetReader, grouped, offset_files
from calve.tables.ranges import Ranges
from calve.tables.removals import Removals
from calve.tables.runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyiceberg.table import Table

_WORKERS_MAX: Final = 4
_PROBLEMS_MAX: Final = 100


class PartitionCount:
    """What was seen of one partition, whose rows should be the offsets from 0 up to `end`."""

    def __init__(self, end: int, recorded: Ranges) -> None:
        self.end = end
        self.rows = 0
        self.beyond = Ranges()
        self.doubled = Ranges()
        self.gaps = Gaps(recorded)
        self._coverage = Coverage(end)

    def add(self, offsets: NDArray[np.int64]) -> None:
        self.rows += len(offsets)
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
    """The counts of all partitions, and what is wrong with single files."""

    partitions: dict[int, PartitionCount]
    unnumbered_rows: int = 0
    problems: list[str] = field(default_factory=list)


def sweep(table: Table, snapshot_id: int | None, ends: Mapping[int, int]) -> Sweep:
    """Count every offset of a snapshot; `ends` are the committed offsets of the partitions."""
    return _Sweeper(table, ends).run(offset_files(table, snapshot_id))


class _Sweeper:
    def __init__(self, table: Table, ends: Mapping[int, int]) -> None:
        self._table = table
        self._removals = Removals.parse(table.properties)
        self._lock = threading.Lock()
        self._found = Sweep({each: self._partition(each, end) for each, end in ends.items()})

    def run(self, files: list[OffsetFile]) -> Sweep:
        workers = max(1, min(os.cpu_count() or 1, _WORKERS_MAX))
        running: deque[tuple[OffsetFile, Future[None]]] = deque()
        with ThreadPoolExecutor(workers, thread_name_prefix="calve-verify") as pool:
            try:
                for file, reader in self._readers(files):
                    if len(running) >= 2 * workers:
                        running.popleft()[1].result()
                        self._settle(running[0][0])
                    running.append((file, pool.submit(self._count, file, reader)))
                for _, future in running:
                    future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        for partition in self._found.partitions.values():
            partition.close()
        return self._found

    def _readers(self, files: list[OffsetFile]) -> Iterator[tuple[OffsetFile, OffsetReader]]:
        for group in grouped(files):
            reader = OffsetReader(self._table, group)
            for file in group:
                yield file, reader

    def _count(self, file: OffsetFile, reader: OffsetReader) -> None:
        for piece in reader.pieces(file):
            with self._lock:
                self._found.unnumbered_rows += piece.unnumbered
                for number, offsets in piece.offsets.items():
                    self._check_bounds(file, offsets)
                    self._at(number).add(offsets)

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
        return PartitionCount(end, self._removals.ranges(number))
