"""The whole pipeline on Spark, and tables that somebody changes while rows are under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from calve.model import TableName
from calve.pipeline.task import PieceTask
from calve.wal import Rejected
from tests.integration.spark_site import SparkSite


def batch(start: int, count: int = 10, **more: Any) -> pa.RecordBatch:
    ids = list(range(start, start + count))
    columns = {name: [value] * count for name, value in more.items()}
    return pa.record_batch({"id": ids, "name": [f"n{each}" for each in ids], **columns})


def test_rows_of_many_topics_come_to_their_tables_in_one_job(both: SparkSite) -> None:
    bad = Rejected(b"{", "application/x-ndjson", "no JSON")
    ends = {}
    for number in range(20):
        topic = f"t{number}"
        both.site.send(topic, batch(0))
        pending = both.site.intake.submit(TableName.parse(topic), [batch(10), [bad]])
        ends[topic] = pending.wait().end or 0
    assert both.pipeline().drain(120)
    for topic, end in ends.items():
        both.site.require_each_once(topic, end)
    assert both.site.offsets("t3__dead_letters") == [20]
    both.site.send("t3", batch(20, extra={"deep": [1]}))
    assert both.pipeline().drain(120)
    assert both.site.rows("t3")[-1] == {"id": 29, "name": "n29", "extra": {"deep": [1]}}


def add_column(both: SparkSite) -> None:
    both.sql("ALTER TABLE default.default.t ADD COLUMN later string")


def add_the_same_column(both: SparkSite) -> None:
    both.sql("ALTER TABLE default.default.t ADD COLUMN new string")


def drop_column(both: SparkSite) -> None:
    both.sql("ALTER TABLE default.default.t DROP COLUMN name")


def rename_column(both: SparkSite) -> None:
    both.sql("ALTER TABLE default.default.t RENAME COLUMN name TO label")


def change_partitioning(both: SparkSite) -> None:
    both.sql("ALTER TABLE default.default.t ADD PARTITION FIELD bucket(4, id)")


def change_order(both: SparkSite) -> None:
    both.sql("ALTER TABLE default.default.t WRITE ORDERED BY name")


def compact(both: SparkSite) -> None:
    both.sql(
        "CALL system.rewrite_data_files(table => 'default.default.t', "
        "options => map('rewrite-all', 'true'))"
    )


def delete_rows(both: SparkSite) -> None:
    both.lake.tables.delete_data("t", "id = 100000", flush=False)
    both.sql("INSERT INTO default.default.t (id, name) VALUES (-1, 'by hand')")
    both.sql("DELETE FROM default.default.t WHERE id = -1")


def roll_back(both: SparkSite) -> None:
    both.lake.tables.rollback("t", both.lake.tables.list_snapshots("t")[0].id)


@pytest.mark.parametrize(
    "change",
    [
        add_column,
        add_the_same_column,
        drop_column,
        rename_column,
        change_partitioning,
        change_order,
        compact,
        delete_rows,
        roll_back,
    ],
)
@pytest.mark.parametrize("step", ["prepared", "written"])
def test_a_table_may_change_while_rows_are_under_way(
    both: SparkSite, change: Callable[[SparkSite], None], step: str
) -> None:
    pipeline = both.pipeline()
    for start in (0, 10):
        both.site.send("t", batch(start))
        assert pipeline.drain(60)
    changes = [change]

    def reach(reached: str) -> None:
        if reached == step and changes:
            changes.pop()(both)

    both.site.send("t", batch(20, new="x"))
    assert both.pipeline(reach=reach).drain(60)
    assert not changes
    found = both.site.offsets("t")
    expected = list(range(30))
    if change is roll_back:
        # The rows of the snapshots that were taken back are gone on purpose.
        expected = [*range(10), *range(20, 30)]
    assert found == expected
    values = both.sql("SELECT new FROM default.default.t WHERE id >= 20")
    assert [row[0] for row in values] == ["x"] * 10
    if change in {drop_column, rename_column}:
        both.site.send("t", batch(30))
        assert both.pipeline().drain(60)
        renamed = {"label": "n35"} if change is rename_column else {}
        assert both.site.rows("t")[35] == {"id": 35, **renamed, "new": None}
    assert both.lake.tables.verify_topic("t", log=both.site.intake.log.directory).is_sound


@pytest.mark.parametrize(("change", "name"), [(drop_column, None), (rename_column, "label")])
def test_a_column_changed_outside_stays_so_after_its_schemas_are_gone(
    both: SparkSite, change: Callable[[SparkSite], None], name: str | None
) -> None:
    pipeline = both.pipeline()
    both.site.send("t", batch(0))
    assert pipeline.drain(60)
    change(both)
    both.site.send("t", batch(10))
    assert pipeline.drain(60)
    both.sql(
        "CALL system.expire_snapshots(table => 'default.default.t', retain_last => 1, "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', clean_expired_metadata => true)"
    )
    schemas = both.site.table("t").metadata.schemas
    assert not any(field.name == "name" for schema in schemas for field in schema.fields)
    both.site.send("t", batch(20))
    assert pipeline.drain(60)
    expected = [{"id": each, **({name: f"n{each}"} if name else {})} for each in range(30)]
    assert both.site.rows("t") == expected


def test_rows_that_kill_the_worker_stop_their_own_topic_alone(
    both: SparkSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deadly(PieceTask):
        """Pickled by value, so that workers need not find this file."""

        def __call__(self, numbers: Any) -> Any:
            import os

            if any(b"poison" in piece for task in self._pieces for piece in task):
                os.kill(os.getpid(), 9)
            return super().__call__(numbers)

    pipeline = both.pipeline()
    for topic in ("a", "poison", "b", "c"):
        both.site.send(topic, batch(0))
    pipeline.run_cycle()
    monkeypatch.setattr("calve.pipeline.job.PieceTask", Deadly)
    pipeline.run_cycle()
    for topic in ("a", "b", "c"):
        both.site.require_each_once(topic, 10)
    (failed,) = [each for each in both.site.state.progress().partitions.values() if each.error]
    assert "Python worker" in str(failed.error)
    assert not pipeline.drain(2), "the side lane has met it, too"
    monkeypatch.undo()
    assert pipeline.drain(60)
    both.site.require_each_once("poison", 10)
