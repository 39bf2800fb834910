"""An append made ready for its topic: every part fitted, bad rows set aside as the topic wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.topics.fit import Fitter
from calve.topics.topic import Topic
from calve.wal import Rejected
from calve.wal.payload import Part

_FEW_ROWS: Final = 1000


class Prepared(NamedTuple):
    """Parts as the log takes them, and the topic as it has to be before they go in."""

    parts: Part | Sequence[Part]
    topic: Topic


def prepare(fitter: Fitter, rows: Part | Sequence[Part]) -> Prepared:
    """Fit all parts of an append, or refuse it whole with an InvalidRequest."""
    if isinstance(rows, pa.RecordBatch):
        require_valid(rows)
        fit = fitter.fit(rows.schema)
        if not fit.sets_aside:
            return Prepared(fit.batch(rows), fit.topic)
    return _prepare_all(fitter, parts_of(rows))


def require_valid(batch: pa.RecordBatch) -> None:
    """Refuse Arrow data that is not what it says: others would read beyond its ends.

    A megabyte takes 50 µs; offsets, indices and UTF-8 are looked at one by one.
    """
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRequest(
            f"the rows are not valid Arrow data: {error}",
            hint="text must be UTF-8, and offsets must lie within the data",
        ) from error


def parts_of(rows: Part | Sequence[Part]) -> Sequence[Part]:
    """The parts that hold rows; there is at least one."""
    if isinstance(rows, pa.RecordBatch):
        return (rows,)
    if rows and isinstance(rows[0], Rejected):
        return (rows,)
    parts = [part for part in rows if _row_count(part)]
    if not parts:
        raise InvalidRequest("an append needs at least one row")
    return parts


def rows_in(rows: Part | Sequence[Part]) -> int:
    if isinstance(rows, pa.RecordBatch):
        count: int = rows.num_rows
        return count
    return sum(_row_count(part) for part in parts_of(rows))


def bytes_of(rows: Part | Sequence[Part]) -> int:
    """The size of the rows in memory, about."""
    if isinstance(rows, pa.RecordBatch):
        return _batch_bytes(rows)
    return sum(
        _batch_bytes(part)
        if isinstance(part, pa.RecordBatch)
        else sum(len(row.original) for row in part)
        for part in parts_of(rows)
    )


def _batch_bytes(batch: pa.RecordBatch) -> int:
    # Telling a slice from the whole takes ten times as long, which few rows are not worth.
    size: int = batch.nbytes if batch.num_rows > _FEW_ROWS else batch.get_total_buffer_size()
    return size


def _row_count(part: Part) -> int:
    return part.num_rows if isinstance(part, pa.RecordBatch) else len(part)


def _prepare_all(fitter: Fitter, parts: Sequence[Part]) -> Prepared:
    ready: list[Part] = []
    rejected: list[Rejected] = []
    for part in parts:
        if not isinstance(part, pa.RecordBatch):
            rejected += part
            continue
        require_valid(part)
        fit = fitter.fit(part.schema)
        good, bad = fit.split(part)
        ready += [] if good is None else [good]
        rejected += bad
        if fit.topic is not fitter.topic:
            fitter = Fitter(fit.topic)  # what this part adds, the next ones find there
    if rejected:
        ready.append(rejected)
    return Prepared(ready, fitter.topic)
