"""Synthetic rows for tests, examples and benchmarks, as fast as memory allows.

Eight columns: id long, name string, country string, age int with gaps, score double, amount
decimal(12,2), active boolean, created_at timestamptz. The same rows and seed give the same data,
and fewer rows give the beginning of it. Arrow's own functions do the work: no NumPy is needed.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from calve.errors import InvalidRequest

SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("country", pa.string()),
        pa.field("age", pa.int32()),
        pa.field("score", pa.float64()),
        pa.field("amount", pa.decimal128(12, 2)),
        pa.field("active", pa.bool_()),
        pa.field("created_at", pa.timestamp("us", "UTC")),
    ]
)
# A batch of this size stays in the processor's cache from draw to column.
_BATCH_ROWS: Final = 131_072
_COLUMNS_DRAWN: Final = 7
_SEED_MAX: Final = 2**32
_AGE_MISSING: Final = 0.05
_YEAR_2024_US: Final = 1_704_067_200_000_000
_YEAR_US: Final = 366 * 86_400_000_000
_NAMES: Final = (
    *("Ada", "Björn", "Chloé", "Dariusz", "Eșref", "Zoë", "Nguyễn Văn An", "O'Brien", "Søren"),
    *("李雷", "さくら", "Мария", "Αλέξης", "محمد", "नेहा", 'Jo "JJ" Jones', "🦊 Fox"),
)
_COUNTRIES: Final = ("DE", "FR", "IN", "JP", "BR", "US", "VN", "EG", "Côte d'Ivoire", "Türkiye")


def generate_test_data(rows: int, seed: int = 0) -> pa.Table:
    """A table of synthetic rows; the same for the same arguments."""
    if rows < 0:
        raise InvalidRequest(f"{rows} rows cannot be made", hint="ask for 0 rows or more")
    if not 0 <= seed < _SEED_MAX:
        raise InvalidRequest(f"seed {seed} is out of range", hint=f"0 to {_SEED_MAX - 1}")
    starts = range(0, rows, _BATCH_ROWS)
    numbers = pc.subtract(pc.cumulative_sum(pa.repeat(1, min(rows, _BATCH_ROWS))), 1)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        batches = list(pool.map(partial(_batch, numbers, rows=rows, seed=seed), starts))
    return pa.Table.from_batches(batches, SCHEMA)


def _batch(numbers: pa.Array, start: int, *, rows: int, seed: int) -> pa.RecordBatch:
    count = min(_BATCH_ROWS, rows - start)
    first = (seed * 1_000_003 + start // _BATCH_ROWS) * _COLUMNS_DRAWN
    name, country, age, score, amount, active, created = (
        pc.random(count, initializer=first + column) for column in range(_COLUMNS_DRAWN)
    )
    return pa.RecordBatch.from_arrays(
        [
            pc.add(numbers.slice(0, count), start),
            _chosen(_NAMES, name),
            _chosen(_COUNTRIES, country),
            _ages(age),
            pc.multiply(score, 100.0),
            _amounts(amount),
            pc.less(active, 0.8),
            _times(created),
        ],
        schema=SCHEMA,
    )


def _whole(draw: pa.Array, limit: int, kind: pa.DataType) -> pa.Array:
    """Whole numbers below `limit`: casting drops what is behind the point."""
    return pc.cast(pc.multiply(draw, float(limit)), kind, safe=False)


def _chosen(values: tuple[str, ...], draw: pa.Array) -> pa.Array:
    return pa.array(values).take(_whole(draw, len(values), pa.int32()))


def _ages(draw: pa.Array) -> pa.Array:
    ages = _whole(draw, 100, pa.int32())
    return pc.if_else(pc.less(draw, _AGE_MISSING), pa.scalar(None, pa.int32()), ages)


def _amounts(draw: pa.Array) -> pa.Array:
    cents = pc.cast(_whole(draw, 1_000_000, pa.int64()), pa.decimal128(19, 0))
    # The same digits with the point moved: Arrow's own conversion takes four times as long.
    return pa.Array.from_buffers(SCHEMA.field("amount").type, len(cents), cents.buffers())


def _times(draw: pa.Array) -> pa.Array:
    after = _whole(draw, _YEAR_US, pa.int64())
    return pc.add(after, _YEAR_2024_US).cast(SCHEMA.field("created_at").type)


def write_parquet_batch(data: pa.Table | pa.RecordBatch, path: str | PathLike[str]) -> Path:
    """Write a Parquet file that appears whole or not at all, in place of one that was there.

    It is written beside its place and then renamed, synced to disk before and after.
    """
    target = Path(path)
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    _sync_directory(target.parent)
    return target


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
