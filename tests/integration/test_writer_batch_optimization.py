"""Batches are split to bounded pieces and gathered to files of the table's size; the cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.tables import data_files as data_files_module
from calve.tables.inputs.parts import read_parts
from calve.writer import BatchOptimizationConfig
from tests.conftest import MakeSettings
from tests.integration.writing import EAGER, data_files, ids, rows, snapshots, writer_for

MIB = 1024 * 1024


@dataclass
class StandingClock:
    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.now(UTC)


def test_a_batch_is_split_by_rows(lake: Lake) -> None:
    with writer_for(lake, batch=BatchOptimizationConfig(max_rows_per_batch=100)) as writer:
        writer.write_batch(rows(1_050))
        writer.write_batch(rows(100, start=2_000))
        stats = writer.stats
    assert (stats.batches, stats.split_batches, stats.pieces, stats.rows) == (2, 1, 12, 1_150)
    assert stats.piece_bytes_max == 800


def test_a_batch_is_split_by_memory(lake: Lake) -> None:
    texts = pa.table({"id": pa.array(range(64), pa.int64()), "text": ["x" * 1_000] * 64})
    config = BatchOptimizationConfig(max_memory_per_batch_bytes=10_000)
    with writer_for(lake, batch=config) as writer:
        writer.write_batch(texts)
        stats = writer.stats
        assert stats.pieces == 8
        assert stats.piece_bytes_max <= 10_000
        # A single row is never cut.
        writer.write_batch([{"id": 64, "text": "y" * 20_000}])
        assert writer.stats.piece_bytes_max > 20_000
    assert ids(lake) == list(range(65))


@pytest.mark.parametrize("kind", ["arrow", "rows", "columns", "generator", "pandas"])
def test_every_kind_of_rows_is_split(lake: Lake, kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    plain = [{"id": n} for n in range(1_001)]
    data: Any = {
        "arrow": rows(1_001),
        "rows": plain,
        "columns": {"id": list(range(1_001))},
        "generator": (row for row in plain),
        "pandas": pandas.DataFrame(plain),
    }[kind]
    with writer_for(lake, batch=BatchOptimizationConfig(max_rows_per_batch=250)) as writer:
        assert writer.write_batch(data).rows == 1_001
        assert writer.stats.pieces == 5
    assert ids(lake) == list(range(1_001))


def test_splits_do_not_make_files(lake: Lake) -> None:
    with writer_for(lake, batch=BatchOptimizationConfig(max_rows_per_batch=100)) as writer:
        done = writer.write_batches(rows(1_000, start=n) for n in range(0, 20_000, 1_000))
        assert writer.stats.pieces == 200
    assert done.files == 1
    (file,) = data_files(lake)
    assert pq.ParquetFile(file).num_row_groups == 1


def test_files_are_near_the_tables_target(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files_module, "_LANE_BYTES", 10**12)
    lake.tables.create_table(
        "t", {"id": "long"}, properties={"write.target-file-size-bytes": "20000"}
    )
    with writer_for(lake, batch=EAGER) as writer, writer.transaction():
        for start in range(0, 40_000, 250):
            writer.write_batch(rows(250, start=start))
    sizes = [path.stat().st_size for path in data_files(lake)]
    assert len(sizes) > 3
    assert sorted(sizes)[1] >= 10_000
    assert max(sizes) <= 20_000
    assert ids(lake) == list(range(40_000))


@pytest.mark.parametrize(
    ("data", "config"),
    [
        (rows(101), {"max_rows_per_batch": 100}),
        ([{"id": n} for n in range(101)], {"max_rows_per_batch": 100}),
        (rows(101), {"max_memory_per_batch_bytes": 800}),
    ],
)
def test_without_splitting_too_large_a_batch_is_refused(
    lake: Lake, data: Any, config: dict[str, Any]
) -> None:
    with writer_for(lake, batch=BatchOptimizationConfig(enable_auto_split=False, **config)) as w:
        w.write_batch(rows(100))
        transaction = w.begin_transaction()
        with pytest.raises(InvalidRequest, match="splitting is off") as refused:
            w.write_batch(data)
        assert "max_memory_per_batch_bytes" in str(refused.value)
        w.commit_transaction(transaction)
    assert ids(lake) == list(range(100))


def test_without_splitting_a_batch_within_its_bounds_is_one_piece(lake: Lake) -> None:
    config = BatchOptimizationConfig(enable_auto_split=False, max_memory_per_batch_bytes=10_000)
    with writer_for(lake, batch=config) as writer:
        writer.write_batch([{"id": n, "text": "x" * 1_000} for n in range(9)])
        assert writer.stats.pieces == 1
    assert ids(lake) == list(range(9))


def test_a_batch_that_is_refused_for_its_size_leaves_no_column(lake: Lake) -> None:
    config = BatchOptimizationConfig(enable_auto_split=False, max_rows_per_batch=100)
    with writer_for(lake, batch=config) as writer:
        writer.write_batch(rows(1))
        transaction = writer.begin_transaction()
        with pytest.raises(InvalidRequest, match="splitting is off"):
            writer.write_batch([{"id": n, "unwanted": n} for n in range(101)])
        writer.write_batch(rows(1, start=1))
        writer.commit_transaction(transaction)
    assert lake.catalog.load_table("t").schema().column_names == ["id"]
    assert ids(lake) == [0, 1]


@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_long_rows_are_read_a_few_at_a_time(kind: str) -> None:
    """However many rows a batch may have, no more of them are held than memory allows."""
    long = [{"id": n, "text": "x" * 1_000, "deep": [{"more": b"y" * 1_000}]} for n in range(1_000)]
    data: Any = iter(long)
    if kind == "batches":
        data = pa.Table.from_pylist(long)
    parts = list(read_parts(data, rows_max=50_000, bytes_max=20_000))
    assert sum(part.num_rows for part in parts) == 1_000
    assert 3 <= max(part.num_rows for part in parts) <= 10


@dataclass(frozen=True)
class Layout:
    """How a table is laid out, how many of its files are open at once, and what that takes."""

    table: dict[str, Any]
    open_max: int
    # Of what is configured: rows are there twice while they are sorted.
    memory_max: int = 2


LAYOUTS = {
    "plain": Layout({}, 3),
    "partitioned": Layout({"partition_by": ["bucket(5, id)"]}, 5),
    "rare": Layout({"partition_by": ["rare"]}, 2),
    "sorted": Layout({"sort_by": ["id"]}, 3, memory_max=3),
}


# What came from one, and is kept somewhere, goes back to it at last.
POOLS: list[pa.MemoryPool] = []


@pytest.fixture
def memory() -> Iterator[pa.MemoryPool]:
    """What Arrow takes, counted from nothing."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    POOLS.append(counted)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(usual)


