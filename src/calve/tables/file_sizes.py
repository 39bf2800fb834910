"""How many rows make a data file of the size that is wanted: learned from what was written before.

Estimates only, which threads share without a lock: a file may miss its size when rows become very
different from one piece to the next.
"""

from __future__ import annotations

import math
from typing import Final

# Of the size that is wanted: what a file is filled up to, with its footer still to come.
_FILLED: Final = 0.92
# Of the same: what one file may hold where nothing comes after it.
_WHOLE: Final = 0.98
# Of what a file is filled up to: enough to close it.
_ENOUGH: Final = 0.9
_ROWS_MAX: Final = 2**40


class FileSizes:
    """What Arrow's bytes become on disk, and where to cut."""

    def __init__(self, target_bytes: int, rows_expected: int | None = None) -> None:
        """With `rows_expected`, all files together hold so many, and are cut evenly."""
        self._full_bytes = max(1.0, _FILLED * target_bytes)
        self._whole_bytes = _WHOLE * target_bytes
        self._rows_expected = rows_expected
        self._rows = 0
        self._bytes = 0
        # Of the last writes, the latest counting most.
        self._recent_arrow_bytes = 0.0
        self._recent_bytes = 0.0

    def learn(self, rows: int, arrow_bytes: float, written_bytes: int) -> None:
        self._rows += rows
        self._bytes += written_bytes
        self._recent_arrow_bytes = self._recent_arrow_bytes / 2 + arrow_bytes
        self._recent_bytes = self._recent_bytes / 2 + written_bytes

    def goal_bytes(self, file_bytes: int, left_bytes: float | None) -> float:
        """What a file that has so many is to be filled up to.

        `left_bytes` is what Arrow has left, where nothing more will come.
        """
        total = self._total_bytes(file_bytes, left_bytes)
        if total is None:
            return self._full_bytes
        if total <= self._whole_bytes:
            return math.inf
        return total / max(2, math.ceil(total / self._full_bytes))

    def _total_bytes(self, file_bytes: int, left_bytes: float | None) -> float | None:
        """What the file and those after it will hold, as far as that is known."""
        if left_bytes is not None:
            return file_bytes + left_bytes * self._ratio if self._recent_bytes else None
        if self._rows_expected is None or not self._rows:
            return None
        left_rows = max(0, self._rows_expected - self._rows)
        return file_bytes + left_rows * self._bytes / self._rows

    def rows_within(self, room_bytes: float, row_bytes: float) -> int:
        """How many rows of so many bytes in Arrow are likely to fit; at least one."""
        count = room_bytes / max(row_bytes * self._ratio, 1e-9)
        return int(min(max(1.0, count), _ROWS_MAX))

    @property
    def _ratio(self) -> float:
        if not self._recent_arrow_bytes:
            return 1.0
        return max(self._recent_bytes / self._recent_arrow_bytes, 1e-6)


def is_enough(file_bytes: int, goal_bytes: float) -> bool:
    return file_bytes >= _ENOUGH * goal_bytes
