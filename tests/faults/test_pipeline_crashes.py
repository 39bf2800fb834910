"""A pipeline that ends at any of its steps: whoever comes next goes on from what the tables say."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from calve.errors import Unavailable
from calve.manager import IcebergManager
from calve.model import TableName
from calve.pipeline import tables
from calve.pipeline.pipeline import Pipeline
from calve.pipeline.work import PieceDone
from calve.protocol import problem_of
from calve.tables.dead_letters import named_dead_letters
from calve.tables.orphans import remove_orphans
from calve.tables.topic_tables import create_topic_table
from calve.wal import Rejected
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Crash, Site, crash_at, run_here, site

STEPS = (
    "planned",
    "prepared",
    "written",
    "before commit",
    "committed",
    "dead letters committed",
    "published",
)
BAD = Rejected(b"{", "application/x-ndjson", "no JSON")


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    flags = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
    with site(make_settings(**flags, spark__master="local[3]")) as made:
        yield made


def send(made: Site, *columns: str) -> int:
    """Rows, and one that was rejected."""
    rows = pa.RecordBatch.from_pylist([dict.fromkeys(("id", *columns), 1)] * 5)
    name = TableName.parse("orders")
    return made.intake.submit(name, [rows, [BAD], rows]).wait().end or 0


def run(pipeline: Pipeline) -> None:
    for _ in range(10):
        pipeline.run_cycle()


def crash(made: Site, reach: Callable[[str], None]) -> None:
    pipeline = made.pipeline(reach=reach)
    with pytest.raises(Crash):
        run(pipeline)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_first", [True, False])
def test_after_an_end_at_any_step_every_offset_is_in_one_table_once(
    lake_site: Site, step: str, *, is_first: bool
) -> None:
    end = 0
    if not is_first:
        end = send(lake_site)
        assert lake_site.pipeline().drain(30)
    end = send(lake_site, "new")
    crash(lake_site, crash_at(step))
    end = send(lake_site, "newer")
    assert lake_site.pipeline().drain(30)
    lake_site.require_each_once("orders", end)
    assert lake_site.committed("orders") == end
    for each in ("orders", "orders__dead_letters"):
        remove_orphans(lake_site.table(each), timedelta())
    lake_site.require_each_once("orders", end)
    with IcebergManager(lake_site.settings) as manager:
        assert manager.verify_topic("orders", log=lake_site.intake.log.directory).is_sound


def test_after_an_end_between_the_two_tables_the_dead_letters_come_in_before_the_next_rows(
    lake_site: Site,
) -> None:
    send(lake_site)
    crash(lake_site, crash_at("committed"))
    named = named_dead_letters(lake_site.table("orders").properties, 0)
    assert named is not None
    letters = lake_site.table("orders__dead_letters")
    assert letters.scan().to_arrow().num_rows == 0
    end = send(lake_site)
    crash(lake_site, crash_at("prepared"))
    assert lake_site.offsets("orders__dead_letters") == [10]
    assert lake_site.pipeline().drain(30)
    lake_site.require_each_once("orders", end)


def test_a_row_is_in_one_table_also_when_the_columns_change_between_two_attempts(
    lake_site: Site,
) -> None:
    """What was a bad row at the first attempt is a good one at the second."""
    lake_site.create("t", schema={"id": "long", "n": "int"})
    lake_site.send("t", pa.record_batch({"id": [0], "n": pa.array([1], pa.int32())}))
    assert lake_site.pipeline().drain(30)
    lake_site.send("t", [{"id": 1}, {"id": 2}])
    topic = lake_site.intake.topics.topic(TableName.parse("t"))
    lake_site.state.request_skip(topic.id, 0, 3)
    crash(lake_site, crash_at("before commit"))
    lake_site.state.resume_pipeline()
    log_id = topic.partitions[0].log_id
    # The order to skip is gone: as if it had been taken back.
    lake_site.state.publish_committed(topic.id, 0, log_id=log_id, offset=3)
    lake_site.state.reset_committed(topic.id, 0, log_id=log_id, offset=1)
    assert lake_site.state.pipeline_orders().skips == {}
    assert lake_site.pipeline().drain(30)
    lake_site.require_each_once("t", 3)
    assert lake_site.offsets("t") == [0, 1, 2]


def test_an_end_while_the_table_is_made_leaves_one_that_the_next_takes(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = send(lake_site)

    makes = create_topic_table

    def made_and_ended(*args: Any, **options: Any) -> Any:
        makes(*args, **options)
        raise Crash("table made")

    monkeypatch.setattr(tables, "create_topic_table", made_and_ended)
    crash(lake_site, lambda _: None)
    assert lake_site.table("orders").current_snapshot() is None
    monkeypatch.setattr(tables, "create_topic_table", makes)
    assert lake_site.pipeline().drain(30)
    lake_site.require_each_once("orders", end)


def test_files_of_an_end_after_writing_are_orphans_by_name(lake_site: Site) -> None:
    send(lake_site)
    assert lake_site.pipeline().drain(30)
    end = send(lake_site)
    crash(lake_site, crash_at("written"))
    assert lake_site.pipeline().drain(30)
    left = remove_orphans(lake_site.table("orders"), timedelta(), dry_run=True)
    names = [path.rpartition("/")[2] for path in left.files if path.endswith(".parquet")]
    assert len(names) == 1
    assert names[0].startswith("offsets-0-11-22-")
    lake_site.require_each_once("orders", end)


def test_a_piece_that_fails_keeps_the_rows_before_it_and_none_behind(lake_site: Site) -> None:

    problem = problem_of(Unavailable("the disk of this task is full"))
    tries = iter(range(2))

    def run_badly(session: object, pieces: Any, *, tasks_max: int) -> Any:
        done = run_here(session, pieces, tasks_max=tasks_max)
        if len(done) > 2 and next(tries, None) is not None:
            for file in pickle.loads(done[1].files):
                Path(file.file_path.removeprefix("file://")).unlink()
            done[1] = PieceDone(number=done[1].number, problem=problem)
        return done

    lake_site.create(
        "blobs",
        schema={"blob": "binary"},
        properties={"write.target-file-size-bytes": "300000"},
    )

    for _ in range(40):
        lake_site.send("blobs", pa.record_batch({"blob": [os.urandom(50_000)]}))
    assert lake_site.pipeline(run_pieces=run_badly).drain(60)
    lake_site.require_each_once("blobs", 40)
    assert next(tries, None) is None
    # Nothing of what was written behind the gap is left over.
    assert not remove_orphans(lake_site.table("blobs"), timedelta(), dry_run=True).files
