"""Ranges of offsets, few enough to be kept in a table's properties, with an exact count of them.

A range is `a-b`, every offset from a up to b, or `a-b:n`, n of those offsets. Where more of them
come together than are kept, the nearest neighbours become one: which offsets it were is then known
less exactly, how many it were still is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from calve.tables.runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

RANGES_MAX: Final = 1_000
_TEXT: Final = re.compile(r"(\d{1,19})-(\d{1,19})(?::(\d{1,19}))?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """`count` of the offsets from `first` up to, not including, `end`."""

    first: int
    end: int
    count: int

    def __post_init__(self) -> None:
        assert 0 < self.count <= self.end - self.first

    @property
    def is_exact(self) -> bool:
        return self.count == self.end - self.first

    def __str__(self) -> str:
        return f"{self.first}-{self.end}" + ("" if self.is_exact else f":{self.count}")


@dataclass(frozen=True, slots=True)
class Ranges:
    """Sorted ranges that do not overlap, at most `RANGES_MAX`."""

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> Ranges:
        """The ranges as one value. Where two overlap, both speak of other offsets."""
        merged: list[Range] = []
        for each in sorted(ranges):
            if merged and _belong_together(merged[-1], each):
                merged[-1] = _joined(merged[-1], each)
            else:
                merged.append(each)
        return cls(_bounded(merged))

    @classmethod
    def exact(cls, *pairs: tuple[int, int]) -> Ranges:
        return cls.of(Range(first, end, end - first) for first, end in pairs if first < end)

    @classmethod
    def of_runs(cls, runs: Runs) -> Ranges:
        """Every offset of the runs."""
        if len(runs) > RANGES_MAX:
            runs, counts = _gathered(runs)
        else:
            counts = runs.lengths
        found = zip(runs.firsts.tolist(), runs.ends.tolist(), counts.tolist(), strict=True)
        return cls.of(Range(*each) for each in found)

    @classmethod
    def parse(cls, text: str) -> Ranges:
        """Read what `str` gives; ValueError for anything else."""
        found = [_parsed(part) for part in text.split(",")] if text else []
        if any(after.first < before.end for before, after in pairwise(found)):
            raise ValueError("the ranges overlap or are not sorted")
        return cls(_bounded(found))

    @property
    def count(self) -> int:
        """How many offsets they are."""
        return sum(each.count for each in self.ranges)

    def merged(self, other: Ranges) -> Ranges:
        """What is in one or the other; the two speak of different offsets."""
        return Ranges.of((*self.ranges, *other.ranges)) if other.ranges else self

    def without(self, runs: Runs) -> Ranges:
        """What is left when these offsets are taken out, as far as they were in."""
        kept: list[Range] = []
        for each in self.ranges:
            inside = runs.between(each.first, each.end)
            if not len(inside):
                kept.append(each)
            elif each.is_exact:
                rest = Ranges.of_runs(inside.gaps(each.first, each.end))
                kept.extend(rest.ranges)
            elif each.count > inside.count:
                kept.append(replace(each, count=each.count - inside.count))
        return Ranges.of(kept)

    def below(self, end: int) -> Ranges:
        """What lies before an offset; of a range across it, as many as fit."""
        return Ranges.of(
            Range(each.first, min(each.end, end), min(each.count, end - each.first))
            for each in self.ranges
            if each.first < end
        )

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __str__(self) -> str:
        return ",".join(map(str, self.ranges))


def _parsed(text: str) -> Range:
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no range")
    first, end = int(found[1]), int(found[2])
    count = int(found[3]) if found[3] else end - first
    if not 0 < count <= end - first:
        raise ValueError(f"{text!r} is no range")
    return Range(first, end, count)


def _belong_together(before: Range, after: Range) -> bool:
    if after.first == before.end:
        return before.is_exact and after.is_exact
    return after.first < before.end


def _joined(before: Range, after: Range) -> Range:
    end = max(before.end, after.end)
    return Range(before.first, end, min(before.count + after.count, end - before.first))


def _bounded(ranges: list[Range]) -> tuple[Range, ...]:
    """At most so many, by joining those with the fewest offsets between them."""
    if len(ranges) <= RANGES_MAX:
        return tuple(ranges)
    gaps = sorted(range(1, len(ranges)), key=lambda at: ranges[at].first - ranges[at - 1].end)
    closed = set(gaps[: len(ranges) - RANGES_MAX])
    bounded: list[Range] = []
    for at, each in enumerate(ranges):
        if at in closed:
            bounded[-1] = _joined(bounded[-1], each)
        else:
            bounded.append(each)
    return tuple(bounded)


def _gathered(runs: Runs) -> tuple[Runs, NDArray[np.int64]]:
    """The same for runs, of which there may be millions; and how many offsets are in each."""
    gaps = runs.firsts[1:] - runs.ends[:-1]
    kept = np.sort(np.argpartition(gaps, -(RANGES_MAX - 1))[-(RANGES_MAX - 1) :])
    starts = np.append(0, kept + 1)
    counts = np.add.reduceat(runs.lengths, starts)
    return Runs(runs.firsts[starts], runs.ends[np.append(kept, len(runs) - 1)]), counts
