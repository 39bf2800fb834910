"""What is known of a table's rows that have one of some keys, so that other files are not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from calve.condition import Anything, Column, Compare, Fact, OneOf, all_of, any_of

# So many keys are listed one by one; more are told as ranges.
_LISTED_MAX: Final = 200
_RANGES: Final = 32
_COUNTED: Final = {
    "DATE": pa.int32(),
    "TIME": pa.int64(),
    "TIMESTAMP": pa.int64(),
    "TIMESTAMP WITH TIME ZONE": pa.int64(),
}
_PLAIN: Final = frozenset({"INTEGER", "BIGINT", "VARCHAR"})


def key_facts(rows: pa.Table, keys: Sequence[Column]) -> Fact:
    """What holds in every row whose keys are those of one of these."""
    return all_of(_column_fact(rows.column(key.name), key) for key in keys)


def _column_fact(values: pa.ChunkedArray, key: Column) -> Fact:
    if key.type in _COUNTED:
        values = values.cast(_COUNTED[key.type])
    elif key.type not in _PLAIN and not key.type.startswith("DECIMAL("):
        return Anything()
    path = (key.name,)
    known = pc.unique(values)
    if len(known) <= _LISTED_MAX:
        return OneOf(path, tuple(known.to_pylist()), key.type)
    ordered = known.take(pc.sort_indices(known))
    step = -(-len(ordered) // _RANGES)
    return any_of(
        all_of(
            [
                Compare(path, ">=", ordered[start].as_py(), key.type),
                Compare(path, "<=", ordered[min(start + step, len(ordered)) - 1].as_py(), key.type),
            ]
        )
        for start in range(0, len(ordered), step)
    )
