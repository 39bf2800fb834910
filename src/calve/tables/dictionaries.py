"""Which columns repeat their values, and text that does as dictionaries.

Taking texts in another order copies each of them. Where a column repeats its texts, Parquet will
find the different ones anyway; found before, only their numbers are moved, and Parquet takes them
as they are. Where a column does not repeat its values, Parquet would look for them in vain.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calve.tables.types import is_text

_ROWS_MIN: Final = 50_000
_SAMPLE_ROWS: Final = 8_192
_NEAR_ROWS: Final = 1_024
_VALUES_MIN: Final = 256
# How often a text must occur, on average, for finding the different ones to pay.
_REPEATS_MIN: Final = 4
_LENGTH_BYTES: Final = 4  # which Parquet writes before each text of a dictionary


def with_dictionaries(rows: pa.Table, bytes_max: int) -> pa.Table:
    """The rows with dictionaries for columns of text that repeats enough.

    None is larger than what Parquet would write as one.
    """
    if rows.num_rows < _ROWS_MIN:
        return rows
    places = _spread_places(rows, _SAMPLE_ROWS)
    for at, field in enumerate(rows.schema):
        if not is_text(field.type):
            continue
        column = rows.column(at)
        if not _repeats(column.take(places), rows.num_rows, bytes_max):
            continue
        encoded = column.dictionary_encode()
        if _written_bytes(encoded.chunk(0).dictionary) <= bytes_max:
            rows = rows.set_column(at, field.with_type(encoded.type), encoded)
    return rows


def has_dictionaries(schema: pa.Schema) -> bool:
    return any(pa.types.is_dictionary(each) for each in schema.types)


def own_dictionaries(rows: pa.Table) -> pa.Table:
    """A part of rows, with dictionaries that hold what it has and not what all of them have."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(at, field, _own_dictionary(rows.column(at)))
    return rows


def _own_dictionary(column: pa.ChunkedArray) -> pa.Array:
    encoded = column.combine_chunks()
    used = encoded.indices.unique().drop_null()
    numbers = np.zeros(len(encoded.dictionary), np.int32)
    numbers[used] = np.arange(len(used), dtype=np.int32)
    indices = pa.array(numbers).take(encoded.indices)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary.take(used))


def unrepeated(rows: pa.Table, bytes_max: int) -> set[str]:
    """Columns of which Parquet would begin a dictionary in vain, as far as samples tell.

    It would find hardly a value again, or give up because there are too many.
    """
    if rows.num_rows < _ROWS_MIN:
        return set()
    places = _spread_places(rows, _SAMPLE_ROWS // 2)
    middle = rows.num_rows // 2
    return {
        field.name
        for field, column in zip(rows.schema, rows.columns, strict=True)
        if _is_sampled(field.type)
        # What comes again at once may not be seen from far apart.
        and _is_vain(column.slice(middle, _NEAR_ROWS), rows.num_rows, bytes_max)
        and _is_vain(column.take(places), rows.num_rows, bytes_max)
    }


def _spread_places(rows: pa.Table, count: int) -> pa.Array:
    return pa.array(np.linspace(0, rows.num_rows - 1, count).astype(np.int64))


def _is_sampled(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        is_text(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_temporal(kind)
    )


def _is_vain(sample: pa.ChunkedArray, rows: int, bytes_max: int) -> bool:
    values = sample.drop_null()
    if len(values) < _VALUES_MIN:
        return False
    likely = _likely_different(values)
    return likely >= rows or likely * _value_bytes(values) > 2 * bytes_max


def _repeats(sample: pa.ChunkedArray, rows: int, bytes_max: int) -> bool:
    """Whether a column with such a sample has few texts, as far as a sample tells."""
    likely = _likely_different(sample)
    return likely * _REPEATS_MIN <= rows and likely * _value_bytes(sample) <= 2 * bytes_max


def _likely_different(sample: pa.ChunkedArray) -> float:
    """How many values a column with such a sample has, as far as a sample tells.

    Where d values are equally likely, about n² / 2d of n rows have one that was there before.
    """
    different: int = pc.count_distinct(sample, mode="all").as_py()
    again = len(sample) - different
    return max(different, len(sample) ** 2 / (2 * again)) if again else math.inf


def _value_bytes(sample: pa.ChunkedArray) -> float:
    """Of a value in a dictionary, on average."""
    size: float = sample.nbytes / len(sample)
    return size + _LENGTH_BYTES if is_text(sample.type) else size


def _written_bytes(texts: pa.Array) -> int:
    size: int = pc.sum(pc.binary_length(texts)).as_py() or 0
    return size + _LENGTH_BYTES * len(texts)
