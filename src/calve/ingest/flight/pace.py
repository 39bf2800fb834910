"""Whether a sender goes on without waiting for its answers, judged by how its batches come.

While answers are owed it is certain. Otherwise it is a guess: batches that were there when they
were asked for. A client on the same machine can be as fast although it waits, so each guess that
turns out wrong has the next one wait for twice as many of them.
"""

from __future__ import annotations

from typing import Final

# A read that took less found its message there.
_READ_SECONDS: Final = 0.000_05
_READ_SECONDS_PER_BYTE: Final = 1e-9
_READS: Final = 3  # one may be chance
_READS_MAX: Final = 1 << 12
# Of larger batches a wrong guess costs next to nothing, and one that is not made half the speed.
_DOUBTED_BYTES_MAX: Final = 1 << 16


class Pace:
    """Of one stream. Not safe to share between threads."""

    __slots__ = ("_fast_reads", "_is_guess", "_reads_wanted")

    def __init__(self) -> None:
        self._fast_reads = 0
        self._reads_wanted = _READS
        self._is_guess = False  # what was said last

    def goes_on(self, read_seconds: float, content_bytes: int, *, is_owed: bool) -> bool:
        """Of a batch that took so long to be read, when answers to others were owed or not."""
        if is_owed:
            self._is_guess = False
            self._reads_wanted = _READS
            return True
        if self._is_guess and content_bytes <= _DOUBTED_BYTES_MAX:
            self._fast_reads = 0  # it has waited for the answer after all
            self._reads_wanted = min(2 * self._reads_wanted, _READS_MAX)
        if read_seconds < _READ_SECONDS + _READ_SECONDS_PER_BYTE * content_bytes:
            self._fast_reads += 1
        else:
            self._fast_reads = 0
        self._is_guess = self._fast_reads >= self._reads_wanted
        return self._is_guess
