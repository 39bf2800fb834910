"""The pipeline's driver, from rows that were taken in to tables: its tasks run in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.exceptions import BadRequestError
from pyiceberg.table import Table

from calve.clock import SystemClock
from calve.errors import Unavailable
from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.maintenance.verify import verify_topic
from calve.manager import IcebergManager
from calve.model import TableName
from calve.settings import Settings
from calve.state import State
from calve.state.work import Progress, TopicPartition
from calve.tables.catalog import LakeCatalog
from calve.tables.orphans import remove_orphans
from calve.tables.positions import committed_position
from calve.topics import TopicChange
from calve.wal import OsFiles, Rejected
from calve.wal.layout import LogLayout
from calve.wal.repair import repair
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.clocks import HandClock
from tests.fakes.pipelines import Site, let_side_lane_end, run_here, site

AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
PATIENT = {"wal__free_bytes_min": 0, **QUICK_RETRIES}


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        yield made


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": each} for each in ids]


def progress_of(state: State) -> dict[int, Progress]:
    return {at.partition: each for at, each in state.progress().partitions.items()}


def test_acknowledged_rows_come_to_the_table_once(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    end = lake_site.send("orders", [{"id": n, "name": f"n{n}"} for n in range(100)])
    assert pipeline.drain(30)
    assert lake_site.rows("orders") == [{"id": n, "name": f"n{n}"} for n in range(100)]
    assert lake_site.committed("orders") == end == 100
    end = lake_site.send("orders", [{"id": n, "name": "more"} for n in range(50)])
    assert pipeline.drain(30)
    lake_site.require_each_once("orders", end)
    assert pipeline.run_cycle().topics == 0


def test_a_table_is_what_its_topic_asks_for(lake_site: Site) -> None:
    lake_site.create(
        "events",
        schema={"id": "long", "at": "timestamptz", "kind": "string"},
        partition_by=["day(at)"],
        sort_by=["kind"],
        properties={"write.parquet.compression-codec": "zstd", "owner": "us"},
    )
    lake_site.send("events", [{"id": 1, "kind": "b"}, {"id": 2, "kind": "a"}])
    assert lake_site.pipeline().drain(30)
    table = lake_site.table("events")
    assert [field.name for field in table.schema().fields] == [
        *("id", "at", "kind"),
        *("_calve_partition", "_calve_offset", "_calve_ingested_at"),
    ]
    assert str(table.spec().fields[0].transform) == "day"
    assert not table.sort_order().is_unsorted
    assert table.properties["calve.topic"] == "events"
    assert table.properties["owner"] == "us"
    assert table.properties["write.metadata.metrics.column._calve_offset"] == "full"
    topic = lake_site.intake.topics.topic(TableName.parse("events"))
    position = committed_position(table, 0)
    assert position is not None
    assert position.log == topic.partitions[0].stream_id
    assert position.checksum


def test_no_table_is_made_before_there_are_rows_to_write(lake_site: Site) -> None:
    lake_site.create("events", schema={"id": "long"})
    pipeline = lake_site.pipeline()
    pipeline.run_cycle()
    pipeline.run_cycle()
    assert lake_site.catalog.find_table("events") is None


def test_the_table_is_sound_to_verify_and_its_log_can_go(lake_site: Site) -> None:
    lake_site.send("orders", rows(1, 2, 3))
    assert lake_site.pipeline().drain(30)
    with IcebergManager(lake_site.settings) as manager:
        found = manager.verify_topic("orders", log=lake_site.intake.log.directory)
    assert found.is_sound
    assert lake_site.intake.offsets(TableName.parse("orders")).committed == 3


def test_a_restarted_pipeline_goes_on_where_the_table_is(lake_site: Site) -> None:
    for count in range(3):
        lake_site.send("orders", rows(*range(10)))
        pipeline = lake_site.pipeline()
        assert pipeline.drain(30)
        lake_site.require_each_once("orders", 10 * (count + 1))


def test_what_a_table_reached_is_published_at_the_start(lake_site: Site) -> None:
    lake_site.send("orders", rows(1, 2))
    assert lake_site.pipeline().drain(30)
    topic = lake_site.intake.topics.topic(TableName.parse("orders"))
    lake_site.state.reset_committed(topic.id, 0, log_id=topic.partitions[0].log_id, offset=0)
    lake_site.pipeline().run_cycle()
    assert lake_site.committed("orders") == 2
    lake_site.require_each_once("orders", 2)


def test_paused_topics_are_not_waited_for_when_the_pipeline_ends(
    lake_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    lake_site.send("orders", rows(1, 2))
    lake_site.send("events", rows(1))
    lake_site.state.pause_pipeline(lake_site.intake.topics.topic(TableName.parse("orders")).id)
    with caplog.at_level("INFO"):
        assert lake_site.pipeline().drain(5)
    assert "paused, and not waited for: orders; their rows stay in the log" in caplog.text
    assert (lake_site.committed("orders"), lake_site.committed("events")) == (0, 1)
    lake_site.state.pause_pipeline()
    lake_site.send("events", rows(2))
    assert lake_site.pipeline().drain(5)
    assert lake_site.committed("events") == 1
    lake_site.state.resume_pipeline()
    assert lake_site.pipeline().drain(30)
    assert (lake_site.committed("orders"), lake_site.committed("events")) == (2, 2)


def test_rows_wait_for_their_age_and_not_for_a_flush_that_is_asked_for(
    make_settings: MakeSettings,
) -> None:
    with site(make_settings(**PATIENT)) as made:
        clock = HandClock(SystemClock().now())
        pipeline = made.pipeline(clock=clock)
        made.send("orders", rows(1, 2))
        pipeline.run_cycle()
        assert pipeline.run_cycle().commits == 0
        assert made.catalog.find_table("orders") is None
        clock.pass_seconds(6)
        assert pipeline.run_cycle().commits == 1
        end = made.send("orders", rows(3))
        assert pipeline.run_cycle().commits == 0
        topic = made.intake.topics.topic(TableName.parse("orders"))
        made.state.request_flush(topic.id, 0, end)
        assert pipeline.run_cycle().commits == 1
        assert made.state.flush_requests() == {}


def test_many_rows_do_not_wait(make_settings: MakeSettings) -> None:
    with site(make_settings(**PATIENT, pipeline__rows_max=10)) as made:
        pipeline = made.pipeline()
        pipeline.run_cycle()
        made.send("orders", rows(*range(9)))
        pipeline.run_cycle()
        assert pipeline.run_cycle().commits == 0
        made.send("orders", rows(9))
        assert pipeline.run_cycle().rows == 10


def test_a_topic_has_its_own_words_about_when(make_settings: MakeSettings) -> None:
    with site(make_settings(**PATIENT)) as made:
        pipeline = made.pipeline()
        made.create("quick", schema={"id": "long"}, flush={"rows_max": 1})
        made.create("slow", schema={"id": "long"})
        for topic in ("quick", "slow"):
            made.send(topic, rows(1))
        pipeline.run_cycle()
        assert pipeline.run_cycle().rows == 1
        assert made.rows("quick") == [{"id": 1}]
        assert made.catalog.find_table("slow") is None


def test_many_bytes_do_not_wait_and_a_topic_has_its_own_bounds_of_bytes_and_age(
    make_settings: MakeSettings,
) -> None:
    large = {"note": "x" * 2_000}
    with site(make_settings(**PATIENT, pipeline__bytes_max=100_000)) as made:
        clock = HandClock(SystemClock().now())
        pipeline = made.pipeline(clock=clock)
        own = {"small": {"bytes_max": 10_000}, "young": {"interval_ms": 1_000}, "common": {}}
        for topic, flush in own.items():
            made.create(topic, schema={"note": "string"}, flush=flush)
        pipeline.run_cycle()

        def committed_after(count: int) -> dict[str, int]:
            for topic in own if count else ():
                made.send(topic, [large] * count)
            pipeline.run_cycle()
            return {topic: made.committed(topic) for topic in own}

        assert committed_after(3) == {"small": 0, "young": 0, "common": 0}
        assert committed_after(3) == {"small": 6, "young": 0, "common": 0}
        clock.pass_seconds(1.1)
        assert committed_after(0) == {"small": 6, "young": 6, "common": 0}
        assert committed_after(50)["common"] == 56
        for topic in own:
            made.require_each_once(topic, made.committed(topic))


def test_a_trickle_makes_fewer_files_and_says_so(make_settings: MakeSettings) -> None:
    clock = HandClock(SystemClock().now())
    with site(make_settings(**PATIENT), clock=clock) as made:
        pipeline = made.pipeline(clock=clock)
        commits = 0
        for second in range(300):
            made.send("orders", rows(second))
            clock.pass_seconds(1)
            commits += pipeline.run_cycle().commits
        # After 5, 10, 20 and 40 seconds, then once a minute.
        assert commits == 7
        assert progress_of(made.state)[0].flush_interval_ms == 60_000


def test_evolution_reaches_the_table_nested_and_inside_lists_and_maps(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    small = pa.record_batch(
        {
            "id": pa.array([1], pa.int32()),
            "score": pa.array([1.5], pa.float32()),
            "address": pa.array([{"city": "Rome"}]),
            "tags": pa.array([[{"k": "a"}]]),
            "by_name": pa.array(
                [[("x", {"n": 1})]], pa.map_(pa.string(), pa.struct([("n", pa.int32())]))
            ),
        }
    )
    lake_site.send("t", small)
    assert pipeline.drain(30)
    large = pa.record_batch(
        {
            "id": [2**40],
            "score": [0.1],
            "address": pa.array([{"city": "Oslo", "zip": "01"}]),
            "tags": pa.array([[{"k": "b", "v": 7}]]),
            "by_name": pa.array(
                [[("y", {"n": 2**40, "m": "z"})]],
                pa.map_(pa.string(), pa.struct([("n", pa.int64()), ("m", pa.string())])),
            ),
            "new": ["n"],
        }
    )
    lake_site.send("t", large, small)
    assert pipeline.drain(30)
    first, second, third = lake_site.rows("t")
    assert (
        first
        == third
        == {
            "id": 1,
            "score": 1.5,
            "address": {"city": "Rome", "zip": None},
            "tags": [{"k": "a", "v": None}],
            "by_name": [("x", {"n": 1, "m": None})],
            "new": None,
        }
    )
    assert second == {
        "id": 2**40,
        "score": 0.1,
        "address": {"city": "Oslo", "zip": "01"},
        "tags": [{"k": "b", "v": 7}],
        "by_name": [("y", {"n": 2**40, "m": "z"})],
        "new": "n",
    }


def test_columns_dropped_or_renamed_in_the_table_do_not_come_back(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    batch = pa.record_batch(
        {"id": [1], "name": ["x"], "junk": ["j"], "a": pa.array([{"b": 1, "c": 2}])}
    )
    lake_site.send("t", batch)
    assert pipeline.drain(30)
    with IcebergManager(lake_site.settings) as manager:
        manager.drop_column("t", "junk")
        manager.rename_column("t", "name", "full_name")
        manager.drop_column("t", "a.c")
        manager.rename_column("t", "a.b", "z")
    lake_site.send("t", batch)
    assert pipeline.drain(30)
    assert lake_site.rows("t") == [{"id": 1, "full_name": "x", "a": {"z": 1}}] * 2


def test_a_column_that_the_topic_gets_back_is_a_new_one(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    name = TableName.parse("t")
    lake_site.send("t", pa.record_batch({"id": [1], "x": ["old"]}))
    assert pipeline.drain(30)
    lake_site.intake.alter_topic(name, TopicChange(drop_columns=["x"]))
    with IcebergManager(lake_site.settings) as manager:
        manager.drop_column("t", "x")
        manager.add_column("t", "x", "string")
    lake_site.intake.alter_topic(name, TopicChange(add_columns={"x": "string"}))
    lake_site.send("t", pa.record_batch({"id": [2], "x": ["new"]}))
    assert pipeline.drain(30)
    assert lake_site.rows("t") == [{"id": 1, "x": None}, {"id": 2, "x": "new"}]


def test_a_topic_that_is_bound_to_a_table_gives_it_what_it_lacks(lake_site: Site) -> None:
    with IcebergManager(lake_site.settings) as manager:
        manager.create_table("users", {"id": "long", "name": "string"})
        manager.insert_data("users", [{"id": 0, "name": "before"}])
    lake_site.create("users", bind_table=True)
    pipeline = lake_site.pipeline()
    lake_site.send("users", [{"id": 1, "name": "a", "more": "m"}])
    assert pipeline.drain(30)
    table = lake_site.table("users")
    assert table.properties["calve.topic"] == "users"
    assert table.properties["write.metadata.metrics.column._calve_offset"] == "full"
    found = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: int(row["id"]))
    assert [row["_calve_offset"] for row in found] == [None, 0]
    assert [row["more"] for row in found] == [None, "m"]


def test_a_table_of_somebody_else_stops_the_topic_alone(lake_site: Site) -> None:
    lake_site.create("users", schema={"id": "long"})
    with IcebergManager(lake_site.settings) as manager:
        manager.create_table("users", {"id": "long"})
    for topic in ("users", "other"):
        lake_site.send(topic, rows(1))
    assert not lake_site.pipeline().drain(1)
    assert lake_site.rows("other") == [{"id": 1}]
    assert lake_site.table("users").scan().to_arrow().num_rows == 0
    errors = [each.error for each in lake_site.state.progress().partitions.values() if each.error]
    assert errors == ["the table users is not that of topic users: no topic feeds it"]


@pytest.mark.parametrize("is_same_pipeline", [True, False])
def test_a_table_that_was_dropped_is_not_made_anew(
    lake_site: Site, *, is_same_pipeline: bool
) -> None:
    pipeline = lake_site.pipeline()
    lake_site.send("orders", rows(1))
    assert pipeline.drain(30)
    lake_site.catalog.drop_table("orders")
    lake_site.send("orders", rows(2))
    later = pipeline if is_same_pipeline else lake_site.pipeline()
    assert not later.drain(0.5)
    assert lake_site.catalog.find_table("orders") is None
    told = progress_of(lake_site.state)[0]
    assert told.error == "the table of topic orders is gone: it was dropped or renamed"
    assert told.hint
    assert told.next_try_at


def test_a_renamed_table_gets_its_rows_when_it_has_its_name_again(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    lake_site.send("orders", rows(1))
    assert pipeline.drain(30)
    lake_site.catalog.rename_table("orders", "kept")
    lake_site.send("orders", rows(2))
    assert not pipeline.drain(0.3)
    lake_site.catalog.rename_table("kept", "orders")
    assert pipeline.drain(30)
    lake_site.require_each_once("orders", 2)
    assert progress_of(lake_site.state)[0].error is None


def test_a_table_of_another_log_stops_its_topic_alone(lake_site: Site) -> None:
    for topic in ("orders", "others"):
        lake_site.send(topic, rows(1))
    assert lake_site.pipeline().drain(30)
    name = TableName.parse("orders")
    stranger = msgspec.structs.replace(
        lake_site.intake.topics.topic(name).partitions[0], stream_id=uuid4()
    )
    table = lake_site.table("orders")
    position = committed_position(table, 0)
    assert position is not None
    value = {
        "log": str(stranger.stream_id),
        "offset": 1,
        "checksum": "",
        "snapshot": str(position.snapshot_id),
    }
    with table.transaction() as change:
        change.set_properties({"calve.committed.0": msgspec.json.encode(value).decode()})
    for topic in ("orders", "others"):
        lake_site.send(topic, rows(2))
    pipeline = lake_site.pipeline()
    files = len(list(Path(table.location().removeprefix("file://")).rglob("*.parquet")))
    assert not pipeline.drain(1)
    assert lake_site.offsets("others") == [0, 1]
    assert lake_site.offsets("orders") == [0]
    errors = [each.error for each in lake_site.state.progress().partitions.values() if each.error]
    assert len(errors) == 1
    assert "is fed by log" in errors[0]
    # However often it was tried, nothing was written for it.
    after = len(list(Path(table.location().removeprefix("file://")).rglob("*.parquet")))
    assert after == files


def test_a_new_log_goes_on_where_the_table_ends(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings
) -> None:
    lake_site.send("orders", rows(1, 2))
    assert lake_site.pipeline().drain(30)
    other = make_settings(**AT_ONCE, wal__path=str(tmp_path / "other"))
    lake_site.intake.close()
    with Intake(other) as intake:
        name = TableName.parse("orders")
        assert intake.adopt_new_log(name) == 2
        assert intake.submit(name, pa.record_batch({"id": [3]})).wait().end == 3
        assert lake_site.pipeline(settings=other).drain(30)
    assert lake_site.rows("orders") == rows(1, 2, 3)


def test_a_new_log_for_one_that_was_lost_before_anything_was_committed(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings
) -> None:
    """No table is missed that never was; one that was there is."""
    lake_site.send("orders", rows(1, 2))
    name = TableName.parse("orders")
    lake_site.intake.close()
    for place, kept in (("other", 3), ("third", 4)):
        other = make_settings(**AT_ONCE, wal__path=str(tmp_path / place))
        with Intake(other) as intake:
            assert intake.adopt_new_log(name) == 0
            assert intake.submit(name, pa.record_batch({"id": [kept]})).wait().end == 1
            found = verify_topic(lake_site.catalog, name, own_log=other.wal.path, settings=other)
            assert found.is_sound, found
            if place == "other":
                continue
            assert lake_site.pipeline(settings=other).drain(30)
            assert lake_site.rows("orders") == rows(4)
            lake_site.catalog.drop_table("orders")
            intake.submit(name, pa.record_batch({"id": [5]})).wait()
            assert not lake_site.pipeline(settings=other).drain(0.3)
            assert lake_site.catalog.find_table("orders") is None


def test_a_topic_goes_on_after_a_repair_of_a_log_whose_newest_segment_lost_its_start(
    lake_site: Site,
) -> None:
    """What may have been given is skipped, known as lost; the table was ahead of what is left."""
    lake_site.send("orders", rows(1))
    lake_site.intake.log.rotate()
    lake_site.send("orders", rows(2))
    lake_site.send("others", rows(3))
    assert lake_site.pipeline().drain(30)
    settings = lake_site.settings
    lake_site.intake.close()
    assert settings.wal.path is not None
    layout = LogLayout(settings.wal.path)
    content = layout.segment(2).read_bytes()
    layout.segment(2).write_bytes(bytes(2048) + content[2048:])
    repair(OsFiles(), layout, [], accept_unknown=True, dry_run=False)
    orders = TableName.parse("orders")
    with Intake(settings) as intake:
        assert list(intake.problems) == [TableName.parse("others")], "it was opened there"
        assert intake.offsets(orders).durable >= 2
        intake.submit(orders, pa.record_batch({"id": [4]})).wait()
        assert not lake_site.pipeline(settings=settings).drain(0.3), "the others wait for help"
    assert lake_site.rows("orders") == rows(1, 2, 4)


def test_two_partitions_of_two_processes_come_to_one_table(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings
) -> None:
    second = make_settings(**AT_ONCE, wal__path=str(tmp_path / "second"), ingest__partition=1)
    both = make_settings(**AT_ONCE, pipeline__logs=str(tmp_path / "second"))
    name = TableName.parse("orders")
    lake_site.send("orders", rows(*range(10)))
    with Intake(second) as intake:
        pipeline = lake_site.pipeline(settings=both)
        for start in (0, 20):
            sent = pa.RecordBatch.from_pylist([{"id": n, "b": n} for n in range(start, start + 20)])
            intake.submit(name, sent).wait()
            assert pipeline.drain(30)
    lake_site.require_each_once("orders", 10, partition=0)
    lake_site.require_each_once("orders", 40, partition=1)
    assert lake_site.committed("orders", 1) == 40


def test_rows_of_a_process_elsewhere_are_asked_for_over_flight(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings
) -> None:
    there = make_settings(
        **AT_ONCE, wal__path=str(tmp_path / "there"), ingest__partition=1, ingest__flight_port=0
    )
    name = TableName.parse("orders")
    lake_site.send("orders", rows(*range(10)))
    with Intake(there) as intake, FlightServer(intake) as server:
        settings = make_settings(**AT_ONCE, pipeline__logs=server.url)
        pipeline = lake_site.pipeline(settings=settings)
        for number in range(2):
            sent = pa.RecordBatch.from_pylist(rows(*range(20)))
            intake.submit(name, [sent, [Rejected(b"x", "text/csv", "bad")]]).wait()
            deadline = time.monotonic() + 30
            while lake_site.committed("orders", 1) < 21 * (number + 1):
                assert time.monotonic() < deadline
                pipeline.drain(1)
        pipeline.close()
    lake_site.require_each_once("orders", 10, partition=0)
    lake_site.require_each_once("orders", 42, partition=1)


def test_a_log_that_cannot_be_opened_stops_its_topics_alone(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings
) -> None:
    other = tmp_path / "other"
    with Intake(make_settings(**AT_ONCE, wal__path=str(other))) as intake:
        intake.submit(TableName.parse("elsewhere"), pa.record_batch({"id": [1]})).wait()
    identity = (other / "log.json").read_bytes()
    (other / "log.json").write_bytes(b"{")
    lake_site.send("orders", rows(1))
    settings = make_settings(**AT_ONCE, pipeline__logs=str(other))
    pipeline = lake_site.pipeline(settings=settings)
    assert not pipeline.drain(0.5)
    assert lake_site.rows("orders") == rows(1)
    errors = [each.error for each in lake_site.state.progress().partitions.values() if each.error]
    assert "log.json is unreadable" in errors[0]
    (other / "log.json").write_bytes(identity)
    assert pipeline.drain(30)
    assert lake_site.rows("elsewhere") == rows(1)


def test_rows_that_a_rollback_asks_for_again_come_again(lake_site: Site) -> None:
    told: list[int] = []

    def reach(step: str) -> None:
        if step == "prepared":
            told.append(lake_site.committed("orders"))

    pipeline = lake_site.pipeline(reach=reach)
    for number in range(3):
        lake_site.send("orders", rows(number))
        assert pipeline.drain(30)
    with IcebergManager(lake_site.settings) as manager:
        oldest = min(manager.list_snapshots("orders"), key=lambda each: each.timestamp).id
        log = lake_site.intake.log.directory
        manager.rollback("orders", oldest, replay=True, log=log)
    assert lake_site.offsets("orders") == [0]
    lake_site.send("orders", rows(3))
    assert pipeline.drain(30)
    lake_site.require_each_once("orders", 4)
    assert lake_site.committed("orders") == 4
    # Whoever waits for a flush is not told that rows are in the table that were taken out of it.
    assert told == [0, 1, 2, 1]


def test_a_log_that_is_nowhere_stops_its_partition_with_a_way_out(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings
) -> None:
    second = make_settings(**AT_ONCE, wal__path=str(tmp_path / "second"))
    with Intake(second) as intake:
        intake.submit(TableName.parse("elsewhere"), pa.record_batch({"id": [1]})).wait()
        lake_site.send("orders", rows(1))
        assert not lake_site.pipeline().drain(1)
    assert lake_site.rows("orders") == rows(1)
    told = [each for each in lake_site.state.progress().partitions.values() if each.error]
    assert "pipeline.logs" in str(told[0].hint)


def test_rejected_rows_and_rows_that_do_not_fit_become_dead_letters(lake_site: Site) -> None:
    name = TableName.parse("orders")
    pipeline = lake_site.pipeline()
    lake_site.send("orders", rows(1))
    bad = Rejected(b"{not json", "application/x-ndjson", "no JSON")
    lake_site.intake.submit(name, [pa.record_batch({"id": [2]}), [bad]]).wait()
    assert pipeline.drain(30)
    assert lake_site.rows("orders") == rows(1, 2)
    letters = lake_site.table("orders__dead_letters").scan().to_arrow().to_pylist()
    assert [(each["_calve_offset"], each["reason"]) for each in letters] == [(2, "no JSON")]
    assert letters[0]["original"] == b"{not json"
    lake_site.intake.submit(name, [[Rejected(b"x", "text/csv", "again")]]).wait()
    lake_site.send("orders", rows(3))
    assert pipeline.drain(30)
    lake_site.require_each_once("orders", 5)
    assert lake_site.offsets("orders__dead_letters") == [2, 3]
    lake_site.send("orders", rows(4))
    assert pipeline.drain(30)
    assert lake_site.table("orders").properties["calve.dead_letters.0"] == ""


def test_a_topic_without_bad_rows_has_no_table_for_them(lake_site: Site) -> None:
    lake_site.send("orders", rows(1))
    assert lake_site.pipeline().drain(30)
    assert lake_site.catalog.find_table("orders__dead_letters") is None


def test_rows_that_are_skipped_are_set_aside(lake_site: Site) -> None:
    lake_site.send("orders", rows(1, 2, 3))
    topic = lake_site.intake.topics.topic(TableName.parse("orders"))
    lake_site.state.request_skip(topic.id, 0, 2)
    assert lake_site.pipeline().drain(30)
    assert lake_site.rows("orders") == rows(3)
    assert lake_site.offsets("orders__dead_letters") == [0, 1]
    assert lake_site.state.pipeline_orders().skips == {}


def test_what_is_paused_waits(lake_site: Site) -> None:
    for topic in ("orders", "others"):
        lake_site.send(topic, rows(1))
    topic_id = lake_site.intake.topics.topic(TableName.parse("orders")).id
    lake_site.state.pause_pipeline(topic_id)
    pipeline = lake_site.pipeline()
    assert pipeline.drain(30)  # it is not waited for
    assert lake_site.catalog.find_table("orders") is None
    assert lake_site.rows("others") == rows(1)
    lake_site.state.resume_pipeline(topic_id)
    assert pipeline.drain(30)
    assert lake_site.rows("orders") == rows(1)


def test_a_topic_deleted_and_made_again_is_another_one(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    lake_site.send("orders", rows(1, 2))
    assert pipeline.drain(30)
    lake_site.intake.delete_topic(TableName.parse("orders"))
    lake_site.create("orders", bind_table=True)
    lake_site.send("orders", rows(3))
    assert pipeline.drain(30)
    assert lake_site.rows("orders") == rows(1, 2, 3)


def run_until(stop: threading.Event, made: Site, failed: list[BaseException]) -> None:
    with LakeCatalog(made.settings) as catalog:
        pipeline = made.pipeline(catalog=catalog)
        try:
            while not stop.is_set():
                pipeline.run_cycle()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)


def test_two_pipelines_at_once_write_each_row_once(lake_site: Site) -> None:
    stop = threading.Event()
    failed: list[BaseException] = []
    arguments = (stop, lake_site, failed)
    threads = [threading.Thread(target=run_until, args=arguments) for _ in range(2)]
    for thread in threads:
        thread.start()
    topics = ("a", "b", "c")
    bad = Rejected(b"x", "text/csv", "bad")
    for number in range(40):
        for topic in topics:
            lake_site.send(topic, rows(number, number))
            if number % 5 == 0:
                lake_site.intake.submit(TableName.parse(topic), [[bad]]).wait()
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert lake_site.pipeline().drain(30)
    for topic in topics:
        lake_site.require_each_once(topic, 88)


class FailingCatalog(LakeCatalog):
    """Some of its tables cannot be reached, or do not answer until they are let go."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.failing: set[str] = set()
        self.hanging: set[str] = set()
        self.go_on = threading.Event()

    def find_table(self, name: TableName | str) -> Table | None:
        if str(name) in self.hanging:
            self.go_on.wait(60)
        if str(name) in self.failing:
            raise Unavailable("the catalog does not answer")
        return super().find_table(name)


