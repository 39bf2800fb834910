"""Snapshots: listed, found by time, rolled back to, compared, and expired with their files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.types import LongType, StringType

from calve.errors import Conflict, InvalidRequest, NotFound
from calve.lake import Lake
from calve.tables.evolution import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    SchemaChange,
    WidenColumn,
    evolve_schema,
)
from calve.tables.expiry import expire_snapshots
from calve.tables.references import (
    create_branch,
    create_tag,
    delete_reference,
    list_references,
    publish_branch,
)
from calve.tables.snapshots import (
    current_snapshot,
    list_snapshots,
    parse_moment,
    plan_scan,
    rollback,
    snapshot_as_of,
    snapshot_by_id,
)

NUMBERS = pa.schema([("id", pa.int32()), ("name", pa.string())])
TAG, BRANCH = SnapshotRefType.TAG, SnapshotRefType.BRANCH
FUTURE = datetime(2999, 1, 1, tzinfo=UTC)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=NUMBERS)


@pytest.fixture
def table(lake: Lake) -> Table:
    return lake.catalog.create_table("numbers", NUMBERS)


def ids(table: Table, snapshot_id: int | None = None) -> list[int]:
    return sorted(table.scan(snapshot_id=snapshot_id).to_arrow()["id"].to_pylist())


def test_snapshots_are_listed_oldest_first_with_what_they_did(table: Table) -> None:
    assert list_snapshots(table) == []
    assert current_snapshot(table) is None
    table.append(rows(1, 2))
    table.delete("id == 1")
    first, second = list_snapshots(table)
    assert (first.operation, first.added_rows, first.parent_id, first.is_current) == (
        "append",
        2,
        None,
        False,
    )
    assert (second.deleted_rows, second.parent_id, second.total_rows) == (2, first.id, 1)
    assert second.refs == ("main",)
    assert current_snapshot(table) == second
    assert datetime.now(UTC) - second.timestamp < timedelta(minutes=5)
    with pytest.raises(NotFound, match="list-snapshots"):
        snapshot_by_id(table, 42)


def test_a_time_finds_what_was_current_then_also_across_a_rollback(table: Table) -> None:
    table.append(rows(1))
    table.append(rows(2))
    first, second = list_snapshots(table)
    rollback(table, first.id)
    table.append(rows(3))
    log = table.metadata.snapshot_log
    assert [entry.snapshot_id for entry in log][:3] == [first.id, second.id, first.id]
    at = [datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC) for entry in log]
    assert [snapshot_as_of(table, moment).id for moment in at] == [
        entry.snapshot_id for entry in log
    ]
    elsewhere = at[1].astimezone(timezone(timedelta(hours=5)))
    assert snapshot_as_of(table, elsewhere).id == second.id
    assert snapshot_as_of(table, at[1].replace(tzinfo=None)).id == second.id


def test_a_time_before_the_first_snapshot_names_it(table: Table) -> None:
    with pytest.raises(NotFound, match="no snapshot yet"):
        snapshot_as_of(table, FUTURE)
    table.append(rows(1))
    (first,) = list_snapshots(table)
    with pytest.raises(NotFound, match=rf"the table's first is {first.id}"):
        snapshot_as_of(table, datetime(2020, 1, 1, tzinfo=UTC))
    table.append(rows(2))
    expire_snapshots(table, FUTURE)
    with pytest.raises(NotFound, match="the oldest that is kept is"):
        snapshot_as_of(table, datetime(2020, 1, 1, tzinfo=UTC))


def test_a_time_that_utc_does_not_have_is_refused(table: Table) -> None:
    east = datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))
    with pytest.raises(InvalidRequest, match="not a time"):
        snapshot_as_of(table, east)


@pytest.mark.parametrize("text", ["yesterday", "", "2024-13-01", "10:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_moment(text)


def test_times_without_a_zone_are_utc() -> None:
    assert parse_moment("2024-01-01 10:00:00") == datetime(2024, 1, 1, 10, tzinfo=UTC)
    assert parse_moment("2024-01-01T10:00:00+02:00") == datetime(2024, 1, 1, 8, tzinfo=UTC)


def test_only_an_ancestor_is_rolled_back_to_unless_forced(table: Table) -> None:
    for number in (1, 2):
        table.append(rows(number))
    first, second = list_snapshots(table)
    rollback(table, first.id)
    assert ids(table) == [1]
    with pytest.raises(Conflict, match="--force"):
        rollback(table, second.id)
    assert ids(table) == [1]
    rollback(table, second.id, force=True)
    assert ids(table) == [1, 2]
    with pytest.raises(NotFound):
        rollback(table, 42, force=True)


def test_the_files_between_two_snapshots(table: Table) -> None:
    table.append(rows(1, 2))
    table.append(rows(3))
    table.delete("id == 1")
    first, second, *_, last = list_snapshots(table)
    assert [
        (len(plan.added), len(plan.deleted)) for plan in (plan_scan(table, first.id, second.id),)
    ] == [(1, 0)]
    plan = plan_scan(table, second.id, last.id)
    assert [file.rows for file in plan.added] == [1]
    assert [file.rows for file in plan.deleted] == [2]
    assert plan_scan(table, last.id, last.id).added == ()
    back = plan_scan(table, last.id, second.id)
    assert (back.added, back.deleted) == (plan.deleted, plan.added)


def on_disk(lake: Lake) -> set[str]:
    return {str(path) for path in Path(lake.settings.data, "numbers").rglob("*") if path.is_file()}


def test_expiry_deletes_the_files_that_nobody_needs_and_no_other(lake: Lake, table: Table) -> None:
    for number in range(4):
        table.append(rows(number))
    table.delete("id == 0")
    create_tag(table, "kept", list_snapshots(table)[1].id)
    create_branch(table, "audit", list_snapshots(table)[2].id)
    before = on_disk(lake)
    promised = expire_snapshots(table, FUTURE, dry_run=True)
    assert promised.is_dry_run
    assert on_disk(lake) == before
    done = expire_snapshots(table, FUTURE)
    assert done.files == promised.files
    assert done.snapshot_ids == promised.snapshot_ids
    assert before - on_disk(lake) == {path.removeprefix("file://") for path in done.files}
    table = lake.catalog.load_table("numbers")
    for snapshot in list_snapshots(table):
        assert ids(table, snapshot.id)
    assert ids(table) == [1, 2, 3]
    assert expire_snapshots(table, FUTURE).files == ()


def test_nothing_younger_than_the_limit_expires(table: Table) -> None:
    table.append(rows(1))
    table.append(rows(2))
    assert expire_snapshots(table, datetime.now(UTC) - timedelta(days=30)).snapshot_ids == ()
    assert len(list_snapshots(table)) == 2


def test_a_file_that_is_gone_already_does_not_stop_expiry(lake: Lake, table: Table) -> None:
    table.append(rows(1))
    table.delete("id == 1")
    promised = expire_snapshots(table, FUTURE, dry_run=True)
    Path(promised.files[0].removeprefix("file://")).unlink()
    expire_snapshots(table, FUTURE)
    assert not set(on_disk(lake)) & {path.removeprefix("file://") for path in promised.files}


def test_a_branch_is_written_audited_and_published(lake: Lake, table: Table) -> None:
    table.append(rows(1))
    create_branch(table, "audit")
    table.append(rows(2), branch="audit")
    assert ids(table) == [1]
    assert [ref.name for ref in list_references(table, BRANCH)] == ["audit", "main"]
    publish_branch(table, "audit")
    assert ids(lake.catalog.load_table("numbers")) == [1, 2]
    delete_reference(table, "audit", BRANCH)
    assert [ref.name for ref in list_references(table, BRANCH)] == ["main"]


def test_publishing_is_refused_when_main_moved(lake: Lake, table: Table) -> None:
    table.append(rows(1))
    create_branch(table, "audit")
    table.append(rows(2), branch="audit")
    lake.catalog.load_table("numbers").append(rows(3))
    with pytest.raises(Conflict, match="main has moved on"):
        publish_branch(lake.catalog.load_table("numbers"), "audit")
    assert ids(lake.catalog.load_table("numbers")) == [1, 3]


def test_tags_name_a_snapshot_and_mistakes_are_named(table: Table) -> None:
    with pytest.raises(InvalidRequest, match="no snapshot yet"):
        create_tag(table, "early")
    table.append(rows(1))
    create_tag(table, "v1")
    table.append(rows(2))
    (tag,) = list_references(table, TAG)
    assert ids(table, tag.snapshot_id) == [1]
    for work, kind in (
        (lambda: create_tag(table, "v1"), Conflict),
        (lambda: create_branch(table, "v1"), Conflict),
        (lambda: create_tag(table, " x"), InvalidRequest),
        (lambda: create_tag(table, ""), InvalidRequest),
        (lambda: create_tag(table, "y", 42), NotFound),
        (lambda: delete_reference(table, "nothing", TAG), NotFound),
        (lambda: delete_reference(table, "v1", BRANCH), NotFound),
        (lambda: delete_reference(table, "main", BRANCH), InvalidRequest),
        (lambda: publish_branch(table, "v1"), NotFound),
    ):
        with pytest.raises(kind):
            work()


def test_several_schema_changes_are_one_commit_and_old_snapshots_keep_their_columns(
    lake: Lake, table: Table
) -> None:
    table.append(rows(1))
    old = list_snapshots(table)[0]
    version = table.metadata_location
    changes: list[SchemaChange] = [
        AddColumn("email", StringType(), "where to write"),
        RenameColumn("name", "full_name"),
        WidenColumn("id", LongType()),
    ]
    evolve_schema(table, changes)
    table = lake.catalog.load_table("numbers")
    assert table.metadata.metadata_log[-1].metadata_file == version
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "full_name": "n1", "email": None}]
    evolve_schema(table, [DropColumn("full_name"), MakeOptional("id")])
    assert table.schema().column_names == ["id", "email"]
    assert table.scan(snapshot_id=old.id).to_arrow().column_names == ["id", "name"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (DropColumn("nothing"), "there is no column"),
        (RenameColumn("nothing", "x"), "there is no column"),
        (RenameColumn("id", "name"), "there is a column 'name' already"),
        (AddColumn("id", StringType()), "there is a column 'id' already"),
        (WidenColumn("name", LongType()), "'name' is string and cannot be made long"),
        (AddColumn("nothing.below", StringType()), "there is no column"),
        (AddColumn("first", StringType()), "cannot be changed so"),
    ],
)
def test_an_impossible_change_is_refused_and_nothing_changes(
    table: Table, change: SchemaChange, said: str
) -> None:
    before = table.schema()
    changes: list[SchemaChange] = [AddColumn("first", StringType()), change]
    with pytest.raises(InvalidRequest, match=said):
        evolve_schema(table, changes)
    assert table.refresh().schema() == before
    with pytest.raises(InvalidRequest):
        evolve_schema(table, [])


def test_a_name_that_is_dropped_can_be_given_again_in_one_commit(table: Table) -> None:
    table.append(rows(1))
    evolve_schema(table, [DropColumn("name"), AddColumn("name", LongType())])
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "name": None}]
