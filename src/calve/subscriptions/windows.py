"""Cuts a range of offsets into windows, each read at once from the files that reach into it.

Files are known by their bounds. Those that overlap, as after a compaction or where the user has
another order, are read together and sorted; small neighbours too, so that a table of many small
files is not read in as many batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from calve.tables.offset_plan import RangeFile

WINDOW_ROWS: Final = 131_072
WINDOW_BYTES: Final = 16 * 1024 * 1024
_FILES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Window:
    """The offsets from `start` up to `end`, and all files that may have rows there."""

    start: int
    end: int
    files: tuple[RangeFile, ...]

    @property
    def is_large(self) -> bool:
        """Whether it is more than should be in memory at once."""
        return self.rows > 2 * WINDOW_ROWS or self.bytes > 2 * WINDOW_BYTES

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def parts(self) -> Iterator[Window]:
        """The window in pieces of about one window's rows, were they evenly spread."""
        first = max(self.start, min(file.first for file in self.files))
        last = max(file.last for file in self.files)
        count = max(1, self.rows // WINDOW_ROWS, self.bytes // WINDOW_BYTES)
        step = max(1, -(-(last + 1 - first) // count))
        at = self.start
        for begin in range(first, last + 1, step):
            end = self.end if begin + step > last else begin + step
            files = tuple(f for f in self.files if f.first < end and f.last >= at)
            yield Window(at, end, files)
            at = end


def windows_of(files: Sequence[RangeFile], start: int, end: int) -> list[Window]:
    """Windows that follow each other from `start` to `end`; the files are by first offset.

    The first ones have few files, so that the first row comes soon.
    """
    found: list[Window] = []
    gathered: list[RangeFile] = []
    files_max, at = 1, start
    groups = list(_overlapping(files))
    for number, group in enumerate(groups):
        gathered += group
        is_last = number + 1 == len(groups)
        if not is_last and _fits([*gathered, *groups[number + 1]], files_max):
            continue
        reached = end if is_last else groups[number + 1][0].first
        found.append(Window(at, reached, tuple(gathered)))
        gathered, at = [], reached
        files_max = min(2 * files_max, _FILES_MAX)
    return found


def _fits(files: Sequence[RangeFile], files_max: int) -> bool:
    return (
        len(files) <= files_max
        and sum(file.rows for file in files) <= WINDOW_ROWS
        and sum(file.bytes for file in files) <= WINDOW_BYTES
    )


def _overlapping(files: Sequence[RangeFile]) -> Iterator[list[RangeFile]]:
    """Files in groups of which none reaches into another."""
    group: list[RangeFile] = []
    reached = -1
    for file in files:
        if group and file.first > reached:
            yield group
            group = []
        group.append(file)
        reached = max(reached, file.last)
    if group:
        yield group
