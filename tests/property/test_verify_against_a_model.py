"""Random histories of a fed table, then random defects: the auditor finds these and no others."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile

from calve.changes import delete_rows, update_rows
from calve.changes.rollback import roll_back_fed
from calve.maintenance.verify import verify_topic
from calve.settings import load_settings
from calve.tables import retention
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.expiry import expire_snapshots
from calve.tables.ranges import Range
from calve.tables.recording import record_removals
from calve.tables.staging import Edit
from tests.fakes.defects import compact, forget
from tests.fakes.topic_table import data_files, feed, make_topic_table, small_chunks, topic_rows

Row = tuple[int, int]
PARTITIONS = 3


class History:
    """A table, and what a plain model says is in it."""

    def __init__(self, catalog: LakeCatalog, chance: random.Random) -> None:
        self.catalog = catalog
        self.chance = chance
        self.ends: Counter[int] = Counter()
        # By snapshot: which rows are there, and which were taken out without a record.
        self.states: dict[int, tuple[Counter[Row], set[Row]]] = {}
        self.rows: Counter[Row] = Counter()
        self.recorded: set[Row] = set()
        self.unrecorded: set[Row] = set()
        make_topic_table(catalog, calve__snapshots__keep=str(chance.choice([2, 100])))

    def remember(self) -> None:
        table = self.catalog.load_table("t")
        if table.metadata.current_snapshot_id is not None:
            state = (self.rows.copy(), set(self.unrecorded))
            self.states[table.metadata.current_snapshot_id] = state

    def files(self) -> dict[str, DataFile]:
        tasks = self.catalog.load_table("t").scan().plan_files()
        return {task.file.file_path: task.file for task in tasks}

    def content(self, file: DataFile) -> list[Row]:
        table = self.catalog.load_table("t")
        with table.io.new_input(file.file_path).open() as stream:
            found = pq.read_table(stream).to_pydict()
        return list(zip(found["_calve_partition"], found["_calve_offset"], strict=True))

    def write(self, rows: Iterable[Row]) -> list[DataFile]:
        listed = list(rows)
        self.chance.shuffle(listed)
        parts = [topic_rows([offset], partition) for partition, offset in listed]
        return data_files(self.catalog.load_table("t"), pa.concat_tables(parts)) if parts else []

    def some_files(self) -> list[DataFile]:
        files = sorted(self.files().values(), key=lambda file: file.file_path)
        return self.chance.sample(files, self.chance.randint(1, len(files))) if files else []

    def feed(self) -> None:
        partition, count = self.chance.randrange(PARTITIONS), self.chance.randint(1, 40)
        start = self.ends[partition]
        offsets = list(range(start, start + count))
        self.chance.shuffle(offsets)
        feed(self.catalog, offsets, partition=partition, end=start + count)
        self.ends[partition] += count
        self.rows.update((partition, offset) for offset in offsets)

    def delete(self) -> None:
        first, length = self.chance.randint(0, 60), self.chance.randint(1, 30)
        delete_rows(self.catalog, "t", f"id >= {first} and id < {first + length}")
        gone = {row for row in self.rows if first <= row[1] < first + length}
        self.recorded |= gone
        self.rows = Counter(row for row in self.rows if row not in gone)

    def update(self) -> None:
        update_rows(self.catalog, "t", {"name": "new"}, f"id % 3 = {self.chance.randrange(3)}")

    def foreign_delete(self) -> None:
        files = self.some_files()
        rows = [row for file in files for row in self.content(file)]
        gone = set(self.chance.sample(rows, self.chance.randint(0, len(rows))))
        kept = self.write(row for row in rows if row not in gone)
        if files:
            TableCommit(self.catalog.load_table("t")).attempt(Edit(added=kept, removed=files))
        self.unrecorded |= gone
        self.rows -= Counter(gone)

    def compact(self) -> None:
        files = self.some_files()
        rows = [row for file in files for row in self.content(file)]
        compact(self.catalog.load_table("t"), files, self.write(rows))

    def record(self) -> None:
        record_removals(self.catalog.load_table("t"))
        self.recorded |= self.unrecorded
        self.unrecorded = set()

    def roll_back(self) -> None:
        ids = [each.snapshot_id for each in self.catalog.load_table("t").metadata.snapshots]
        if not ids:
            return
        target = self.chance.choice(ids)
        rows, unrecorded = self.states[target]
        roll_back_fed(self.catalog.load_table("t"), target, force=True)
        self.recorded = (self.recorded | set(self.rows)) - set(rows)
        self.rows, self.unrecorded = rows.copy(), set(unrecorded)

    def forget_snapshots(self) -> None:
        self.record()
        table = self.catalog.load_table("t")
        newest = max((each.timestamp_ms for each in table.metadata.snapshots), default=0)
        expire_snapshots(table, datetime.fromtimestamp((newest + 1) / 1000, UTC))

    def lose_files(self) -> None:
        lost = self.some_files()
        for file in lost:
            self.rows -= Counter(self.content(file))
        forget(self.catalog.load_table("t"), [file.file_path for file in lost])

    def lossy_compaction(self) -> None:
        files = self.some_files()
        rows = [row for file in files for row in self.content(file)]
        lost = Counter(self.chance.sample(rows, self.chance.randint(0, len(rows))))
        compact(self.catalog.load_table("t"), files, self.write((Counter(rows) - lost).elements()))
        self.rows -= lost

    def add_twice(self) -> None:
        files = self.some_files()
        rows = [row for file in files for row in self.content(file)]
        TableCommit(self.catalog.load_table("t")).append(Edit(added=self.write(rows)))
        self.rows.update(rows)

    def rewrite_twice(self) -> None:
        files = self.some_files()
        rows = [row for file in files for row in self.content(file)]
        again = self.chance.sample(rows, self.chance.randint(0, len(rows)))
        compact(self.catalog.load_table("t"), files, self.write([*rows, *again]))
        self.rows.update(again)

    def skip_range(self) -> None:
        partition, count = self.chance.randrange(PARTITIONS), self.chance.randint(1, 20)
        feed(self.catalog, [], partition=partition, end=self.ends[partition] + count)
        self.ends[partition] += count

    def jump_ahead(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        rows = [(partition, self.ends[partition] + n) for n in range(self.chance.randint(1, 5))]
        TableCommit(self.catalog.load_table("t")).append(Edit(added=self.write(rows)))
        self.rows.update(rows)


@contextmanager
def few_snapshots() -> Iterator[None]:
    """Have offset commits forget snapshots as soon as the table says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "SNAPSHOTS_KEPT_MIN", 1)
        yield


