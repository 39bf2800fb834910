"""Rows that a rollback has come from the log again: all of them, also while nothing else comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from calve.errors import Conflict, Overloaded, Unavailable
from calve.manager import IcebergManager
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.wal import Rejected
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site

ORDERS = TableName.parse("orders")
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
SMALL_SEGMENTS = {"wal__hot_window_seconds": 0, "wal__segment_bytes_max": 65536}
LARGE = "x" * 20_000


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        yield made


def fill(made: Site, pipeline: Pipeline, count: int = 3) -> None:
    """Rows, each with a snapshot of its own."""
    for number in range(count):
        made.send("orders", [{"id": number, "text": LARGE}])
        assert pipeline.drain(30)


def roll_back(made: Site, *, count: int = 1) -> None:
    """Have all rows but the first so many come again."""
    with IcebergManager(made.settings) as manager:
        kept = manager.list_snapshots("orders")[count - 1].id
        manager.rollback("orders", kept, replay=True, log=made.intake.log.directory)


@contextmanager
def running(pipeline: Pipeline) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=pipeline.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def cycle_until(pipeline: Pipeline, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        pipeline.run_cycle()
        time.sleep(0.01)


def test_rows_of_an_idle_topic_come_again(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    fill(lake_site, pipeline)
    roll_back(lake_site)
    assert lake_site.committed("orders") == 1
    cycle_until(pipeline, lambda: lake_site.committed("orders") == 3)
    lake_site.require_each_once("orders", 3)
    assert pipeline.drain(30)


def test_a_flush_waits_for_rows_that_come_again(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    fill(lake_site, pipeline)
    roll_back(lake_site)
    with pytest.raises(Unavailable):
        lake_site.intake.flush(ORDERS, 0.1)
    with running(pipeline):
        assert lake_site.intake.flush(ORDERS, 30).committed == 3
    lake_site.require_each_once("orders", 3)


def test_rows_that_are_to_come_again_stay_in_the_log(make_settings: MakeSettings) -> None:
    with site(make_settings(**AT_ONCE, **SMALL_SEGMENTS)) as made:
        pipeline = made.pipeline()
        fill(made, pipeline)
        roll_back(made)
        # Other topics go on and fill segments.
        made.send("others", *([{"id": each, "text": LARGE}] for each in range(20)))
        topic = made.intake.topics.topic(TableName.parse("others"))
        log_id = topic.partitions[0].log_id
        made.state.publish_committed(topic.id, 0, log_id=log_id, offset=20)
        made.intake.trim()
        assert made.intake.offsets(ORDERS).first <= 1
        cycle_until(pipeline, lambda: made.committed("orders") == 3)
        made.require_each_once("orders", 3)
        assert made.intake.trim() > 0


def test_rows_that_are_to_come_again_stay_in_a_log_that_is_full(
    make_settings: MakeSettings,
) -> None:
    flags = {**AT_ONCE, **SMALL_SEGMENTS, "wal__disk_bytes_max": 400_000}
    with site(make_settings(**{**flags, "wal__hot_window_seconds": 3600})) as made:
        pipeline = made.pipeline()
        fill(made, pipeline)
        made.intake.trim()  # The log has heard that they are in the table.
        roll_back(made)
        with pytest.raises(Overloaded):
            made.send("others", *([{"id": each, "text": LARGE}] for each in range(40)))
        assert pipeline.drain(30)
        made.require_each_once("orders", 3)


@pytest.mark.parametrize("comes_again", [True, False])
def test_expiry_after_a_rollback_stops_nothing(lake_site: Site, *, comes_again: bool) -> None:
    pipeline = lake_site.pipeline()
    fill(lake_site, pipeline)
    roll_back(lake_site)
    with IcebergManager(lake_site.settings) as manager:
        assert manager.expire_snapshots("orders", 0).snapshot_ids
    if comes_again:
        lake_site.send("orders", [{"id": 3}])
    assert pipeline.drain(30)
    lake_site.require_each_once("orders", 4 if comes_again else 3)


def test_rows_that_come_in_during_a_rollback_come_once(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline commits, and tells the state, between the hold and the rollback's commit."""
    pipeline = lake_site.pipeline()
    fill(lake_site, pipeline)
    with IcebergManager(lake_site.settings) as manager:
        iceberg = manager._lake.catalog.iceberg
        works = iceberg.commit_table
        more = [[{"id": 3}]]

        def commit(*given: Any) -> Any:
            if more:
                lake_site.send("orders", more.pop())
                assert pipeline.drain(30)
                assert lake_site.committed("orders") == 4
            return works(*given)

        monkeypatch.setattr(iceberg, "commit_table", commit)
        oldest = manager.list_snapshots("orders")[0].id
        manager.rollback("orders", oldest, replay=True, log=lake_site.intake.log.directory)
    assert lake_site.committed("orders") == 1
    cycle_until(pipeline, lambda: lake_site.committed("orders") == 4)
    lake_site.require_each_once("orders", 4)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_rollback_that_is_killed_loses_nothing(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    """With its commit, or before; nobody releases what it holds."""
    pipeline = lake_site.pipeline()
    fill(lake_site, pipeline)
    with IcebergManager(lake_site.settings) as manager:
        iceberg = manager._lake.catalog.iceberg
        works = iceberg.commit_table

        def dies(*given: Any) -> Any:
            if is_done:
                works(*given)
            raise KeyboardInterrupt

        monkeypatch.setattr(iceberg, "commit_table", dies)
        oldest = manager.list_snapshots("orders")[0].id
        with pytest.raises(KeyboardInterrupt):
            manager.rollback("orders", oldest, replay=True, log=lake_site.intake.log.directory)
    assert lake_site.committed("orders") == 1
    if not is_done:
        # The table still has them, and nobody can tell that it will.
        assert not pipeline.drain(0.5)
        told = lake_site.state.progress().partitions.values()
        assert any("rolled back" in (each.error or "") for each in told)
        lake_site.send("orders", [{"id": 3}])
    assert pipeline.drain(30)
    assert lake_site.committed("orders") == (3 if is_done else 4)
    lake_site.require_each_once("orders", 3 if is_done else 4)


def test_a_hold_that_nobody_ends_is_over_after_its_time(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    fill(lake_site, pipeline)
    topic = lake_site.intake.topics.topic(ORDERS)
    log_id = topic.partitions[0].log_id
    lake_site.state.hold_committed(topic.id, 0, log_id=log_id, offset=1, seconds=1.0)
    assert not pipeline.drain(0.2)
    assert pipeline.drain(30)
    assert lake_site.committed("orders") == 3


def test_a_rollback_that_is_refused_changes_nothing(make_settings: MakeSettings) -> None:
    with site(make_settings(**AT_ONCE, **SMALL_SEGMENTS)) as made:
        fill(made, made.pipeline(), 10)
        made.intake.trim()
        with pytest.raises(Conflict, match="no longer in the log"):
            roll_back(made)
        assert made.committed("orders") == 10
        assert made.state.pipeline_orders().resets == {}


def test_rows_of_which_some_were_set_aside_do_not_come_again(make_settings: MakeSettings) -> None:
    with site(make_settings(**AT_ONCE)) as made, IcebergManager(made.settings) as manager:
        log = made.intake.log.directory
        made.send("orders", [{"id": 1}, {"id": 2}])
        assert made.pipeline().drain(30)
        bad = [Rejected(b"{", "application/x-ndjson", "no row")]
        made.intake.submit(TableName.parse("orders"), bad).wait()
        assert made.pipeline().drain(30)
        made.send("orders", [{"id": 3}])
        assert made.pipeline().drain(30)
        before, with_letter, _ = manager.list_snapshots("orders")
        with pytest.raises(Conflict, match="among the dead letters"):
            manager.rollback("orders", before.id, replay=True, log=log)
        manager.rollback("orders", with_letter.id, replay=True, log=log)
        made.require_each_once("orders", 3)
        assert made.pipeline().drain(30)
        made.require_each_once("orders", 4)
        assert manager.verify_topic("orders", log=log).is_sound


# At which step the pipeline ended, and whether the topic's table has the range with the bad row.
ENDS = {
    "written": False,
    "before commit": False,
    "committed": True,
    "dead letters committed": True,
    "published": True,
}


def send_bad(made: Site) -> None:
    made.intake.submit(ORDERS, [Rejected(b"{", "application/x-ndjson", "no row")]).wait()


def left_by(made: Site) -> dict[str, Any]:
    """All that a rollback could have changed."""
    orders, letters = made.table("orders"), made.catalog.find_table(ORDERS.dead_letters)
    return {
        "table": orders.metadata_location,
        "dead letters": letters.metadata_location if letters else None,
        "files": made.data_files("orders"),
        "committed": made.committed("orders"),
        "resets": dict(made.state.pipeline_orders().resets),
    }


@pytest.mark.parametrize("end", ENDS)
def test_a_replay_over_dead_letters_is_refused_before_anything_is_written(
    lake_site: Site, end: str
) -> None:
    fill(lake_site, lake_site.pipeline(), 2)
    send_bad(lake_site)
    lake_site.run_until_crash(end)
    before = left_by(lake_site)
    if ENDS[end]:
        with pytest.raises(Conflict, match="among the dead letters"):
            roll_back(lake_site)
        assert left_by(lake_site) == before
    else:
        roll_back(lake_site)
    assert lake_site.pipeline().drain(30)
    lake_site.require_each_once("orders", 3)
    with IcebergManager(lake_site.settings) as manager:
        assert manager.verify_topic("orders", log=lake_site.intake.log.directory).is_sound


def test_a_replay_is_refused_when_rows_are_set_aside_meanwhile(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline commits a bad row between the rollback's look at the dead letters and its commit."""
    pipeline = lake_site.pipeline()
    fill(lake_site, pipeline, 2)
    with IcebergManager(lake_site.settings) as manager:
        iceberg = manager._lake.catalog.iceberg
        works = iceberg.commit_table
        found: list[dict[str, Any]] = []

        def commit(*given: Any) -> Any:
            if not found:
                send_bad(lake_site)
                assert pipeline.drain(30)
                found.append(left_by(lake_site))
            return works(*given)

        monkeypatch.setattr(iceberg, "commit_table", commit)
        oldest = manager.list_snapshots("orders")[0].id
        with pytest.raises(Conflict, match="among the dead letters"):
            manager.rollback("orders", oldest, replay=True, log=lake_site.intake.log.directory)
    after = left_by(lake_site)
    assert [{**each, "resets": {}} for each in found] == [{**after, "resets": {}}]
    assert pipeline.drain(30)
    assert lake_site.committed("orders") == 3
    lake_site.require_each_once("orders", 3)
