"""Offset commits forget old snapshots, and record first what others removed with them."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from calve.errors import Denied, Unavailable
from calve.lake import Lake
from calve.maintenance.verification import PartitionReport
from calve.maintenance.verify import verify_topic
from calve.tables import recording
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.recording import record_removals
from calve.tables.removal_history import taken_out
from calve.tables.removals import Removals
from calve.tables.staging import Edit
from tests.fakes import lying_catalog as lies
from tests.fakes.delete_files import delete_equal, delete_positions
from tests.fakes.lying_catalog import lying
from tests.fakes.topic_table import data_files, feed, make_topic_table, topic_rows

KEPT = 10


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    make_topic_table(lake.catalog, calve__snapshots__keep=str(KEPT))
    feed(lake.catalog, range(100))
    return lake.catalog


def remove(catalog: LakeCatalog, gone: Iterable[int]) -> int:
    """What Spark's DELETE does: the file of these rows is replaced by one without them."""
    offsets = set(gone)
    table = catalog.load_table("t")
    scan = table.scan(row_filter=f"_calve_offset = {min(offsets)}")
    (file,) = (task.file for task in scan.plan_files())
    held = {row["_calve_offset"] for row in table.scan().to_arrow().to_pylist()}
    first, end = min(offsets) // 100 * 100, min(offsets) // 100 * 100 + 100
    kept = sorted(each for each in held - offsets if first <= each < end)
    edit = Edit(added=data_files(table, topic_rows(kept)), removed=[file])
    return TableCommit(table).attempt(edit).snapshot_id


def go_on(catalog: LakeCatalog, commits: int) -> None:
    for _ in range(commits):
        end = report(catalog).committed
        feed(catalog, [end])


def table_of(catalog: LakeCatalog) -> Table:
    return catalog.load_table("t")


def report(catalog: LakeCatalog) -> PartitionReport:
    found = verify_topic(catalog, "t")
    assert found.is_sound, found
    (only,) = found.partitions
    return only


def recorded(catalog: LakeCatalog) -> str:
    return str(Removals.parse(table_of(catalog).properties).ranges(0))


def test_what_somebody_removed_is_recorded_before_its_snapshot_is_forgotten(
    catalog: LakeCatalog,
) -> None:
    removing = remove(catalog, [5, 6, 50])
    go_on(catalog, KEPT - 2)
    assert recorded(catalog) == ""
    go_on(catalog, 1)
    assert recorded(catalog) == "5-7,50-51"
    assert [each.snapshot_ids for each in report(catalog).removed_by] == [(removing,)]
    go_on(catalog, 2 * KEPT)
    assert table_of(catalog).snapshot_by_id(removing) is None
    assert len(table_of(catalog).metadata.snapshots) == KEPT
    assert [str(each) for each in report(catalog).removed] == ["5-7", "50-51"]


def test_position_deletes_are_recorded_too(catalog: LakeCatalog) -> None:
    (task,) = table_of(catalog).scan().plan_files()
    delete_positions(table_of(catalog), {task.file.file_path: [7, 8]})
    go_on(catalog, KEPT + 2)
    assert recorded(catalog) == "7-9"
    assert report(catalog).rows == 98 + KEPT + 2


def test_many_are_recorded_a_few_at_a_time_and_none_is_lost(catalog: LakeCatalog) -> None:
    for offset in range(20, 40):
        remove(catalog, [offset])
    feed(catalog, [100])
    assert recorded(catalog) == f"20-{20 + recording._READ_MAX}"
    assert len(table_of(catalog).metadata.snapshots) > KEPT
    go_on(catalog, KEPT)
    assert recorded(catalog) == "20-40"
    assert len(table_of(catalog).metadata.snapshots) == KEPT
    assert report(catalog).rows == 80 + 1 + KEPT


PASSING = [
    Unavailable("the store is away"),
    Denied("the credentials have expired"),
    OSError(errno.EMFILE, "too many open files"),
    MemoryError(),
    pa.ArrowMemoryError("malloc failed"),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda each: type(each).__name__)
def test_a_snapshot_that_cannot_be_read_just_now_stays(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    removing = remove(catalog, [5])

    def unavailable(*_: object) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(recording, "taken_out", unavailable)
        go_on(catalog, KEPT + 5)
        assert len(table_of(catalog).metadata.snapshots) == KEPT + 5 + 2
    assert [each.snapshot_ids for each in report(catalog).removed_by] == [(removing,)]
    go_on(catalog, 1)
    assert recorded(catalog) == "5-6"
    assert len(table_of(catalog).metadata.snapshots) == KEPT


def test_a_snapshot_that_is_never_read_holds_so_many_others_and_no_more(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remove(catalog, [5])

    def denied(*_: object) -> Any:
        raise Denied("for ever")

    monkeypatch.setattr(recording, "taken_out", denied)
    monkeypatch.setattr(recording, "_HELD_MAX", 7)
    counts = []
    for number in range(2 * KEPT + 20):
        feed(catalog, [100 + number])
        if number == KEPT // 2:
            remove(catalog, [6])
        counts.append(len(table_of(catalog).metadata.snapshots))
    assert max(counts) == KEPT + 7
    assert counts[-1] == KEPT
    (found,) = verify_topic(catalog, "t").partitions
    assert (found.rows, len(found.missing)) == (98 + 2 * KEPT + 20, 1)
    told = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert told.count("what a snapshot removed cannot be recorded") == 2
    assert told.count("a snapshot is kept until it can be read") >= 14


def test_what_nobody_can_read_is_let_go_of(
    catalog: LakeCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    delete_equal(table_of(catalog), "id", [50])
    for end in range(101, 101 + 2 * KEPT):
        feed(catalog, [end - 1])
    assert len(table_of(catalog).metadata.snapshots) == KEPT
    told = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.message for each in told] == ["what a snapshot removed cannot be recorded"]


def test_a_commit_that_is_tried_again_reads_and_records_once(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(catalog, range(0, 60, 2))
    go_on(catalog, KEPT - 2)
    reads: list[object] = []

    def reading(*given: Any) -> Any:
        reads.append(given)
        return taken_out(*given)

    monkeypatch.setattr(recording, "taken_out", reading)
    with lying(catalog, lies.refuses, lies.fails_before, lies.applies_then_fails):
        go_on(catalog, 1)
    assert len(reads) == 1
    assert report(catalog).returned == 0
    assert Removals.parse(table_of(catalog).properties).count == 30


def test_a_record_that_is_rolled_back_is_not_made_again(lake: Lake) -> None:
    make_topic_table(lake.catalog)
    feed(lake.catalog, range(100))
    removing = remove(lake.catalog, range(0, 100, 2))
    assert record_removals(table_of(lake.catalog)) is not None
    lake.tables.rollback("t", removing)
    assert record_removals(table_of(lake.catalog)) is None
