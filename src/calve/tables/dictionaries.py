"""Text that repeats, as dictionaries: rows move by a number, and Parquet takes them as they are.

Taking texts in another order copies each of them. Where a column repeats its texts, Parquet will
find the different ones anyway; found before, only their numbers are moved.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calve.tables.types import is_text

_ROWS_MIN: Final = 50_000
_SAMPLE_ROWS: Final = 8_192
# How often a text must occur, on average, for finding the different ones to pay.
_REPEATS_MIN: Final = 4
_LENGTH_BYTES: Final = 4  # which Parquet writes before each text of a dictionary


def with_dictionaries(rows: pa.Table, dictionary_bytes_max: int) -> pa.Table:
    """The rows with dictionaries for columns of text that repeats enough.

    None is larger than what Parquet would write as one.
    """
    if rows.num_rows < _ROWS_MIN:
        return rows
    places = pa.array(np.linspace(0, rows.num_rows - 1, _SAMPLE_ROWS).astype(np.int64))
    for at, field in enumerate(rows.schema):
        if not is_text(field.type):
            continue
        column = rows.column(at)
        if not _repeats(column.take(places), rows.num_rows, dictionary_bytes_max):
            continue
        encoded = column.dictionary_encode()
        if _written_bytes(encoded.chunk(0).dictionary) <= dictionary_bytes_max:
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


def _repeats(sample: pa.ChunkedArray, rows: int, bytes_max: int) -> bool:
    """Whether a column with such a sample has few texts, as far as a sample tells.

    Where d texts are equally likely, about n² / 2d of n rows have one that was there before.
    """
    different: int = pc.count_distinct(sample, mode="all").as_py()
    again = len(sample) - different
    if not again:
        return False
    likely = max(different, len(sample) ** 2 // (2 * again))
    text_bytes = sample.nbytes / len(sample) + _LENGTH_BYTES
    return likely * _REPEATS_MIN <= rows and likely * text_bytes <= 2 * bytes_max


def _written_bytes(texts: pa.Array) -> int:
    size: int = pc.sum(pc.binary_length(texts)).as_py() or 0
    return size + _LENGTH_BYTES * len(texts)