class Crowd:
    """Pieces that are being written. The first wait until so many are, or until one more is."""

    def __init__(self, expected: int) -> None:
        self.most = 0
        self._expected = expected
        self._now = 0
        self._changed = threading.Condition()
        self._is_over = False

    def __enter__(self) -> Self:
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            if not self._is_over:
                self._changed.wait_for(lambda: self.most >= self._expected, 10)
                self._changed.wait_for(lambda: self.most > self._expected, 0.2)
                self._is_over = True
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._now -= 1


@pytest.mark.parametrize(
    ("kind", "lanes"),
    [
        *(("plain", 1), ("plain", 3), ("partitioned", 1), ("partitioned", 3)),
        # A partition is written to by one at a time, and the other has hardly any rows.
        *(("rare", 1), ("sorted", 1), ("sorted", 3)),
    ],
)
def test_so_many_pieces_are_written_at_once_as_configured_and_memory_is_bounded(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, memory: pa.MemoryPool, lanes: int, kind: str
) -> None:
    layout = LAYOUTS[kind]
    monkeypatch.setattr(data_files_module, "_LANE_BYTES", 1)
    crowd = Crowd(lanes)
    write = data_files_module._OpenFile.write

    def watched(file: Any, rows: pa.Table) -> None:
        with crowd:
            write(file, rows)

    monkeypatch.setattr(data_files_module._OpenFile, "write", watched)
    config = BatchOptimizationConfig(
        max_memory_per_batch_bytes=2 * MIB, target_concurrent_batches=lanes
    )
    # A dictionary takes Parquet some MiB, however little there is to write.
    properties = {"write.parquet.dict-size-bytes": "1000"}
    lake.tables.create_table(
        "t", {"id": "long", "rare": "long"}, properties=properties, **layout.table
    )
    with writer_for(lake, batch=config) as writer:
        done = writer.write_batches(
            pa.table({"id": ids, "rare": (ids % 5_000 == 0).astype(np.int64)})
            for ids in np.split(np.arange(1_000_000)[::-1], 100)
        )
    peak = memory.max_memory()
    assert crowd.most == lanes
    # An open file keeps its last pages.
    bound = layout.memory_max * lanes * 2 * MIB + layout.open_max * MIB
    assert peak <= bound, (peak / MIB, bound / MIB)
    assert done.rows == 1_000_000
    found = lake.catalog.load_table("t").scan(selected_fields=("id",)).to_arrow()["id"]
    assert (np.sort(found.to_numpy()) == np.arange(1_000_000)).all()


