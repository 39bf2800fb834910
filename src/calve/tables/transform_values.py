"""Values under a transform of partitions or of a sort order, for every value that Arrow has.

What pyiceberg-core gets wrong without a word is done here: years and months far from ours, and
what has no room in the result. Which values those are, `held_range` tells.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import (
    HourTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    TimestampType,
    TimestamptzType,
)

_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000
_INT: Final = 2**31
_LONG: Final = 2**63
# The years 1 to 9999, of which nobody's calendar is in doubt.
_DAYS: Final = (-719_162, 2_932_896)
_UNITS: Final[dict[type[Transform[Any, Any]], str]] = {
    YearTransform: "datetime64[Y]",
    MonthTransform: "datetime64[M]",
}
_DECIMAL_BYTES: Final = 16
_WORD_BYTES: Final = 8


class Range(NamedTuple):
    """From the lowest to the highest value, as numbers; of decimals without the point."""

    low: int
    high: int


def held_range(transform: Transform[Any, Any], source: IcebergType) -> Range | None:
    """The values whose transformed ones have room in the result; None if all have."""
    if isinstance(transform, HourTransform) and isinstance(source, TimestampType | TimestamptzType):
        return Range(-_INT * _HOUR_US, _INT * _HOUR_US - 1)
    if not isinstance(transform, TruncateTransform):
        return None
    width: int = transform.width
    match source:
        case IntegerType():
            return Range(-(_INT // width * width), _INT - 1)
        case LongType():
            return Range(-(_LONG // width * width), _LONG - 1)
        case DecimalType():
            highest = 10**source.precision - 1
            return Range(-(highest // width * width), highest)
    return None


def numbers_of(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and times as the numbers that they are; others as they are."""
    if not pa.types.is_temporal(values.type):
        return values
    kind = pa.int32() if values.type.bit_width == np.dtype(np.int32).itemsize * 8 else pa.int64()
    return pa.chunked_array([chunk.view(kind) for chunk in values.chunks], kind)


def outside(values: pa.ChunkedArray, held: Range, source: IcebergType) -> pa.ChunkedArray | None:
    """Which of the values do not lie within; None if all do."""
    numbers = numbers_of(values)
    low, high = (pa.scalar(_bound(each, source), numbers.type) for each in held)
    extremes = pc.min_max(numbers)
    lowest, highest = extremes["min"], extremes["max"]
    if not lowest.is_valid or (
        pc.greater_equal(lowest, low).as_py() and pc.less_equal(highest, high).as_py()
    ):
        return None
    found = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
    return pc.fill_null(found, fill_value=False)


def _bound(number: int, source: IcebergType) -> int | Decimal:
    # Put together from digits: arithmetic would round to the digits of Python's context.
    if not isinstance(source, DecimalType):
        return number
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -source.scale))


def transformed(
    values: pa.ChunkedArray, transform: Transform[Any, Any], source: IcebergType
) -> pa.ChunkedArray:
    """The values as the transform has them; dates and times of `identity` stay what they are.

    Those that have no room in the result come as they would lie in order.
    """
    if isinstance(transform, TimeTransform) and _is_far(values, source):
        return _far_times(values, transform, source)
    if isinstance(transform, TruncateTransform) and isinstance(source, IntegerType | LongType):
        held = held_range(transform, source)
        if held is not None and outside(values, held, source) is not None:
            values = pc.max_element_wise(values, pa.scalar(held.low, values.type), skip_nulls=False)
    done = transform.pyarrow_transform(source)(aligned(values))
    return done if isinstance(done, pa.ChunkedArray) else pa.chunked_array([done])


def _is_far(values: pa.ChunkedArray, source: IcebergType) -> bool:
    first, last = _DAYS
    if isinstance(source, DateType):
        years = Range(first, last)
    elif isinstance(source, TimestampType | TimestamptzType):
        years = Range(first * _DAY_US, (last + 1) * _DAY_US - 1)
    else:
        return False
    return outside(values, years, source) is not None


def _far_times(
    values: pa.ChunkedArray, transform: TimeTransform[Any], source: IcebergType
) -> pa.ChunkedArray:
    plain = numbers_of(values).combine_chunks()
    numbers = plain.fill_null(0).to_numpy().astype(np.int64)
    if isinstance(transform, HourTransform):
        done = numbers // _HOUR_US
    else:
        days = numbers if isinstance(source, DateType) else numbers // _DAY_US
        unit = _UNITS.get(type(transform))
        done = days if unit is None else days.view("datetime64[D]").astype(unit).astype(np.int64)
    return pa.chunked_array([pa.array(done, mask=plain.is_null().to_numpy(zero_copy_only=False))])


def aligned(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values where Rust may read them: buffers of a mapped file begin at any word."""
    step = _DECIMAL_BYTES if pa.types.is_decimal(values.type) else _WORD_BYTES
    return pa.chunked_array([_aligned(chunk, step) for chunk in values.chunks], values.type)


def _aligned(array: pa.Array, step: int) -> pa.Array:
    if all(buffer is None or buffer.address % step == 0 for buffer in array.buffers()):
        return array
    return array.copy_to(pa.default_cpu_memory_manager())