Step = Callable[[History], None]
STEPS: tuple[Step, ...] = (
    *(History.feed, History.feed, History.feed),
    *(History.delete, History.update, History.foreign_delete, History.compact),
    *(History.record, History.roll_back, History.forget_snapshots),
)
DEFECTS: tuple[Step, ...] = (
    *(History.lose_files, History.lossy_compaction, History.add_twice),
    *(History.rewrite_twice, History.skip_range, History.jump_ahead),
)


def offsets(ranges: Iterable[Range]) -> set[int]:
    listed = list(ranges)
    assert all(each.is_exact for each in listed)
    return {offset for each in listed for offset in range(each.first, each.end)}


def check(history: History) -> None:
    found = verify_topic(history.catalog, "t")
    reports = {each.partition: each for each in found.partitions}
    explained = history.recorded | history.unrecorded
    defects = False
    for partition in range(PARTITIONS):
        seen = Counter({row[1]: n for row, n in history.rows.items() if row[0] == partition and n})
        end = history.ends[partition]
        gaps = {offset for offset in range(end) if not seen[offset]}
        purpose = {offset for offset in gaps if (partition, offset) in explained}
        doubled = {offset for offset, count in seen.items() if count > 1 and offset < end}
        beyond = {offset for offset in seen if offset >= end}
        defects |= bool(gaps - purpose or doubled or beyond)
        if partition not in reports:
            assert not gaps | doubled | beyond
            continue
        report = reports[partition]
        assert report.committed == end
        assert report.rows == seen.total()
        assert offsets(report.missing) == gaps - purpose
        assert offsets(report.removed) == purpose
        assert offsets(report.doubled) == doubled
        assert offsets(report.beyond) == beyond
    assert found.is_sound is not defects


@given(
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=10),
    st.lists(st.sampled_from(DEFECTS), max_size=3),
    st.integers(0, 1 << 32),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_auditor_agrees_with_a_model(steps: list[Step], defects: list[Step], seed: int) -> None:
    with small_chunks(), few_snapshots(), tempfile.TemporaryDirectory() as directory:
        data = str(Path(directory) / "lake")
        with LakeCatalog(load_settings(flags={"data": data}, environ={}).settings) as catalog:
            history = History(catalog, random.Random(seed))
            for step in steps:
                step(history)
                history.remember()
            check(history)
            for defect in defects:
                defect(history)
            check(history)
