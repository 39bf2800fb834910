"""Sets of offsets as runs of neighbours, exact and of any size; a set of long runs costs little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_HERE: Final = 1
_THERE: Final = 2


class Runs:
    """Runs from `firsts` up to, not including, `ends`: sorted, none touching the next."""

    __slots__ = ("ends", "firsts")

    def __init__(self, firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.firsts = firsts
        self.ends = ends

    @classmethod
    def empty(cls) -> Runs:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of_pairs(cls, pairs: Iterable[tuple[int, int]]) -> Runs:
        listed = np.array([pair for pair in pairs if pair[0] < pair[1]], np.int64).reshape(-1, 2)
        return cls._merged(listed[:, 0], listed[:, 1])

    @classmethod
    def joined(cls, parts: Sequence[Runs]) -> Runs:
        """All of them together."""
        if len(parts) <= 1:
            return parts[0] if parts else cls.empty()
        return cls._merged(
            np.concatenate([part.firsts for part in parts]),
            np.concatenate([part.ends for part in parts]),
        )

    @classmethod
    def _merged(cls, firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> Runs:
        """Runs in any order, overlapping or not."""
        if not len(firsts):
            return cls.empty()
        order = np.argsort(firsts, kind="stable")
        firsts, reached = firsts[order], np.maximum.accumulate(ends[order])
        breaks = np.flatnonzero(firsts[1:] > reached[:-1])
        return cls(firsts[np.append(0, breaks + 1)], reached[np.append(breaks, len(firsts) - 1)])

    @classmethod
    def of_sorted(cls, offsets: NDArray[np.int64]) -> Runs:
        """The offsets, which are sorted; one that comes several times is in the set once."""
        if not len(offsets):
            return cls.empty()
        breaks = np.flatnonzero(offsets[1:] > offsets[:-1] + 1)
        firsts = offsets[np.append(0, breaks + 1)]
        ends = offsets[np.append(breaks, len(offsets) - 1)] + 1
        return cls(firsts, ends)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.ends - self.firsts

    @property
    def count(self) -> int:
        """How many offsets they are."""
        return int(self.lengths.sum())

    def union(self, other: Runs) -> Runs:
        return self._combined(other, (_HERE, _THERE, _HERE + _THERE)) if len(other) else self

    def minus(self, other: Runs) -> Runs:
        return self._combined(other, (_HERE,)) if len(other) else self

    def intersection(self, other: Runs) -> Runs:
        return self._combined(other, (_HERE + _THERE,))

    def between(self, first: int, end: int) -> Runs:
        """The part from an offset on and before another."""
        start = int(np.searchsorted(self.ends, first, side="right"))
        stop = max(start, int(np.searchsorted(self.firsts, end, side="left")))
        return Runs(
            np.maximum(self.firsts[start:stop], first), np.minimum(self.ends[start:stop], end)
        )

    def holding(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each of some offsets, in any order, whether it is in the set."""
        if not len(self):
            return np.zeros(len(offsets), np.bool_)
        at = np.searchsorted(self.firsts, offsets, side="right") - 1
        return (at >= 0) & (offsets < self.ends[at])

    def gaps(self, first: int, end: int) -> Runs:
        """What is not in the set, from an offset on and before another."""
        return Runs.of_pairs([(first, end)]).minus(self)

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.firsts.tolist(), self.ends.tolist(), strict=True))

    def __len__(self) -> int:
        """How many runs they are."""
        return len(self.firsts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Runs)
            and np.array_equal(self.firsts, other.firsts)
            and np.array_equal(self.ends, other.ends)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ",".join(f"{first}-{end}" for first, end in self.pairs()[:10])
        return f"Runs({shown}{',…' if len(self) > 10 else ''})"

    def _combined(self, other: Runs, wanted: tuple[int, ...]) -> Runs:
        """The offsets that are only in this set, only in the other, in both, as wanted."""
        points = np.concatenate((self.firsts, self.ends, other.firsts, other.ends))
        sizes = (len(self), len(self), len(other), len(other))
        steps = np.repeat(np.array((_HERE, -_HERE, _THERE, -_THERE), np.int8), sizes)
        order = np.argsort(points, kind="stable")
        points, inside = points[order], np.cumsum(steps[order], dtype=np.int8)
        last_of_equals = np.append(points[1:] != points[:-1], True)[: len(points)]
        points, inside = points[last_of_equals], inside[last_of_equals]
        is_wanted = np.isin(inside, wanted)
        turns = np.flatnonzero(np.diff(is_wanted, prepend=False))
        return Runs(points[turns[::2]], points[turns[1::2]])
