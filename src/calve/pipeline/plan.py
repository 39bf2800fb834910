"""Cuts what waits in a log into ranges, and these into pieces that become data files.

Of a backlog a range takes as many pieces as tasks run at once, each of which is to become one file
of a good size; what is left is for the next cycle. How many bytes of a file come of a byte of the
log is learned per topic from what was written before; of a topic that nothing is known of, a
sample is written first, and let go.
"""

from __future__ import annotations

from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calve.sources.source_log import SourceLog

# A file is to have so much of the table's target size.
_SHARE: Final = 0.85
_SHARE_MAX: Final = 0.95
_REST_SHARE: Final = 0.05
# What looks like so much may as well fit into one file: whoever writes it knows better, and makes
# two even ones if it does not. Two planned now would both be small if the estimate was too high.
_ONE_FILE_SHARE: Final = 1.1
# Of a piece: how far before its end it may end with a frame. With this much more of it, the next
# one is still one file.
_FRAME_SHARE: Final = 0.03
_SAMPLE_BYTES: Final = 32 << 20
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


def sample_bytes(log_bytes: int, ratio: float | None, target_bytes: int) -> int | None:
    """How much of the log to write only to learn what becomes of it; None if that is no matter.

    It is none where one file will do, as far as files are not larger than the log.
    """
    if ratio is not None or log_bytes <= _SHARE_MAX * target_bytes:
        return None
    return min(_SAMPLE_BYTES, int(_SHARE * target_bytes))


def pieces_of(log_bytes: int, ratio: float, target_bytes: int, tasks: int) -> list[float]:
    """The sizes, in bytes of the log, of the pieces to be written now of so much that waits."""
    files = log_bytes * ratio / target_bytes
    if files <= _ONE_FILE_SHARE:
        return [log_bytes]
    if files >= 2 * tasks * _SHARE_MAX:
        return [_SHARE * target_bytes / ratio] * tasks
    # Near its end a backlog is shared out evenly, so that no small file is left for the last.
    count = ceil(files / _SHARE_MAX)
    return [log_bytes / count] * min(count, tasks)


def cut(log: SourceLog, start: int, end: int, sizes: list[float], log_bytes: int) -> list[int]:
    """The offsets at which the pieces begin, and the one at which the last of them ends."""
    row_bytes = log_bytes / (end - start)
    ends = [start]
    for reached in accumulate(sizes):
        before = ends[-1]
        # Counted from the start: what a piece lacks, as frames end before, the next one has.
        wanted = max(start + round(reached / row_bytes), before + 1)
        # Rather a little more than a few rows for a file of their own.
        is_all = wanted + (wanted - before) * _REST_SHARE >= end
        ends.append(end if is_all else _near_frame(log, before, wanted))
        if is_all:
            break
    return ends


def _near_frame(log: SourceLog, start: int, wanted: int) -> int:
    """Where a frame ends, if one does shortly before; else in the middle of it."""
    found = log.cut(start, wanted)
    return found if wanted - found <= _FRAME_SHARE * (wanted - start) else wanted
