"""pandas frames as batches. pandas is the caller's: it is never imported here first."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeGuard

import pyarrow as pa

from calve.tables.inputs.conform import conform_array, match_names
from calve.tables.inputs.origin import Origin
from calve.tables.inputs.rows import column_array

_ROWS_MAX: Final = 131_072


def is_frame(data: object) -> TypeGuard[Any]:
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def frame_table(frame: Any, origin: Origin) -> pa.Table:
    """The whole frame with the types that Arrow sees in it."""
    named = with_named_columns(frame, origin)
    try:
        return pa.Table.from_pandas(named, preserve_index=False).replace_schema_metadata()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise origin.error(
            f"a column cannot be read: {'; '.join(str(part) for part in error.args)}",
            hint="give each column one type, or give the table's schema",
        ) from error


def frame_batches(frame: Any, target: pa.Schema, origin: Origin) -> Iterator[pa.RecordBatch]:
    named = with_named_columns(frame, origin)
    match_names(list(named.columns), target, origin)
    return _batches(named, target, origin)


def with_named_columns(frame: Any, origin: Origin) -> Any:
    """The frame with text for names, and its index as columns if that has names."""
    if frame.columns.nlevels > 1:
        raise origin.error(
            "the frame has several levels of column names", hint="flatten them to one"
        )
    if all(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    named = frame.set_axis([str(name) for name in frame.columns], axis=1)
    if not named.columns.is_unique:
        twice = named.columns[named.columns.duplicated()][0]
        raise origin.error(
            "the name is there twice", column=twice, hint="every column needs a name of its own"
        )
    return named


def frame_columns(frame: Any, origin: Origin) -> dict[str, list[Any] | pa.Array]:
    """The columns by name: objects as lists of values, everything else as arrays."""
    named = with_named_columns(frame, origin)
    return {name: _values(named[name]) for name in named.columns}


def _values(series: Any) -> list[Any] | pa.Array:
    if series.dtype == object:
        # Objects follow the rules of rows; pandas has many ways to say that nothing is there.
        return [
            None if gone else _without_arrays(value)
            for value, gone in zip(series, series.isna(), strict=True)
        ]
    array = pa.Array.from_pandas(series)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _batches(frame: Any, target: pa.Schema, origin: Origin) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(frame), _ROWS_MAX):
        piece = frame.iloc[start : start + _ROWS_MAX]
        places = range(start + 1, start + 1 + len(piece))
        arrays = [_column(piece, field, origin, places) for field in target]
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _column(frame: Any, field: pa.Field, origin: Origin, places: Sequence[int]) -> pa.Array:
    if field.name not in frame.columns:
        return pa.nulls(len(frame), field.type)
    values = _values(frame[field.name])
    if isinstance(values, list):
        return column_array(values, field, origin, places)
    return conform_array(values, field, origin, places)


def _without_arrays(value: Any) -> Any:
    """Lists in a frame are often arrays, in which a missing number is not a number."""
    if not hasattr(value, "tolist") or not hasattr(value, "shape") or not value.shape:
        return value
    return [
        None if isinstance(item, float) and math.isnan(item) else _without_arrays(item)
        for item in value.tolist()
    ]
