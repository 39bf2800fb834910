"""Each row goes to its own partition, whether all others share that or none does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.tables.partitions import Partitioner
from calve.tables.schemas import schema_from_arrow
from calve.tables.transforms import partition_spec

DAY_US: Final = 86_400_000_000
TIMES: Final[dict[str, Callable[[int], int]]] = {
    "at": lambda value: value,
    "day(at)": lambda value: value // DAY_US,
    "hour(at)": lambda value: value // (DAY_US // 24),
    "month(at)": lambda value: int(np.datetime64(value, "us").astype("datetime64[M]").astype(int)),
    "year(at)": lambda value: int(np.datetime64(value, "us").astype("datetime64[Y]").astype(int)),
}
NUMBERS: Final[dict[str, Callable[[int], int]]] = {
    "n": lambda value: value,
    "truncate(10, n)": lambda value: value // 10 * 10,
}
# Around 1970, some day of ours, and far behind the year 9999.
MOMENTS: Final = st.sampled_from([0, 19_000 * DAY_US, 4_000_000 * DAY_US])
STEPS: Final = st.sampled_from([0, 1, -1, DAY_US // 24 - 1, DAY_US - 1, DAY_US, -31 * DAY_US])


@st.composite
def some_rows(draw: st.DrawFn) -> list[tuple[int | None, int | None]]:
    """Most of them of about the same time, some with nothing."""
    moment = draw(MOMENTS)
    at = STEPS.map(lambda step: moment + step)
    missing = st.none() if draw(st.booleans()) else st.nothing()
    numbers = st.integers(-12, 12)
    return draw(st.lists(st.tuples(missing | at, missing | numbers), min_size=1, max_size=12))


@pytest.mark.parametrize("number", [None, *NUMBERS])
@pytest.mark.parametrize("time", TIMES)
@given(rows=some_rows(), cut=st.integers(0, 12))
def test_rows_are_with_those_of_their_partition(
    rows: list[tuple[int | None, int | None]], cut: int, time: str, number: str | None
) -> None:
    table = pa.table(
        {
            "at": pa.array([at for at, _ in rows], pa.timestamp("us", "UTC")),
            "n": pa.array([n for _, n in rows], pa.int64()),
            "place": pa.array(range(len(rows)), pa.int64()),
        }
    )
    table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    schema = schema_from_arrow(table.schema)
    terms = [time] if number is None else [time, number]
    found = {
        tuple(place.partition[at] for at in range(len(terms))): part["place"].to_pylist()
        for place, part in Partitioner(partition_spec(terms, schema), schema).divide(table)
        if place is not None
    }
    wanted: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for at, (moment, n) in enumerate(rows):
        key = [None if moment is None else TIMES[time](moment)]
        if number is not None:
            key.append(None if n is None else NUMBERS[number](n))
        wanted[tuple(key)].append(at)
    assert found == wanted