def test_a_pipeline_that_is_late_does_not_set_the_state_back(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lake_site.pipeline(), lake_site.pipeline()
    lake_site.send("orders", rows(0))
    assert first.drain(30)
    works = lake_site.state.publish_committed
    late = [True]

    def publish(*given: Any, **named: Any) -> Any:
        """The table has moved on between the look at it and the word about it."""
        if late:
            late.pop()
            lake_site.send("orders", rows(1))
            assert first.drain(30)
        return works(*given, **named)

    monkeypatch.setattr(lake_site.state, "publish_committed", publish)
    second.run_cycle()
    assert not late
    assert lake_site.committed("orders") == 2
    assert first.drain(30)
    lake_site.require_each_once("orders", 2)


def test_a_state_that_says_more_than_the_table_stops_the_topic(lake_site: Site) -> None:
    first, second = lake_site.pipeline(), lake_site.pipeline()
    lake_site.send("orders", rows(0))
    assert first.drain(30)
    topic = lake_site.intake.topics.topic(TableName.parse("orders"))
    log_id = topic.partitions[0].log_id
    lake_site.state.publish_committed(topic.id, 0, log_id=log_id, offset=9)
    assert not second.drain(0.3)
    assert lake_site.committed("orders") == 9
    (told,) = progress_of(lake_site.state).values()
    assert "it has 1 as committed offset, and the state knows that it had come to 9" in str(
        told.error
    )
    lake_site.state.reset_committed(topic.id, 0, log_id=log_id, offset=1)
    assert second.drain(30)
    assert lake_site.committed("orders") == 1


def test_a_state_that_fails_is_told_later(lake_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = lake_site.pipeline()
    lake_site.send("orders", rows(0))
    assert pipeline.drain(30)
    lake_site.send("orders", rows(1))
    works = lake_site.state.publish_committed

    def fails(*_: Any, **__: Any) -> Any:
        raise Unavailable("the state is locked")

    monkeypatch.setattr(lake_site.state, "publish_committed", fails)
    assert not pipeline.drain(0.3)
    assert [each.error for each in progress_of(lake_site.state).values()] == ["the state is locked"]
    monkeypatch.setattr(lake_site.state, "publish_committed", works)
    assert pipeline.drain(30)
    assert lake_site.committed("orders") == 2
    lake_site.require_each_once("orders", 2)


def test_a_table_that_is_older_than_its_log_is_told_as_such(make_settings: MakeSettings) -> None:
    flags = {**AT_ONCE, "wal__hot_window_seconds": 0, "wal__segment_bytes_max": 65536}
    with site(make_settings(**flags)) as made:
        pipeline = made.pipeline()
        for number in range(10):
            made.send("orders", [{"id": number, "text": "x" * 20_000}])
            assert pipeline.drain(30)
        # A catalog that was restored from a copy of an earlier time.
        table = made.table("orders")
        earlier = table.metadata.metadata_log[2].metadata_file
        made.intake.trim()
        made.catalog.iceberg.drop_table(table.name())
        made.catalog.iceberg.register_table(table.name(), earlier)
        made.send("orders", rows(10))
        # And the state as well.
        topic = made.intake.topics.topic(TableName.parse("orders"))
        log_id = topic.partitions[0].log_id
        made.state.reset_committed(topic.id, 0, log_id=log_id, offset=1)
        pipeline = made.pipeline()
        told: set[str] = set()
        for _ in range(20):
            pipeline.drain(0.05)
            told |= {str(each.error) for each in progress_of(made.state).values() if each.error}
        (only,) = told
        assert "the table is older than the log" in only


def test_a_table_that_fails_holds_up_nobody(lake_site: Site) -> None:
    topics = [f"t{number}" for number in range(5)]
    with FailingCatalog(lake_site.settings) as catalog:
        catalog.failing = {"t3"}
        pipeline = lake_site.pipeline(catalog=catalog)
        for count in range(3):
            for topic in topics:
                lake_site.send(topic, rows(count))
            assert not pipeline.drain(0.5)
            for topic in topics:
                assert lake_site.committed(topic) == (0 if topic == "t3" else count + 1)
        by_id = lake_site.state.progress().partitions
        topic_id = lake_site.intake.topics.topic(TableName.parse("t3")).id
        told = by_id[TopicPartition(topic_id, 0)]
        assert told.error == "the catalog does not answer"
        assert told.failures > 1
        assert told.rows_waiting or told.next_try_at
        catalog.failing = set()
        assert pipeline.drain(30)
        lake_site.require_each_once("t3", 3)


def test_a_table_that_hangs_holds_up_nobody(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.pipeline.pipeline.PATIENCE_SECONDS", 0.2)
    topics = [f"t{number}" for number in range(8)]
    with FailingCatalog(lake_site.settings) as catalog:
        pipeline = lake_site.pipeline(catalog=catalog)
        for topic in topics:
            lake_site.send(topic, rows(0))
        assert pipeline.drain(30)
        catalog.hanging = {"t2", "t3", "t4", "t5", "t6"}
        for topic in topics:
            lake_site.send(topic, rows(1))
        assert not pipeline.drain(1.5)
        for topic in topics:
            assert lake_site.committed(topic) == (1 if topic in catalog.hanging else 2)
        catalog.hanging = set()
        catalog.go_on.set()
        assert pipeline.drain(30)
        for topic in topics:
            lake_site.require_each_once(topic, 2)


def test_a_commit_that_hangs_holds_up_nobody_and_counts_when_it_is_done(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.pipeline.pipeline.PATIENCE_SECONDS", 0.2)
    pipeline = lake_site.pipeline()
    go_on = threading.Event()
    iceberg = lake_site.catalog.iceberg
    works = iceberg.commit_table

    def hangs(table: Table, *arguments: Any) -> Any:
        if table.name()[-1] == "t0":
            go_on.wait(60)
        return works(table, *arguments)

    monkeypatch.setattr(iceberg, "commit_table", hangs)
    for _ in range(2):
        for topic in ("t0", "t1"):
            lake_site.send(topic, rows(1))
        assert not pipeline.drain(1)
    assert (lake_site.committed("t0"), lake_site.committed("t1")) == (0, 2)
    told = [each.error for each in lake_site.state.progress().partitions.values() if each.error]
    assert told == ["the catalog or the store of table t0 has not answered for 0.2 seconds"]
    go_on.set()
    assert pipeline.drain(30)
    lake_site.require_each_once("t0", 2)


def test_a_commit_that_fails_is_made_again_with_the_same_files(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = lake_site.pipeline()
    lake_site.send("orders", rows(0))
    assert pipeline.drain(30)
    lake_site.send("orders", [{"id": 1, "more": "x"}])
    iceberg = lake_site.catalog.iceberg
    works = iceberg.commit_table

    def fails(*_: Any) -> Any:
        raise ConnectionError("the network is gone")

    monkeypatch.setattr(iceberg, "commit_table", fails)
    assert not pipeline.drain(0.5)
    files = lake_site.data_files("orders")
    assert len(files) == 2
    monkeypatch.setattr(iceberg, "commit_table", works)
    assert pipeline.drain(30)
    assert lake_site.data_files("orders") == files
    lake_site.require_each_once("orders", 2)


@pytest.mark.parametrize("is_removed", [True, False])
def test_files_that_are_or_may_be_gone_before_their_commit_are_written_again(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, *, is_removed: bool
) -> None:
    """Whoever removes orphans takes them for some; by default those of three days."""
    clock = HandClock(datetime.now(UTC))
    with site(make_settings(**AT_ONCE)) as made:
        pipeline = made.pipeline(clock=clock)
        made.send("orders", rows(0))
        assert pipeline.drain(30)
        made.send("orders", rows(1))
        iceberg = made.catalog.iceberg
        works = iceberg.commit_table

        def fails(*_: Any) -> Any:
            raise ConnectionError("the network is gone")

        monkeypatch.setattr(iceberg, "commit_table", fails)
        clock.pass_seconds(10)
        pipeline.run_cycle()
        before = set(made.data_files("orders"))
        assert len(before) == 2
        if is_removed:
            remove_orphans(made.table("orders"), timedelta())
        monkeypatch.setattr(iceberg, "commit_table", works)
        clock.pass_seconds(60 if is_removed else 100_000)
        pipeline.run_cycle()
        let_side_lane_end()
        made.require_each_once("orders", 2)
        assert set(made.data_files("orders")) - before


def test_rows_that_a_catalog_refuses_can_be_skipped(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = lake_site.pipeline()
    lake_site.send("orders", rows(0))
    assert pipeline.drain(30)
    lake_site.send("orders", rows(1))
    iceberg = lake_site.catalog.iceberg
    works = iceberg.commit_table

    def refuses(table: Table, requirements: Any, updates: Any) -> Any:
        added = [each.snapshot for each in updates if hasattr(each, "snapshot")]
        if table.name()[-1] == "orders" and any(each.summary["added-records"] for each in added):
            raise BadRequestError("this table does not take such rows")
        return works(table, requirements, updates)

    monkeypatch.setattr(iceberg, "commit_table", refuses)
    assert not pipeline.drain(0.5)
    assert len(lake_site.data_files("orders")) == 2
    topic = lake_site.intake.topics.topic(TableName.parse("orders"))
    lake_site.state.request_skip(topic.id, 0, 2)
    assert pipeline.drain(30)
    assert lake_site.rows("orders") == rows(0)
    assert lake_site.offsets("orders__dead_letters") == [1]


def test_rows_that_a_catalog_refused_are_written_again_when_the_columns_have_changed(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = lake_site.pipeline()
    lake_site.send("orders", rows(0))
    assert pipeline.drain(30)
    lake_site.send("orders", [{"id": 1, "bad": "x"}])
    iceberg = lake_site.catalog.iceberg
    works = iceberg.commit_table

    def refuses(table: Table, requirements: Any, updates: Any) -> Any:
        added = [each.schema_ for each in updates if hasattr(each, "schema_")]
        if any("bad" in each.column_names for each in added):
            raise BadRequestError("this table takes no such column")
        return works(table, requirements, updates)

    monkeypatch.setattr(iceberg, "commit_table", refuses)
    assert not pipeline.drain(0.5)
    change = TopicChange(drop_columns=["bad"], on_unknown_column="ignore")
    lake_site.intake.alter_topic(TableName.parse("orders"), change)
    assert pipeline.drain(30)
    lake_site.require_each_once("orders", 2)


@pytest.mark.parametrize(
    ("target", "row_bytes", "batch_rows", "batches", "same_share", "files"),
    [
        (4 << 20, 50, 2_000, 280, 0.0, 8),
        (4 << 20, 50, 2_000, 280, 0.6, 3),
        (4 << 20, 50 * 1024, 2, 280, 0.0, 8),
        (2 << 20, 200, 5_500, 5, 0.0, 3),  # frames of half of a file each
        (2 << 20, 200, 4_500, 12, 0.0, 6),
        (2 << 20, 200, 500, 242, 0.9, 1),  # near the target, and more by what a sample tells
    ],
)
def test_a_backlog_becomes_files_of_the_tables_target_size(
    make_settings: MakeSettings,
    *,
    target: int,
    row_bytes: int,
    batch_rows: int,
    batches: int,
    same_share: float,
    files: int,
) -> None:
    with site(make_settings(**AT_ONCE, spark__master="local[2]")) as made:
        made.create(
            "blobs",
            schema={"id": "long", "blob": "binary"},
            properties={"write.target-file-size-bytes": str(target)},
        )
        chance = Random(7)
        same = bytes(int(row_bytes * same_share))  # which takes no room in a file
        for number in range(batches):
            blobs = [same + chance.randbytes(row_bytes - 8 - len(same)) for _ in range(batch_rows)]
            made.send("blobs", pa.record_batch({"id": [number] * batch_rows, "blob": blobs}))
        assert made.pipeline().drain(60)
        sizes = sorted(
            task.file.file_size_in_bytes / target
            for task in made.table("blobs").scan().plan_files()
        )
        made.require_each_once("blobs", batch_rows * batches)
    assert all(0.5 <= size <= 1 for size in sizes), sizes
    assert len(sizes) == files


def test_a_sample_is_followed_by_its_rows_at_once(make_settings: MakeSettings) -> None:
    with site(make_settings(**AT_ONCE, pipeline__cycle_interval_ms=600_000)) as made:
        made.create(
            "blobs",
            schema={"blob": "binary"},
            properties={"write.target-file-size-bytes": str(1 << 20)},
        )
        steps: list[str] = []
        pipeline = made.pipeline(reach=steps.append)
        pipeline.run_cycle()  # in which it reads how far the table is
        for _ in range(3):
            made.send("blobs", pa.record_batch({"blob": [bytes(1 << 20)]}))
        until = threading.Event()
        thread = threading.Thread(target=pipeline.run, args=(until,))
        thread.start()
        deadline = time.monotonic() + 20
        while made.committed("blobs") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        until.set()
        thread.join()
        made.require_each_once("blobs", 3)
        assert steps.count("written") == 2, "a sample, and its rows"


def test_spark_that_fails_is_told_and_the_rows_wait(lake_site: Site) -> None:
    lake_site.send("orders", rows(1))
    lost = ["the job", "and another, without rows"]

    def run(session: object, pieces: Any, *, tasks_max: int) -> Any:
        if lost and lost.pop():
            raise Unavailable("the job was lost")
        return run_here(session, pieces, tasks_max=tasks_max)

    pipeline = lake_site.pipeline(run_pieces=run)
    pipeline.run_cycle()  # in which it reads how far the table is
    with pytest.raises(Unavailable):
        pipeline.run_cycle()
    assert pipeline.drain(30)
    lake_site.require_each_once("orders", 1)


def test_running_until_told_to_stop(lake_site: Site) -> None:
    stop = threading.Event()
    pipeline = lake_site.pipeline()
    thread = threading.Thread(target=pipeline.run, args=(stop,))
    thread.start()
    lake_site.send("orders", rows(1, 2))
    lake_site.intake.flush(TableName.parse("orders"), 30)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    lake_site.require_each_once("orders", 2)


def test_the_last_commit_is_known_to_the_next_driver(lake_site: Site) -> None:
    lake_site.send("orders", rows(1, 2))
    assert lake_site.pipeline().drain(30)
    before = progress_of(lake_site.state)[0].committed_at
    assert before is not None
    lake_site.state.pause_pipeline()  # it does not even look at the table
    lake_site.pipeline().run_cycle()
    assert progress_of(lake_site.state)[0].committed_at == before


def test_a_commit_that_nobody_was_told_of_is_the_last_one_all_the_same(lake_site: Site) -> None:
    lake_site.send("orders", rows(1, 2))
    assert lake_site.pipeline().drain(30)
    lake_site.send("orders", rows(3))
    lake_site.run_until_crash("committed")
    lake_site.pipeline().run_cycle()
    last = lake_site.table("orders").current_snapshot()
    assert last is not None
    assert progress_of(lake_site.state)[0].committed_at == datetime.fromtimestamp(
        last.timestamp_ms / 1000, UTC
    )
