"""Spark changes a table that a topic feeds: by Calve's hand and by somebody else's."""

from __future__ import annotations

import pytest

from calve.changes import with_spark
from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.maintenance.verification import PartitionReport
from calve.model import TableName
from calve.tables.removals import Removals
from calve.topics import TopicSpec
from tests.fakes.topic_table import feed, make_topic_table, register_topic


def report(lake: Lake) -> PartitionReport:
    found = lake.tables.verify_topic("t")
    assert found.is_sound, found
    return found.partitions[0]


def recorded(lake: Lake) -> str:
    return str(Removals.parse(lake.catalog.load_table("t").properties).ranges(0))


def gone(found: PartitionReport) -> str:
    return ",".join(map(str, found.removed))


def make(lake: Lake, **properties: str) -> None:
    make_topic_table(lake.catalog, **properties)
    register_topic(lake.settings)
    for start in (0, 100, 200):
        feed(lake.catalog, range(start, start + 100))


def test_calves_changes_by_spark_follow_the_rules(
    spark_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(spark_lake)
    manager = spark_lake.tables
    deleted = manager.delete_data("t", "id < 10 or id = 150", engine="spark")
    assert deleted.deleted_rows == 11
    assert recorded(spark_lake) == "0-10,150-151"
    assert [each.snapshot_ids for each in report(spark_lake).removed_by] == [(deleted.snapshot_id,)]
    manager.update_data("t", {"name": "x"}, "id < 50", engine="spark")
    with pytest.raises(InvalidRequest, match="feeds the table"):
        manager.upsert_data("t", [{"id": 20, "name": "y"}], ["id"], engine="spark")
    rows = [{"id": 20, "name": "y"}, {"id": 1_000, "name": "z"}]
    manager.upsert_data("t", rows, ["id"], engine="spark", force=True)
    kept = manager.query_table("t", "name = 'y'", ["_calve_offset"]).to_arrow().column(0)
    assert kept.to_pylist() == [20]
    with monkeypatch.context() as patch:
        patch.setattr(with_spark, "record_removals", lambda *_: None)
        manager.delete_data("t", "id = 299", engine="spark")
    assert recorded(spark_lake) == "0-10,150-151"
    assert gone(report(spark_lake)) == "0-10,150-151,299-300"
    manager.expire_snapshots("t", 0)
    assert gone(report(spark_lake)) == recorded(spark_lake) == "0-10,150-151,299-300"


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_what_others_do_with_spark_is_told_from_a_defect(spark_lake: Lake, mode: str) -> None:
    modes = {f"write__{what}__mode": mode for what in ("delete", "update", "merge")}
    make(spark_lake, **modes)
    spark = spark_lake.spark()
    spark.sql("DELETE FROM default.default.t WHERE id % 100 = 5")
    spark.sql("UPDATE default.default.t SET name = 'u' WHERE id < 50")
    spark.sql(
        "MERGE INTO default.default.t t USING (SELECT 7L AS id) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE"
    )
    spark.sql("INSERT INTO default.default.t (id, name) VALUES (9000, 'by hand')")
    spark.sql(
        "CALL system.rewrite_data_files(table => 'default.default.t', "
        "options => map('rewrite-all', 'true'))"
    )
    feed(spark_lake.catalog, range(300, 320))
    found = report(spark_lake)
    assert gone(found) == "5-6,7-8,105-106,205-206"
    assert len(found.removed_by) == 2
    assert spark_lake.tables.verify_topic("t").unnumbered_rows == 1
    spark_lake.tables.expire_snapshots("t", 0)
    assert gone(report(spark_lake)) == recorded(spark_lake) == "5-6,7-8,105-106,205-206"


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_what_others_do_with_spark_outlives_their_snapshots(spark_lake: Lake, mode: str) -> None:
    modes = {f"write__{what}__mode": mode for what in ("delete", "update", "merge")}
    make(spark_lake, calve__snapshots__keep="10", **modes)
    spark = spark_lake.spark()
    spark.sql("DELETE FROM default.default.t WHERE id % 100 = 5")
    feed(spark_lake.catalog, range(300, 310))
    spark.sql(
        "MERGE INTO default.default.t t USING (SELECT 7L AS id) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE"
    )
    spark.sql("DELETE FROM default.default.t WHERE id >= 200 AND id < 300")
    for offset in range(310, 325):
        feed(spark_lake.catalog, [offset])
    assert gone(report(spark_lake)) == recorded(spark_lake) == "5-6,7-8,105-106,200-300"
    assert len(spark_lake.tables.list_snapshots("t")) == 10


def test_deletion_vectors_are_honoured(spark_lake: Lake) -> None:
    make(spark_lake, write__delete__mode="merge-on-read")
    spark = spark_lake.spark()
    spark.sql("ALTER TABLE default.default.t SET TBLPROPERTIES ('format-version' = '3')")
    spark.sql("DELETE FROM default.default.t WHERE id = 40 OR id = 250")
    tasks = spark_lake.catalog.load_table("t").scan().plan_files()
    forms = {delete.file_format for task in tasks for delete in task.delete_files}
    assert forms == {"PUFFIN"}
    assert gone(report(spark_lake)) == "40-41,250-251"
    spark_lake.tables.expire_snapshots("t", 3)


def test_a_table_that_only_spark_can_write_is_given_to_no_topic(spark_lake: Lake) -> None:
    name = TableName.parse("newer")
    spark_lake.spark().sql(
        "CREATE TABLE newer (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3')"
    )
    with pytest.raises(InvalidRequest, match="the table has format 3"):
        spark_lake.intake.create_topic(name, TopicSpec(bind_table=True))
    assert spark_lake.intake.topics.find(name) is None
