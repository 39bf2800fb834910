"""Which offsets of a partition were seen, and which more than once; in any order, in little memory.

One bit for each offset, in chunks. A chunk that one run fills costs nothing, and one below which
nothing more can come is settled and let go of: so rows that come roughly in order need memory for a
few chunks, and rows in no order at all an eighth of a byte each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from calve.tables.runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[np.uint8]

CHUNK_OFFSETS: Final = 1 << 20
_FULL: Final = np.full(CHUNK_OFFSETS // 8, 0xFF, np.uint8)
_FULL.flags.writeable = False
# Shorter runs than this are cheaper to mark offset by offset.
_RUN_OFFSETS_MIN: Final = 64


class _Chunk:
    __slots__ = ("doubled", "seen")

    def __init__(self) -> None:
        self.seen: Bits = np.zeros(CHUNK_OFFSETS // 8, np.uint8)
        self.doubled: Bits | None = None

    def mark(self, at: slice | NDArray[np.int64], bits: Bits) -> None:
        before = self.seen[at]
        again = before & bits
        if again.any():
            if self.doubled is None:
                self.doubled = np.zeros_like(self.seen)
            self.doubled[at] |= again
        if self.seen is not _FULL:
            self.seen[at] = before | bits

    def mark_run(self, first: int, end: int) -> None:
        if end - first == CHUNK_OFFSETS and not self.seen.any():
            self.seen = _FULL
            return
        bits = np.full((end + 7) // 8 - first // 8, 0xFF, np.uint8)
        bits[0] &= 0xFF >> (first % 8)
        bits[-1] &= (0xFF << (-end % 8)) & 0xFF
        self.mark(slice(first // 8, (end + 7) // 8), bits)

    def mark_each(self, offsets: NDArray[np.int64]) -> None:
        """Offsets, sorted and each once."""
        places = offsets >> 3
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        single = np.right_shift(0x80, offsets & 7).astype(np.uint8)
        self.mark(places[starts], np.bitwise_or.reduceat(single, starts))


class Coverage:
    """The offsets of one partition from 0 up to `end`."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._settled = 0
        self._chunks: dict[int, _Chunk] = {}

    def add(self, offsets: NDArray[np.int64]) -> None:
        """Take sorted offsets, none of them outside."""
        repeated = offsets[1:] == offsets[:-1]
        if repeated.any():
            again = np.unique(offsets[1:][repeated])
            self._add_unique(offsets[np.append(True, ~repeated)])
            offsets = again
        self._add_unique(offsets)

    def settle(self, before: int) -> tuple[Runs, Runs]:
        """What is missing and what is doubled, from where the last call stopped.

        Nothing below `before` may come any more. Whole chunks only, but for the end.
        """
        stop = self._end if before >= self._end else before // CHUNK_OFFSETS * CHUNK_OFFSETS
        if stop <= self._settled:
            return Runs.empty(), Runs.empty()
        seen: list[Runs] = []
        doubled: list[Runs] = []
        for number in sorted(each for each in self._chunks if each * CHUNK_OFFSETS < stop):
            chunk = self._chunks.pop(number)
            seen.append(_runs(chunk.seen, number))
            if chunk.doubled is not None:
                doubled.append(_runs(chunk.doubled, number))
        missing = Runs.joined(seen).gaps(self._settled, stop)
        self._settled = stop
        return missing, Runs.joined(doubled)

    @property
    def settled(self) -> int:
        """What is below can no longer be added to."""
        return self._settled

    def _add_unique(self, offsets: NDArray[np.int64]) -> None:
        runs = Runs.of_sorted(offsets)
        if len(runs) * _RUN_OFFSETS_MIN <= len(offsets):
            for first, end in runs.pairs():
                self._add_run(first, end)
            return
        numbers = offsets // CHUNK_OFFSETS
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for number, part in zip(numbers[starts], np.split(offsets, starts[1:]), strict=True):
            self._chunk(int(number)).mark_each(part - number * CHUNK_OFFSETS)

    def _add_run(self, first: int, end: int) -> None:
        for number in range(first // CHUNK_OFFSETS, (end - 1) // CHUNK_OFFSETS + 1):
            start = number * CHUNK_OFFSETS
            self._chunk(number).mark_run(max(first - start, 0), min(end - start, CHUNK_OFFSETS))

    def _chunk(self, number: int) -> _Chunk:
        found = self._chunks.get(number)
        if found is None:
            found = self._chunks[number] = _Chunk()
        return found


def _runs(bits: Bits, number: int) -> Runs:
    start = number * CHUNK_OFFSETS
    if bits is _FULL or (bits == 0xFF).all():
        return Runs.of_pairs([(start, start + CHUNK_OFFSETS)])
    padded = np.zeros(CHUNK_OFFSETS + 2, np.bool_)
    padded[1:-1] = np.unpackbits(bits)
    turns = np.flatnonzero(padded[1:] != padded[:-1]) + start
    return Runs(turns[::2], turns[1::2])
