"""Rows of people, for benchmarks: text, numbers, times; the same for the same seed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = {
    "id": "long",
    "name": "string",
    "email": "string",
    "age": "int",
    "score": "double",
    "active": "boolean",
    "created_at": "timestamp",
    "city": "string",
}


def some_rows(count: int, *, start: int = 0, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    ids = np.arange(start, start + count)
    names = pa.array([f"name{n}" for n in range(5_000)])
    cities = pa.array([f"city{n}" for n in range(100)])
    stamps = random.integers(1_600_000_000_000_000, 1_700_000_000_000_000, count)
    return pa.table(
        {
            "id": ids,
            "name": names.take(pa.array(random.integers(0, 5_000, count))),
            "email": pc.binary_join_element_wise(
                pa.array(ids).cast(pa.string()), "example.org", "@"
            ),
            "age": random.integers(0, 100, count).astype("int32"),
            "score": random.random(count),
            "active": random.integers(0, 2, count).astype(bool),
            "created_at": pa.array(stamps, pa.timestamp("us")),
            "city": cities.take(pa.array(random.integers(0, 100, count))),
        }
    )
