"""A table that a topic feeds, changed by people: each change follows its rule, and verify agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from calve.changes import delete_rows, rewrite
from calve.errors import Conflict, Corruption, InvalidRequest, NotFound
from calve.lake import Lake
from calve.maintenance.verification import PartitionReport
from calve.manager import IcebergManager
from calve.model import TableName
from calve.tables import recording
from calve.tables.catalog import LakeCatalog
from calve.tables.column_memory import ColumnMemory
from calve.tables.commit import TableCommit
from calve.tables.evolution import AddColumn, DropColumn, RenameColumn
from calve.tables.positions import Position, committed_position
from calve.tables.removals import Removals
from calve.tables.staging import Edit
from calve.wal import Log, LogOptions, Stream
from tests.fakes.defects import begin_anew
from tests.fakes.delete_files import delete_equal
from tests.fakes.lying_catalog import lying
from tests.fakes.oracle import rows as log_rows
from tests.fakes.topic_table import feed, make_topic_table, register_topic


@pytest.fixture
def manager(lake: Lake) -> IcebergManager:
    make_topic_table(lake.catalog)
    register_topic(lake.settings)
    feed(lake.catalog, range(100))
    feed(lake.catalog, range(100, 200))
    return lake.tables


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    return lake.catalog


def report(manager: IcebergManager, partition: int = 0) -> PartitionReport:
    found = manager.verify_topic("t")
    assert found.is_sound, found
    return next(each for each in found.partitions if each.partition == partition)


def removed(catalog: LakeCatalog) -> str:
    return str(Removals.parse(catalog.load_table("t").properties).ranges(0))


def position(catalog: LakeCatalog) -> Position:
    found = committed_position(catalog.load_table("t"), 0)
    assert found is not None
    return found


def offsets(manager: IcebergManager, where: str | None = None) -> list[int | None]:
    found = manager.query_table("t", where, ["_calve_offset"]).to_arrow()
    return sorted(found.column(0).to_pylist(), key=lambda each: (each is None, each))


def test_inserts_by_hand_are_refused_with_the_way_to_produce(manager: IcebergManager) -> None:
    changes: list[Callable[[], object]] = [
        lambda: manager.insert_data("t", [{"id": 1}]),
        lambda: manager.upsert_data("t", [{"id": 1}], ["id"]),
    ]
    for change in changes:
        with pytest.raises(InvalidRequest, match="topic t feeds the table") as caught:
            change()
        assert "calve produce" in (caught.value.hint or "")
    assert len(offsets(manager)) == 200


def test_a_topic_that_is_deleted_is_not_said_to_feed_its_table(
    manager: IcebergManager, lake: Lake
) -> None:
    lake.intake.delete_topic(TableName.parse("t"))
    refused: list[Callable[..., object]] = [
        lambda **options: manager.insert_data("t", [{"id": 1}], **options),
        lambda **options: manager.upsert_data("t", [{"id": 1}], ["id"], **options),
        lambda **options: manager.rename_table("t", "u", **options),
        lambda **options: manager.drop_table("u", **options),
    ]
    for change in refused:
        with pytest.raises(InvalidRequest, match="topic t, which is deleted, has fed") as caught:
            change()
        assert "--force (force=True) does it" in (caught.value.hint or "")
        assert "delete or alter" not in (caught.value.hint or "")
        change(force=True)
    assert "t" not in manager.list_tables()


@pytest.mark.parametrize("change", ["insert", "upsert"])
def test_a_table_that_a_topic_comes_to_feed_meanwhile_takes_no_rows_by_hand(
    lake: Lake, change: str
) -> None:
    lake.tables.create_table("t", {"id": "long"})

    def is_first(commit: Callable[[], object]) -> object:
        fed = Edit(properties={"calve.topic": "default.default.t"})
        TableCommit(lake.catalog.load_table("t")).attempt(fed)
        return commit()

    by_hand: dict[str, Callable[[], object]] = {
        "insert": lambda: lake.tables.insert_data("t", [{"id": 1}]),
        "upsert": lambda: lake.tables.upsert_data("t", [{"id": 1}], ["id"]),
    }
    with lying(lake.catalog, is_first), pytest.raises(InvalidRequest, match="feeds the table"):
        by_hand[change]()
    assert not len(lake.tables.query_table("t"))
    assert not list(Path(lake.catalog.load_table("t").location()[7:]).rglob("*.parquet"))


def test_forced_inserts_have_no_offset(manager: IcebergManager) -> None:
    manager.insert_data("t", [{"id": 1_000}, {"id": 1_001}], force=True)
    assert offsets(manager, "id >= 1000") == [None, None]
    assert manager.verify_topic("t").unnumbered_rows == 2
    with pytest.raises(InvalidRequest, match="Calve's own"):
        manager.insert_data("t", [{"id": 5, "_calve_offset": 7}], force=True)


def test_a_forced_upsert_keeps_the_offsets_of_rows_that_are_there(manager: IcebergManager) -> None:
    change = manager.upsert_data("t", [{"id": 5, "name": "x"}, {"id": 999}], ["id"], force=True)
    assert (change.updated_rows, change.inserted_rows) == (1, 1)
    assert offsets(manager, "name = 'x'") == [5]
    assert (
        manager.upsert_data("t", [{"id": 5, "name": "x"}], ["id"], force=True).snapshot_id is None
    )
    found = manager.verify_topic("t")
    assert (found.is_sound, found.unnumbered_rows) == (True, 1)
    assert report(manager).removed == ()


def test_an_update_keeps_offsets_and_cannot_change_them(manager: IcebergManager) -> None:
    manager.update_data("t", {"name": "new"}, "id < 150")
    assert offsets(manager) == list(range(200))
    assert report(manager).removed == ()
    with pytest.raises(InvalidRequest, match="Calve's own"):
        manager.update_data("t", {"_calve_offset": 3}, "id = 1")


def test_a_delete_records_the_offsets_in_the_same_commit(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    first = manager.delete_data("t", "id < 10 or id = 150")
    second = manager.delete_data("t", "id = 10")
    assert removed(catalog) == "0-11,150-151"
    table = catalog.load_table("t")
    summary = table.snapshot_by_id(first.snapshot_id or 0).summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary.additional_properties["calve.removed.0"] == "0-10,150-151"
    found = report(manager)
    assert {each.snapshot_ids for each in found.removed_by} == {
        (first.snapshot_id,),
        (second.snapshot_id,),
    }
    assert recording.record_removals(table) is None
    manager.expire_snapshots("t", 0)
    assert ",".join(map(str, report(manager).removed)) == "0-11,150-151"


def test_a_delete_that_meets_another_records_both(
    manager: IcebergManager, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(rewrite, "with_record", recording.with_record)
        edit = recording.with_record(*given, **named)
        delete_rows(catalog, "t", "id = 3")
        return edit

    monkeypatch.setattr(rewrite, "with_record", once)
    delete_rows(catalog, "t", "id = 7")
    assert removed(catalog) == "3-4,7-8"
    assert report(manager).rows == 198


def test_rows_without_an_offset_are_deleted_without_a_record(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    manager.insert_data("t", [{"id": 1_000}], force=True)
    manager.delete_data("t", "id = 1000")
    assert removed(catalog) == ""


def test_a_delete_on_a_branch_is_recorded_when_it_is_published(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    manager.create_branch("t", "b")
    manager.delete_data("t", "id < 10", branch="b")
    assert removed(catalog) == ""
    assert report(manager).rows == 200
    manager.publish_branch("t", "b")
    assert removed(catalog) == "0-10"
    manager.expire_snapshots("t", 0)
    assert report(manager).rows == 190


def test_a_record_that_was_cut_short_is_made_up_for_before_snapshots_expire(
    manager: IcebergManager, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.create_branch("t", "b")
    deleted = manager.delete_data("t", "id < 10", branch="b")
    with monkeypatch.context() as patch:
        patch.setattr(recording, "record_removals", lambda *_: None)
        manager.publish_branch("t", "b")
    (by,) = report(manager).removed_by
    assert by.snapshot_ids == (deleted.snapshot_id,)
    manager.expire_snapshots("t", 0)
    assert removed(catalog) == "0-10"
    assert report(manager).rows == 190


def test_deletes_that_only_spark_reads_do_not_keep_snapshots_from_expiring(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    file = next(iter(catalog.load_table("t").scan(row_filter="id = 150").plan_files())).file
    delete_equal(catalog.load_table("t"), "id", [50])
    TableCommit(catalog.load_table("t")).attempt(Edit(removed=[file]))
    assert recording.record_removals(catalog.load_table("t")) is None
    assert manager.expire_snapshots("t", 0).snapshot_ids


def test_a_rollback_keeps_the_committed_offset_and_records_the_rows(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    first = manager.list_snapshots("t")[0].id
    now = manager.rollback("t", first)
    assert (now.parent_id, now.total_rows, now.is_current) == (first, 100, True)
    assert (position(catalog).offset, position(catalog).snapshot_id) == (200, now.id)
    assert removed(catalog) == "100-200"
    assert report(manager).rows == 100
    feed(catalog, range(200, 250))
    assert report(manager).rows == 150
    assert manager.rollback("t", manager.get_current_snapshot("t").id).is_current  # type: ignore[union-attr]
    assert report(manager).rows == 150


def test_a_rollback_to_what_expires_meanwhile_is_refused(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    """Its files are gone: a snapshot on top of it could not be read."""
    wanted = manager.get_current_snapshot("t")
    assert wanted is not None
    manager.delete_data("t", "_calve_offset < 50 OR _calve_offset >= 150")

    def expires(commit: Callable[[], object]) -> object:
        manager.expire_snapshots("t", older_than_days=0)
        return commit()

    honest = [lambda commit: commit()] * 3
    with (
        lying(catalog, expires, *honest),
        pytest.raises(NotFound, match=f"no snapshot {wanted.id}"),
    ):
        manager.rollback("t", wanted.id)
    assert offsets(manager) == list(range(50, 150))


def test_what_a_rollback_brings_back_is_no_longer_removed(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    before = manager.get_current_snapshot("t")
    assert before is not None
    manager.delete_data("t", "id < 50")
    feed(catalog, range(200, 250))
    manager.rollback("t", before.id)
    assert removed(catalog) == "200-250"
    assert report(manager).rows == 200


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "log", LogOptions(free_bytes_min=0)) as log:
        yield log


def fed_from(log: Log, catalog: LakeCatalog) -> Stream:
    """A topic with a log of ten times ten rows, of which eighty are in the table."""
    make_topic_table(catalog, "logged")
    stream = log.create_stream(TableName.parse("logged"))
    for start in range(0, 100, 10):
        log.append(stream, log_rows(start, 10))
    with log.reader() as reader:
        for start in range(0, 80, 20):
            total = reader.content_sum(stream, start + 20)
            assert total is not None
            feed(
                catalog,
                range(start, start + 20),
                name="logged",
                log=stream.id,
                checksum=f"{total:016x}",
            )
    return stream


def test_a_replay_sets_the_committed_offset_back(lake: Lake, log: Log, tmp_path: Path) -> None:
    manager, catalog = lake.tables, lake.catalog
    stream = fed_from(log, catalog)
    manager.delete_data("logged", "id = 5 or id = 70", flush=False)
    second = manager.list_snapshots("logged")[1].id
    manager.rollback("logged", second, replay=True, log=log.directory)
    table = catalog.load_table("logged")
    found = committed_position(table, 0)
    assert found is not None
    with log.reader() as reader:
        assert (found.offset, found.checksum) == (40, f"{reader.content_sum(stream, 40):016x}")
    assert Removals.parse(table.properties).entries() == {}
    assert manager.verify_topic("logged", log=log.directory).is_sound
    feed(catalog, range(40, 100), name="logged", log=stream.id)
    again = manager.verify_topic("logged", log=log.directory)
    assert (again.is_sound, again.rows) == (True, 100)


def test_a_replay_is_refused_when_the_log_has_let_go_of_the_rows(lake: Lake, log: Log) -> None:
    manager, catalog = lake.tables, lake.catalog
    fed_from(log, catalog)
    first = manager.list_snapshots("logged")[0].id
    with Log(log.directory.parent / "other", LogOptions(free_bytes_min=0)) as other:
        other.create_stream(TableName.parse("logged"), first_offset=30)
        with pytest.raises(Conflict):
            manager.rollback("logged", first, replay=True, log=other.directory)
    with pytest.raises(NotFound):
        manager.rollback("logged", first, replay=True)
    manager.create_table("plain", {"id": "long"})
    with pytest.raises(InvalidRequest, match="nothing to replay"):
        manager.rollback("plain", 1, replay=True)
    assert report_of(manager, "logged").rows == 80


def report_of(manager: IcebergManager, name: str) -> PartitionReport:
    found = manager.verify_topic(name)
    assert found.is_sound
    return found.partitions[0]


def test_a_table_that_somebody_else_set_back_is_told_of_and_mended(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    first = manager.list_snapshots("t")[0].id
    table = catalog.load_table("t")
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    found = manager.verify_topic("t")
    assert not found.is_sound
    assert "was set back or edited" in found.partitions[0].problems[0]
    manager.rollback("t", first)
    assert removed(catalog) == "100-200"
    assert report(manager).rows == 100


def replace(catalog: LakeCatalog, kept: int) -> int:
    """CREATE OR REPLACE TABLE … AS SELECT, with some of the table's files."""
    table = catalog.load_table("t")
    files = sorted((task.file for task in table.scan().plan_files()), key=lambda f: f.file_path)
    begin_anew(table)
    return TableCommit(catalog.load_table("t")).append(Edit(added=files[:kept])).snapshot_id


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_table_that_somebody_replaced_is_told_of_and_mended(
    manager: IcebergManager, catalog: LakeCatalog, kept: int
) -> None:
    now = replace(catalog, kept)
    assert "was set back or edited" in manager.verify_topic("t").partitions[0].problems[0]
    with pytest.raises(Corruption):
        feed(catalog, range(200, 210))
    manager.rollback("t", now)
    assert report(manager).rows == 100 * kept
    feed(catalog, range(200, 210))
    assert report(manager).rows == 100 * kept + 10


