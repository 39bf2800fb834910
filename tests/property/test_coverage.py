"""What a coverage says of offsets that come in any order, against counting them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.maintenance.coverage import Coverage
from tests.fakes.topic_table import small_chunks

END = 500


@pytest.fixture(autouse=True)
def chunks() -> Iterator[None]:
    with small_chunks():
        yield


def offsets(found: list[tuple[int, int]]) -> list[int]:
    return [offset for first, end in found for offset in range(first, end)]


BATCHES = st.lists(
    st.one_of(
        st.lists(st.integers(0, END - 1), min_size=1, max_size=60),
        st.tuples(st.integers(0, END - 1), st.integers(1, 200)).map(
            lambda run: list(range(run[0], min(run[0] + run[1], END)))
        ),
    ),
    max_size=12,
)


@given(BATCHES, st.lists(st.integers(0, END + 100), max_size=4))
def test_a_coverage_counts(batches: list[list[int]], marks: list[int]) -> None:
    coverage = Coverage(END)
    seen: Counter[int] = Counter()
    missing: list[int] = []
    doubled: list[int] = []

    def settle(before: int) -> None:
        gaps, twice = coverage.settle(before)
        missing.extend(offsets(gaps.pairs()))
        doubled.extend(offsets(twice.pairs()))

    for number, batch in enumerate(batches):
        if number < len(marks):
            settle(marks[number])
        kept = sorted(offset for offset in batch if offset >= coverage.settled)
        seen.update(kept)
        coverage.add(np.array(kept, np.int64))
    settle(END)
    assert missing == [offset for offset in range(END) if not seen[offset]]
    assert doubled == [offset for offset in range(END) if seen[offset] > 1]


def test_what_lies_in_order_is_let_go_of() -> None:
    coverage = Coverage(10_000)
    held = []
    for first in range(0, 10_000, 50):
        coverage.add(np.arange(first, first + 50))
        coverage.settle(first + 50)
        held.append(len(coverage._chunks))
    assert max(held) <= 2