def test_the_configuration_changes_on_a_live_writer(lake: Lake) -> None:
    with writer_for(lake) as writer:
        assert writer.batch_config == BatchOptimizationConfig()
        writer.write_batch(rows(1_000))
        assert writer.stats.pieces == 1
        transaction = writer.begin_transaction()
        writer.write_batch(rows(1_000, start=1_000))
        smaller = replace(writer.batch_config, max_rows_per_batch=100)
        writer.set_batch_config(smaller)
        assert writer.batch_config == smaller
        writer.write_batch(rows(1_000, start=2_000))
        writer.commit_transaction(transaction)
        assert writer.stats.pieces == 12
    assert ids(lake) == list(range(3_000))


def test_the_bound_on_memory_changes_within_a_transaction(lake: Lake) -> None:
    with writer_for(lake) as writer, writer.transaction():
        writer.write_batch(rows(1_000))
        assert not data_files(lake)
        writer.set_batch_config(EAGER)
        writer.write_batch(rows(5_000, start=1_000))
        assert data_files(lake)
    assert ids(lake) == list(range(6_000))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_rows_per_batch": 0}, "max_rows_per_batch: 0"),
        ({"max_memory_per_batch_bytes": -1}, "max_memory_per_batch_bytes: -1"),
        ({"target_concurrent_batches": True}, "target_concurrent_batches: True"),
        ({"catalog_cache_ttl_seconds": -0.5}, "catalog_cache_ttl_seconds: -0.5"),
        ({"enable_auto_split": "no"}, "enable_auto_split: 'no'"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        BatchOptimizationConfig(**options)


def loads_of(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    asked: list[object] = []
    honest = lake.catalog.load_table

    def load_table(name: Any) -> Any:
        asked.append(name)
        return honest(name)

    monkeypatch.setattr(lake.catalog, "load_table", load_table)
    return asked


def test_the_catalog_is_asked_once_while_the_cache_lasts(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.tables.create_table("t", {"id": "long"})
    clock = StandingClock()
    asked = loads_of(lake, monkeypatch)
    with writer_for(lake, clock=clock) as writer:
        assert writer.catalog_cache_info() is None
        for n in range(3):
            writer.write_batch(rows(1, start=n))
        assert len(asked) == 1
        clock.seconds += 100
        info = writer.catalog_cache_info()
        assert info is not None
        assert (info.age_seconds, info.is_expired) == (100, False)
        clock.seconds += 300
        info = writer.catalog_cache_info()
        assert info is not None
        assert info.is_expired
        writer.write_batch(rows(1, start=3))
        assert len(asked) == 2
        writer.clear_catalog_cache()
        assert writer.catalog_cache_info() is None
        writer.write_batch(rows(1, start=4))
        assert len(asked) == 3
    assert ids(lake) == list(range(5))


def test_without_caching_each_transaction_asks_the_catalog(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.tables.create_table("t", {"id": "long"})
    asked = loads_of(lake, monkeypatch)
    with writer_for(lake, batch=BatchOptimizationConfig(enable_catalog_caching=False)) as writer:
        for n in range(3):
            writer.write_batch(rows(1, start=n))
        assert len(asked) == 3
        assert writer.catalog_cache_info() is None
        writer.set_batch_config(BatchOptimizationConfig(catalog_cache_ttl_seconds=10))
        for n in range(3, 6):
            writer.write_batch(rows(1, start=n))
        assert len(asked) == 4


def test_the_settings_say_how_long_the_cache_lasts(make_settings: MakeSettings) -> None:
    with Lake(make_settings(catalog__cache_ttl_seconds=17)) as lake, writer_for(lake) as writer:
        assert writer.batch_config.catalog_cache_ttl_seconds == 17


def test_a_remembered_table_that_others_have_changed_is_no_obstacle(lake: Lake) -> None:
    with writer_for(lake) as writer, writer_for(lake) as other:
        writer.write_batch(rows(1))
        for n in range(1, 4):
            other.write_batch(rows(1, start=n))
        assert writer.write_batch(rows(1, start=4)).snapshot_id is not None
    assert ids(lake) == list(range(5))
    assert snapshots(lake) == 5
