"""Cuts what waits in a log into ranges, and these into pieces that become data files.

Of a backlog a range takes as many pieces as tasks run at once, each of which is to become one file
of a good size; what is left is for the next cycle. How many bytes of a file come of a byte of the
log is learned per topic from what was written before; of a topic that nothing is known of, a small
part is written first.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calve.sources.source_log import SourceLog

# A file is to have so much of the table's target size.
_SHARE_MIN: Final = 0.55
_SHARE: Final = 0.85
_SHARE_MAX: Final = 0.95
_REST_SHARE: Final = 0.05
_LEARNING_BYTES: Final = 32 << 20
_TELLING_BYTES: Final = 1 << 16  # of less, most of a file is what every file has
_NEW_SHARE: Final = 0.5


class FileRatio:
    """Bytes on disk for each byte of a topic's log."""

    def __init__(self) -> None:
        self.known: float | None = None

    def learn(self, log_bytes: int, file_bytes: int) -> None:
        if log_bytes < _TELLING_BYTES or not file_bytes:
            return
        found = file_bytes / log_bytes
        before = found if self.known is None else self.known
        self.known = _NEW_SHARE * found + (1 - _NEW_SHARE) * before


def pieces_of(log_bytes: int, ratio: float | None, target_bytes: int, tasks: int) -> list[float]:
    """The sizes, in bytes of the log, of the pieces to be written now of so much that waits."""
    if ratio is None:
        first = min(_LEARNING_BYTES, int(_SHARE * target_bytes))
        return [log_bytes if log_bytes <= 2 * first else first]
    file_bytes = log_bytes * ratio
    if file_bytes <= _SHARE_MAX * target_bytes:
        return [log_bytes]
    one = _SHARE * target_bytes / ratio
    if file_bytes >= tasks * _SHARE_MAX * target_bytes:
        return [one] * tasks
    least = ceil(file_bytes / (_SHARE_MAX * target_bytes))
    most = int(file_bytes / (_SHARE_MIN * target_bytes))
    if least > most:
        return [one]
    count = max(least, min(most, tasks))
    return [log_bytes / count] * count


def cut(log: SourceLog, start: int, end: int, sizes: list[float], log_bytes: int) -> list[int]:
    """The offsets at which the pieces begin, and the one at which the last of them ends."""
    row_bytes = log_bytes / (end - start)
    ends = [start]
    for size in sizes:
        before = ends[-1]
        wanted = before + max(round(size / row_bytes), 1)
        # Rather a little more than a few rows for a file of their own.
        is_all = wanted + (wanted - before) * _REST_SHARE >= end
        ends.append(end if is_all else log.cut(before, wanted))
        if is_all:
            break
    return ends