def test_a_table_that_somebody_replaced_can_be_brought_back(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    before = manager.get_current_snapshot("t")
    assert before is not None
    begin_anew(catalog.load_table("t"))
    manager.rollback("t", before.id, force=True)
    feed(catalog, range(200, 210))
    assert report(manager).rows == 210


def test_dropping_and_renaming_the_table_is_refused(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    for change in (
        lambda: manager.drop_table("t"),
        lambda: manager.drop_table("t", purge=True),
        lambda: manager.rename_table("t", "u"),
    ):
        with pytest.raises(InvalidRequest, match="topic t feeds the table") as caught:
            change()
        assert "alter the topic" in (caught.value.hint or "")
    manager.rename_table("t", "u", force=True)
    manager.drop_table("u", force=True)
    assert manager.list_tables() == []


def memory(catalog: LakeCatalog) -> ColumnMemory:
    return ColumnMemory.parse(catalog.load_table("t").properties)


def test_dropped_and_renamed_columns_are_remembered_with_a_snapshot(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    before = catalog.load_table("t").metadata.current_snapshot_id
    manager.evolve_schema("t", RenameColumn("name", "full_name"), AddColumn("email", "string"))
    after = catalog.load_table("t")
    assert after.metadata.current_snapshot_id != before
    assert [field.name for field in after.schema().fields][3:] == ["id", "full_name", "email"]
    assert memory(catalog).place(("name",)) == ("full_name",)
    manager.drop_column("t", "full_name")
    assert memory(catalog).place(("name",)) is None
    assert memory(catalog).place(("full_name",)) is None
    assert memory(catalog).place(("email",)) == ("email",)
    manager.add_column("t", "name", "string")
    assert memory(catalog).place(("name",)) == ("name",)
    assert report(manager).rows == 200
    assert position(catalog).offset == 200


def test_new_columns_and_partitioning_need_no_snapshot(
    manager: IcebergManager, catalog: LakeCatalog
) -> None:
    before = catalog.load_table("t").metadata.current_snapshot_id
    manager.add_column("t", "email", "string")
    manager.alter_partition("t", add=["bucket(4, id)"])
    assert catalog.load_table("t").metadata.current_snapshot_id == before
    assert report(manager).rows == 200


def test_calves_own_columns_stay(manager: IcebergManager) -> None:
    for change in (DropColumn("_calve_offset"), RenameColumn("_calve_offset", "x")):
        with pytest.raises(InvalidRequest, match="Calve's own"):
            manager.evolve_schema("t", change)


def test_a_delete_of_every_other_row_is_recorded_in_number(lake: Lake) -> None:
    make_topic_table(lake.catalog, "many")
    feed(lake.catalog, range(10_000), name="many")
    lake.tables.delete_data("many", "id % 2 = 1 and id > 2000", flush=False)
    found = lake.tables.verify_topic("many")
    assert found.is_sound
    assert sum(each.count for each in found.partitions[0].removed) == 4_000
    text = lake.catalog.load_table("many").properties["calve.removed.0"]
    assert len(text.split(",")) == 1_000
