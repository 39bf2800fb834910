"""How long `generate_test_data` takes, as a ratio to NumPy making the same columns.

    make bench, or: .venv/bin/python benchmarks/test_data.py [rows]

The claim: at 10 million rows at most twice NumPy's own time. NumPy is not among Calve's needs and
is asked for here only. It has no decimals, so it makes whole cents, and its text is shared Python
objects: both in NumPy's favour. Runs are interleaved, and the median is compared.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from calve.testdata import generate_test_data

try:
    import numpy as np
except ModuleNotFoundError:
    raise SystemExit("skipped: needs NumPy; run `pip install numpy`") from None

ROWS = 10_000_000
ROUNDS = 5
RATIO_MAX = 2.0
NAMES = 17
COUNTRIES = 10


def numpy_columns(rows: int) -> list[object]:
    draw = np.random.default_rng(0)
    names = np.array([f"name {number}" for number in range(NAMES)], object)
    countries = np.array([f"country {number}" for number in range(COUNTRIES)], object)
    start = np.datetime64("2024-01-01", "us")
    return [
        np.arange(rows, dtype=np.int64),
        names[draw.integers(0, NAMES, rows)],
        countries[draw.integers(0, COUNTRIES, rows)],
        np.ma.array(draw.integers(0, 100, rows, np.int32), mask=draw.random(rows) < 0.05),
        draw.random(rows) * 100,
        draw.integers(0, 1_000_000, rows),
        draw.random(rows) < 0.8,
        start + draw.integers(0, 366 * 86_400_000_000, rows).astype("timedelta64[us]"),
    ]


def seconds(make: Callable[[int], object], rows: int) -> float:
    started = time.perf_counter()
    make(rows)
    return time.perf_counter() - started


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    ways: dict[str, Callable[[int], object]] = {
        "numpy": numpy_columns,
        "calve": generate_test_data,
    }
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, make in ways.items():
            measured[name].append(seconds(make, rows))
    limit = statistics.median(measured["numpy"])
    print(f"{rows:,} rows, 8 columns{'median':>16}{'ratio':>8}   must be at most {RATIO_MAX:.1f}")
    for name, times in measured.items():
        median = statistics.median(times)
        print(f"{name:<26}{median:>10.2f} s{median / limit:>8.2f}")


if __name__ == "__main__":
    main()
