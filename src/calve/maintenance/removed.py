"""Which snapshots took out the offsets that are not there any more, each offset told of once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.tables.ranges import Range, Ranges
from calve.tables.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from calve.maintenance.verification import Removed


def removed_with_snapshots(
    removed: tuple[Range, ...], removed_by: Sequence[Removed]
) -> list[tuple[Range, tuple[int, ...]]]:
    """The removed ranges in parts, with the snapshots that each is known to be from.

    Of several that took the same offset the first that is given is named. What a snapshot knows in
    number only is taken for a part if that is exactly what was removed.
    """
    left = Ranges(removed)
    found: list[tuple[Range, tuple[int, ...]]] = []
    for each in removed_by:
        same = set(left).intersection(each.ranges)
        found += [(range_, each.snapshot_ids) for range_ in same]
        left = Ranges(tuple(range_ for range_ in left if range_ not in same))
        runs = Runs.of_pairs(
            (range_.first, range_.end) for range_ in each.ranges if range_.is_exact
        )
        found += [(range_, each.snapshot_ids) for range_ in _inside(left, runs)]
        left = left.without(runs)
    return sorted([*found, *((range_, ()) for range_ in left)])


def _inside(ranges: Ranges, runs: Runs) -> Iterator[Range]:
    for each in ranges:
        inside = runs.between(each.first, each.end)
        if each.is_exact:
            yield from Ranges.of_runs(inside)
        elif len(inside):
            first, end = int(inside.firsts[0]), int(inside.ends[-1])
            yield Range(first, end, min(inside.count, each.count))
