"""Which snapshot took which offsets out: each removed offset is told of once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from calve.maintenance.removed import removed_with_snapshots
from calve.maintenance.verification import Removed
from calve.tables.ranges import Range, Ranges


def exact(first: int, end: int) -> Range:
    return Range(first, end, end - first)


def by(snapshot: int, *ranges: Range) -> Removed:
    return Removed((snapshot,), ranges)


def told(removed: tuple[Range, ...], *removed_by: Removed) -> list[tuple[str, int | None]]:
    found = removed_with_snapshots(removed, removed_by)
    return [(str(each), ids[0] if ids else None) for each, ids in found]


def test_a_merged_range_is_told_by_the_snapshots_that_made_it_and_the_rest_by_none() -> None:
    found = told((exact(2, 11),), by(8, exact(4, 5)), by(7, exact(2, 4)), by(9, exact(8, 10)))
    assert found == [("2-4", 7), ("4-5", 8), ("5-8", None), ("8-10", 9), ("10-11", None)]


def test_of_two_snapshots_that_took_the_same_the_newest_is_named() -> None:
    assert told((exact(0, 10),), by(2, exact(5, 10)), by(1, exact(0, 10))) == [
        ("0-5", 1),
        ("5-10", 2),
    ]


def test_what_has_come_back_is_not_told_of() -> None:
    assert told((exact(0, 3),), by(1, exact(0, 9))) == [("0-3", 1)]
    assert told((), by(1, exact(0, 9))) == []


def test_a_range_that_is_known_in_number_only_has_its_snapshot_if_that_says_the_same() -> None:
    rough = Range(0, 100, 40)
    assert told((rough,), by(1, rough)) == [("0-100:40", 1)]
    assert told((exact(0, 100),), by(1, rough)) == [("0-100", None)]
    assert told((rough,), by(1, exact(10, 20))) == [("0-100:30", None), ("10-20", 1)]


_PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=6)


@given(_PAIRS, st.lists(_PAIRS, max_size=4))
def test_the_numbers_add_up(
    removed: list[tuple[int, int]], by: list[list[tuple[int, int]]]
) -> None:
    def ranges(pairs: list[tuple[int, int]]) -> Ranges:
        offsets = sorted({n for first, count in pairs for n in range(first, first + count)})
        return Ranges.exact(*((n, n + 1) for n in offsets))

    wanted = ranges(removed)
    removed_by = [Removed((number,), ranges(each).ranges) for number, each in enumerate(by)]
    found = removed_with_snapshots(wanted.ranges, removed_by)
    listed = [n for each, _ in found for n in range(each.first, each.end)]
    assert listed == [n for each in wanted for n in range(each.first, each.end)]
