"""Dead letters that a crash has left of a partition whose log is not there afterwards.

The topic's table names their files, so that no log is needed to bring them in.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from calve.ingest import Intake
from calve.maintenance.verify import verify_topic
from calve.manager import IcebergManager
from calve.model import TableName
from calve.topics import TopicSpec
from calve.wal import Rejected
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, let_side_lane_end, site

ORDERS = TableName.parse("orders")
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}


@pytest.fixture
def left_alone(make_settings: MakeSettings, tmp_path: Path) -> Iterator[Site]:
    """Partition 1 has a row in the table and one that was set aside, and its log is gone."""
    there = tmp_path / "there"
    with site(make_settings(**AT_ONCE, pipeline__logs=str(there))) as made:
        made.create("orders", schema={"id": "long"}, on_unknown_column="dead_letter")
        made.send("orders", [{"id": 1}])
        assert made.pipeline().drain(30)
        with Intake(make_settings(**AT_ONCE, wal__path=str(there), ingest__partition=1)) as other:
            bad = Rejected(b'{"id": 2, "x": 1}', "application/x-ndjson", "no column x")
            other.submit(ORDERS, [pa.record_batch({"id": [2]}), [bad]]).wait()
            made.run_until_crash("committed")
        shutil.rmtree(there)
        assert made.offsets("orders__dead_letters", 1) == []
        yield made
        let_side_lane_end()


def bind_again(made: Site) -> None:
    made.intake.delete_topic(ORDERS)
    made.intake.create_topic(ORDERS, TopicSpec(bind_table=True))


def require_settled(made: Site) -> None:
    assert made.offsets("orders__dead_letters", 1) == [1]
    found = verify_topic(
        made.catalog, ORDERS, own_log=made.settings.wal.path, settings=made.settings
    )
    assert found.pending_dead_letters == 0
    assert not any(each.missing for each in found.partitions)
    with IcebergManager(made.settings) as manager:
        manager.drop_table("orders__dead_letters", force=True)


@pytest.mark.parametrize("has_rows", [True, False])
def test_they_come_in_with_the_next_pipeline(left_alone: Site, *, has_rows: bool) -> None:
    if has_rows:
        left_alone.send("orders", [{"id": 3}])
    left_alone.pipeline().drain(1)
    require_settled(left_alone)


def test_they_come_in_when_the_topic_is_bound_again_by_another_partition(left_alone: Site) -> None:
    bind_again(left_alone)
    require_settled(left_alone)
    left_alone.send("orders", [{"id": 3}])
    assert left_alone.pipeline().drain(30)


def test_they_do_not_come_in_where_their_range_was_taken_out_of_the_table(left_alone: Site) -> None:
    """Their partition then stops with an error when its log is back; the others go on."""
    table = left_alone.table("orders")
    earlier = table.metadata.snapshots[0].snapshot_id
    assert table.metadata.snapshots[1].parent_snapshot_id == earlier
    table.manage_snapshots().rollback_to_snapshot(earlier).commit()
    left_alone.send("orders", [{"id": 3}])
    left_alone.pipeline().drain(1)
    assert left_alone.rows("orders") == [{"id": 1}, {"id": 3}]
    bind_again(left_alone)
    assert left_alone.offsets("orders__dead_letters", 1) == []
