"""Sorts rows by a table's sort order, with NaN above every number as Iceberg wants it."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from calve.tables.partitions import column_path, column_values
from calve.tables.transform_values import transformed
from calve.tables.types import is_text

_Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]

_TEXT_BYTES_MAX: Final = 128  # on average
_WORD_BYTES: Final = 8
# What is left of a word when only its first bytes count.
_MASKS: Final = np.array([256**8 - 256 ** (8 - size) for size in range(9)], np.uint64)


def sorted_rows(rows: pa.Table, order: SortOrder, schema: Schema) -> pa.Table:
    """The rows in the table's order; those that it does not tell apart stay as they came.

    They may have dictionaries of text.
    """
    if rows.num_rows < 2:
        return rows
    keys: list[tuple[pa.ChunkedArray | pa.Array, str]] = []
    for field in order.fields:
        keys.extend(_keys(rows, field, schema))
    indices = _indices(keys)
    # From many chunks, values are taken at twice the cost; all columns at once in one would be
    # one more copy of all rows.
    columns = [column.combine_chunks().take(indices) for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _indices(keys: list[tuple[pa.ChunkedArray | pa.Array, str]]) -> pa.Array:
    if len(keys) == 1 and pa.types.is_uint32(keys[0][0].type):
        return _ranked_order(*keys[0])
    names = [f"k{number}" for number in range(len(keys))]
    ranked = pa.table([column for column, _ in keys], names=names).combine_chunks()
    directions = [direction for _, direction in keys]
    return pc.sort_indices(ranked, list(zip(names, directions, strict=True)))


def _ranked_order(ranks: pa.Array, direction: str) -> pa.Array:
    """The same for ranks alone, which need no comparing: by their lower halves, then the upper."""
    numbers = ranks.to_numpy()
    if direction == "descending":
        numbers = numbers.max() - numbers
    lower = np.argsort((numbers & 0xFFFF).astype(np.uint16), kind="stable")
    upper = (numbers >> 16).astype(np.uint16)[lower]
    # Arrow takes rows by narrow numbers faster.
    return pa.array(lower[np.argsort(upper, kind="stable")].astype(np.uint32))


def _keys(
    rows: pa.Table, field: SortField, schema: Schema
) -> list[tuple[pa.ChunkedArray | pa.Array, str]]:
    """The column, behind ranks for null and NaN, which Arrow would put together at one end."""
    source = schema.find_field(field.source_id).field_type
    values = column_values(rows, column_path(schema, field.source_id))
    if not isinstance(field.transform, IdentityTransform):
        values = transformed(_decoded(values), field.transform, source)
    values = _plain(values)
    descending = field.direction is SortDirection.DESC
    direction = "descending" if descending else "ascending"
    keys = [(_ranks(values) if _has_ranks(values) else values, direction)]
    if pa.types.is_floating(values.type):
        is_nan = pc.fill_null(pc.is_nan(values), fill_value=False)
        keys.insert(0, (is_nan.cast(pa.int8()), direction))
    if values.null_count:
        nulls_first = field.null_order is NullOrder.NULLS_FIRST
        keys.insert(
            0, (values.is_null().cast(pa.int8()), "descending" if nulls_first else "ascending")
        )
    return keys


def _has_ranks(values: pa.ChunkedArray) -> bool:
    """Ranks of long texts that are no dictionary would cost a copy of them."""
    if pa.types.is_dictionary(values.type):
        return True
    return is_text(values.type) and values.nbytes <= _TEXT_BYTES_MAX * len(values)


def _ranks(values: pa.ChunkedArray) -> pa.Array:
    """Text as the places of its values among all that there are: numbers are sorted much faster."""
    encoded = values.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    order = _text_order(encoded.dictionary)
    ranks = np.empty(len(order), np.uint32)
    ranks[order] = np.arange(len(order), dtype=np.uint32)
    return pa.array(ranks).take(encoded.indices)


def _text_order(texts: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How to put texts in order that are all different.

    Mostly the eight bytes behind what all begin with tell them apart, and are sorted as numbers.
    """
    words = _words(texts.cast(pa.large_string()), _common_bytes(texts))
    order = np.argsort(words)
    in_order = words[order]
    if (in_order[1:] == in_order[:-1]).any():
        return np.asarray(pc.sort_indices(texts))
    return order


def _common_bytes(texts: pa.Array) -> int:
    """With how many bytes all of them begin alike."""
    lowest, highest = ((each.as_py() or "").encode() for each in pc.min_max(texts).values())
    pairs = enumerate(zip(lowest, highest, strict=False))
    return next((at for at, (low, high) in pairs if low != high), len(lowest))


def _words(texts: pa.Array, skipped: int) -> _Words:
    """The next eight bytes of each text as a number, in which what a text has not counts as 0."""
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    used = int(ends[-1]) if len(texts) else 0
    padded = np.zeros(used + _WORD_BYTES, np.uint8)
    padded[:used] = np.frombuffer(content, np.uint8, used) if used else 0
    starts = ends[:-1] + skipped
    sizes = np.minimum(ends[1:] - starts, _WORD_BYTES)
    every_word: _Words = np.ndarray((used + 1,), ">u8", padded, strides=(1,))
    found: _Words = every_word[starts].astype(np.uint64) & _MASKS[sizes]
    return found


def _decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    is_dictionary = pa.types.is_dictionary(values.type)
    return values.cast(values.type.value_type) if is_dictionary else values


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not isinstance(values.type, pa.BaseExtensionType):
        return values
    return pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
