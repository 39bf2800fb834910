"""Ranges of offsets against plain sets: exact while there are few, always exact in number."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calve.errors import Corruption
from calve.tables import ranges as ranges_module
from calve.tables.ranges import Range, Ranges
from calve.tables.removals import Removals, recorded, recorded_ids
from calve.tables.runs import Runs

OFFSETS = st.sets(st.integers(0, 120), max_size=80)


def runs(offsets: set[int]) -> Runs:
    return Runs.of_pairs((offset, offset + 1) for offset in offsets)


def members(found: Runs) -> set[int]:
    return {offset for first, end in found.pairs() for offset in range(first, end)}


def is_normal(found: Runs) -> bool:
    pairs = found.pairs()
    return all(a < b for a, b in pairs) and all(
        before[1] < after[0] for before, after in pairwise(pairs)
    )


@given(OFFSETS, OFFSETS, st.integers(0, 130), st.integers(0, 130))
def test_runs_are_sets(one: set[int], other: set[int], first: int, end: int) -> None:
    a, b = runs(one), runs(other)
    span = set(range(first, end))
    for found, wanted in (
        (a, one),
        (a.union(b), one | other),
        (a.minus(b), one - other),
        (a.intersection(b), one & other),
        (a.between(first, end), one & span),
        (a.gaps(first, end), span - one),
    ):
        assert members(found) == wanted
        assert is_normal(found)
        assert found.count == len(wanted)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=20))
def test_runs_are_made_of_any_pairs(pairs: list[tuple[int, int]]) -> None:
    found = Runs.of_pairs(pairs)
    assert members(found) == {offset for a, b in pairs for offset in range(a, b)}
    assert is_normal(found)


@given(st.lists(st.integers(0, 60), max_size=40))
def test_runs_are_made_of_sorted_offsets(offsets: list[int]) -> None:
    found = Runs.of_sorted(int64s(sorted(offsets)))
    assert members(found) == set(offsets)
    assert is_normal(found)


def int64s(offsets: list[int]) -> NDArray[np.int64]:
    return np.array(offsets, np.int64)


def possible(found: Ranges) -> set[int]:
    """Every offset that may be meant."""
    return {offset for each in found for offset in range(each.first, each.end)}


def certain(found: Ranges) -> set[int]:
    return {o for each in found if each.is_exact for o in range(each.first, each.end)}


@given(st.lists(OFFSETS, max_size=6), st.sampled_from([1, 2, 5, 1_000]))
def test_removals_that_come_one_after_the_other_are_counted_exactly(
    parts: list[set[int]], ranges_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "RANGES_MAX", ranges_max)
        found, model = Ranges(), set[int]()
        for part in parts:
            found = found.merged(Ranges.of_runs(runs(part - model)))
            model |= part
            assert found.count == len(model)
            assert certain(found) <= model <= possible(found)
            assert len(found) <= ranges_max
            assert list(found) == sorted(found)
            assert Ranges.parse(str(found)) == found
            if len(runs(model)) <= ranges_max == 1_000:
                assert certain(found) == model


@given(OFFSETS, OFFSETS, st.sampled_from([1, 3, 1_000]))
def test_offsets_that_come_back_are_taken_out(
    gone: set[int], back: set[int], ranges_max: int
) -> None:
    back &= gone
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "RANGES_MAX", ranges_max)
        left = Ranges.of_runs(runs(gone)).without(runs(back))
        assert left.count == len(gone - back)
        assert certain(left) <= gone - back <= possible(left)


@given(OFFSETS, st.integers(0, 130))
def test_what_lies_before_an_offset_is_cut_off(gone: set[int], end: int) -> None:
    assert certain(Ranges.of_runs(runs(gone)).below(end)) == {o for o in gone if o < end}


def test_the_nearest_neighbours_become_one_beyond_the_bound() -> None:
    far = [(n * 10_000, n * 10_000 + 5) for n in range(1_000)]
    near = (3_000 * 1_000 + 7, 3_000 * 1_000 + 9)
    found = Ranges.exact(*far, near)
    assert len(found) == 1_000
    assert Range(3_000_000, 3_000_009, 7) in found.ranges
    assert sum(each.is_exact for each in found) == 999
    assert Ranges.of_runs(Runs.of_pairs([*far, near])) == found


@pytest.mark.parametrize(
    "text", ["x", "1", "5-5", "6-5", "1-3:3", "1-3:0", "-1-3", "1-3,2-4", "4-5,1-2", "1-3,", "١-٣"]
)
def test_what_is_no_list_of_ranges_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(Corruption, match=r"calve\.removed\.0") as caught:
        Removals.parse({"calve.removed.0": text})
    assert "metadata file" in (caught.value.hint or "")


def test_removals_are_kept_by_partition() -> None:
    before = Removals.parse({"calve.removed.0": "0-3,5-9:2", "calve.removed.12": "", "other": "x"})
    assert before.count == 5
    after = before.merged(Removals.of_runs({2: Runs.of_pairs([(1, 2)])}))
    assert after.entries() == {"calve.removed.0": "0-3,5-9:2", "calve.removed.2": "1-2"}
    assert after.changed_from(before) == {"calve.removed.2": "1-2"}
    back = after.without({2: Runs.of_pairs([(0, 9)]), 0: Runs.of_pairs([(1, 2)])})
    assert back.entries() == {"calve.removed.0": "0-1,2-3,5-9:2"}
    assert back.changed_from(after) == {
        "calve.removed.0": "0-1,2-3,5-9:2",
        "calve.removed.2": "",
    }
    assert after.below(0, 6).entries()["calve.removed.0"] == "0-3,5-6"


def test_a_partition_that_is_no_number_is_refused() -> None:
    with pytest.raises(Corruption, match="no partition"):
        Removals.parse({"calve.removed.x": "0-1"})


def test_a_snapshot_says_whose_removals_are_recorded() -> None:
    history = [(1, recorded()), (2, {}), (3, {}), (4, recorded(2))]
    assert recorded_ids(history) == {1, 2, 4}
