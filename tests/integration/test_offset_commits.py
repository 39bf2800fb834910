"""A range of offsets is committed once, found to be there already, or refused with the way out."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.types import LongType, StringType

from calve.changes import insert_rows
from calve.errors import Conflict, Corruption, InvalidRequest, SchemaConflict
from calve.lake import Lake
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.expiry import expire_snapshots, referred_files
from calve.tables.manifest_tiers import TIER_MANIFESTS_MAX
from calve.tables.offsets import LogRange, commit_range, range_operation_id
from calve.tables.positions import (
    Position,
    committed_position,
    committed_positions,
    position_property,
)
from calve.tables.references import create_branch, create_tag
from calve.tables.staging import Edit
from tests.conftest import MakeCatalogSettings
from tests.fakes import feed as feeding
from tests.fakes import lying_catalog as lies
from tests.fakes.feed import LOG, OTHER_LOG, feed, log_range, make_table, parcel, position
from tests.fakes.lying_catalog import lying


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    make_table(lake.catalog)
    return lake.catalog


def now(catalog: LakeCatalog) -> Table:
    return catalog.load_table("t")


def test_a_commit_brings_rows_position_and_range_in_one_snapshot(catalog: LakeCatalog) -> None:
    first = feed(now(catalog), 0, 10)
    done = feed(first.table, 10, 25)
    table = now(catalog)
    assert done.is_new
    assert len(table.metadata.snapshots) == 2
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert position(table) == Position(LOG, 25, feeding.checksum(25), snapshot.snapshot_id)
    assert position(table) == done.position
    assert snapshot.summary is not None
    assert snapshot.summary["calve.range.0"] == "10-25"
    operation = snapshot.summary["calve.operation"]
    assert operation is not None
    assert operation.startswith("offsets-0-10-25-")
    assert any(name.startswith(operation) for name in feeding.data_files_on_disk(table))
    feeding.require_each_once(table, 25)


def test_the_property_is_compact_json(catalog: LakeCatalog) -> None:
    feed(now(catalog), 0, 3)
    snapshot_id = now(catalog).metadata.current_snapshot_id
    assert now(catalog).properties["calve.committed.0"] == (
        f'{{"log":"{LOG}","offset":3,"checksum":"{feeding.checksum(3)}","snapshot":"{snapshot_id}"}}'
    )


def test_partitions_go_their_own_ways(catalog: LakeCatalog) -> None:
    feed(now(catalog), 0, 10, partition=1)
    feed(now(catalog), 0, 4)
    feed(now(catalog), 10, 12, partition=1)
    assert {p: each.offset for p, each in committed_positions(now(catalog)).items()} == {
        0: 4,
        1: 12,
    }
    feeding.require_each_once(now(catalog), 4)
    feeding.require_each_once(now(catalog), 12, partition=1)


def test_a_range_without_rows_moves_the_position_with_a_snapshot(catalog: LakeCatalog) -> None:
    rows = log_range(0, 5)
    done = commit_range(now(catalog), rows, Edit(), operation_id=range_operation_id(rows))
    assert position(now(catalog)).offset == 5
    assert now(catalog).metadata.current_snapshot_id == done.position.snapshot_id
    assert now(catalog).scan().to_arrow().num_rows == 0


@pytest.mark.parametrize(("start", "end"), [(0, 10), (0, 4), (3, 9), (5, 10)])
def test_a_range_that_is_there_is_found_and_its_files_deleted(
    catalog: LakeCatalog, start: int, end: int
) -> None:
    feed(now(catalog), 0, 5)
    first = feed(now(catalog), 5, 10)
    again = parcel(now(catalog), log_range(start, end))
    found = again.send(now(catalog))
    assert not found.is_new
    assert found.position == first.position
    assert not any(path.exists() for path in again.paths())
    feeding.require_each_once(now(catalog), 10)


def test_a_range_sent_again_with_the_files_that_are_in_the_table_keeps_them(
    catalog: LakeCatalog,
) -> None:
    sent = parcel(now(catalog), log_range(0, 10))
    assert sent.send(now(catalog)).is_new
    assert not sent.send(now(catalog)).is_new
    feeding.require_each_once(now(catalog), 10)
    # Also when the snapshot that brought them is no longer known.
    insert_rows(catalog, "t", [{"value": "by hand"}])
    expire_snapshots(now(catalog), datetime.now(UTC) + timedelta(hours=1))
    assert not sent.send(now(catalog)).is_new
    assert all(path.exists() for path in sent.paths())
    feeding.require_readable(now(catalog))


def test_files_that_only_an_old_snapshot_needs_are_kept(catalog: LakeCatalog) -> None:
    sent = parcel(now(catalog), log_range(0, 10))
    sent.send(now(catalog))
    create_tag(now(catalog), "before")
    commit = TableCommit(now(catalog))
    commit.attempt(Edit(removed=[task.file for task in commit.table.scan().plan_files()]))
    sent.send(now(catalog))
    feeding.require_readable(now(catalog))


def test_in_format_1_nothing_proves_that_files_are_not_needed(lake: Lake) -> None:
    make_table(lake.catalog, {"format-version": "1"})
    assert feed(now(lake.catalog), 0, 10).is_new
    again = parcel(now(lake.catalog), log_range(0, 10))
    assert not again.send(now(lake.catalog)).is_new
    assert all(path.exists() for path in again.paths())
    with lying(lake.catalog, lies.fails_before, lies.applies_then_refuses):
        assert feed(now(lake.catalog), 10, 20).is_new
    feeding.require_each_once(now(lake.catalog), 20)


def test_a_gap_is_refused_and_leaves_the_files(catalog: LakeCatalog) -> None:
    feed(now(catalog), 0, 5)
    early = parcel(now(catalog), log_range(8, 10))
    with pytest.raises(Conflict, match="does not follow 5") as refused:
        early.send(now(catalog))
    assert "from offset 5 on" in str(refused.value.hint)
    feed(now(catalog), 5, 8)
    assert early.send(now(catalog)).is_new
    feeding.require_each_once(now(catalog), 10)


def test_an_overlap_is_refused_and_its_files_deleted(catalog: LakeCatalog) -> None:
    feed(now(catalog), 0, 5)
    across = parcel(now(catalog), log_range(3, 10))
    with pytest.raises(Conflict, match="does not follow 5"):
        across.send(now(catalog))
    assert not any(path.exists() for path in across.paths())
    feeding.require_each_once(now(catalog), 5)


def test_the_first_range_begins_at_0(catalog: LakeCatalog) -> None:
    with pytest.raises(Conflict, match="does not follow 0"):
        feed(now(catalog), 5, 10)


@pytest.mark.parametrize(
    ("start", "end", "partition"), [(5, 5, 0), (6, 5, 0), (-1, 5, 0), (0, 5, -1)]
)
def test_what_is_no_range_is_refused(start: int, end: int, partition: int) -> None:
    with pytest.raises(InvalidRequest, match="is not a range of offsets"):
        LogRange(partition, LOG, start, end, "")


def test_more_rows_than_offsets_are_refused(catalog: LakeCatalog) -> None:
    many = parcel(now(catalog), log_range(0, 10))
    rows = log_range(0, 9)
    with pytest.raises(InvalidRequest, match="10 rows, more than"):
        commit_range(now(catalog), rows, Edit(added=many.files), operation_id=many.operation_id)


def test_a_log_has_an_identity(catalog: LakeCatalog) -> None:
    """Invariant 11, the table's side: rows of a log that is not the table's are not taken."""
    feed(now(catalog), 0, 10)
    foreign = parcel(now(catalog), log_range(10, 20, log=OTHER_LOG))
    with pytest.raises(Conflict, match="fed by log") as refused:
        foreign.send(now(catalog))
    assert {str(LOG), str(OTHER_LOG)} == set(refused.value.context.values())
    assert all(path.exists() for path in foreign.paths())
    # Neither where it would repeat, nor where it would leave a gap.
    for start, end in ((0, 10), (5, 15), (12, 20)):
        with pytest.raises(Conflict, match="fed by log"):
            parcel(now(catalog), log_range(start, end, log=OTHER_LOG)).send(now(catalog))
    # A new log says which one it follows, and begins where that one ended.
    with pytest.raises(Conflict, match="fed by log"):
        parcel(now(catalog), log_range(0, 20, log=OTHER_LOG)).send(now(catalog), replaces=LOG)
    assert foreign.send(now(catalog), replaces=LOG).is_new
    with pytest.raises(Conflict, match="fed by log"):
        feed(now(catalog), 20, 30)
    feeding.require_each_once(now(catalog), 20)


def test_the_same_offsets_with_other_rows_are_refused(catalog: LakeCatalog) -> None:
    feed(now(catalog), 0, 10)
    rows = LogRange(0, LOG, 0, 10, "other")
    with pytest.raises(Conflict, match="other rows of log"):
        parcel(now(catalog), rows).send(now(catalog))


def test_a_table_read_long_ago_is_good_enough(catalog: LakeCatalog) -> None:
    old = now(catalog)
    feed(now(catalog), 0, 10)
    insert_rows(catalog, "t", [{"value": "by hand"}])
    assert not feed(old, 0, 10).is_new
    assert feed(old, 10, 20).is_new
    feeding.require_each_once(now(catalog), 20)


def test_an_old_head_whose_files_are_gone_is_no_obstacle(catalog: LakeCatalog) -> None:
    old = feed(now(catalog), 0, 10).table
    feed(now(catalog), 10, 20)
    expired = expire_snapshots(now(catalog), datetime.now(UTC) + timedelta(hours=1))
    head = old.current_snapshot()
    assert head is not None
    assert head.manifest_list in expired.files
    rows = log_range(20, 30)
    stale = Edit(added=parcel(now(catalog), rows).files, is_recurring=True)
    commit = TableCommit(old)
    with pytest.raises(Conflict, match="moved on"):
        commit.attempt(stale)
    assert feed(old, 20, 30).is_new
    feeding.require_each_once(now(catalog), 30)


def test_a_write_to_another_branch_in_between_is_no_obstacle(catalog: LakeCatalog) -> None:
    feed(now(catalog), 0, 10)
    create_branch(now(catalog), "audit")
    before = now(catalog)
    insert_rows(catalog, "t", [{"value": "elsewhere"}], branch="audit")
    # Main is where it was, but the number that the snapshot would have had is taken.
    assert feed(before, 10, 20).is_new
    feeding.require_each_once(now(catalog), 20)


def test_files_written_before_new_columns_and_a_new_partitioning_are_taken(
    catalog: LakeCatalog,
) -> None:
    before = feed(now(catalog), 0, 10).table
    sent = parcel(before, log_range(10, 20))
    table = now(catalog)
    with table.update_schema() as schema:
        schema.add_column("more", StringType())
    with table.update_spec() as spec:
        spec.add_identity("_calve_partition")
    assert sent.send(before).is_new
    feeding.require_each_once(now(catalog), 20)
    assert "more" in now(catalog).schema().column_names


def test_files_that_no_longer_fit_are_refused_for_writing_again(catalog: LakeCatalog) -> None:
    before = feed(now(catalog), 0, 10).table
    sent = parcel(before, log_range(10, 20))
    with now(catalog).update_schema(allow_incompatible_changes=True) as schema:
        schema.make_column_optional("value")
        schema.add_column("must", LongType(), required=True, default_value=1)
    with pytest.raises(SchemaConflict, match="write the rows again"):
        sent.send(before)
    assert all(path.exists() for path in sent.paths())
    assert position(now(catalog)).offset == 10


def test_a_forgotten_partitioning_is_refused_for_writing_again(catalog: LakeCatalog) -> None:
    sent = parcel(now(catalog), log_range(0, 10))
    sent.files[0].spec_id = 7
    with pytest.raises(SchemaConflict, match="forgotten the partitioning 7"):
        sent.send(now(catalog))


def test_snapshots_stay_few_and_what_a_name_leads_to_stays(lake: Lake) -> None:
    table = make_table(lake.catalog, {"calve.snapshots.keep": "12"})
    tagged = feed(table, 0, 1).position.snapshot_id
    create_tag(lake.catalog.load_table("t"), "first")
    feed(lake.catalog.load_table("t"), 1, 2)
    create_branch(lake.catalog.load_table("t"), "audit")
    insert_rows(lake.catalog, "t", [{"value": "audited"}], branch="audit")
    table = lake.catalog.load_table("t")
    for end in range(3, 40):
        table = feed(table, end - 1, end).table
    kept = {each.snapshot_id for each in table.metadata.snapshots}
    assert len(kept) == 12 + 2
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    assert named | {tagged} <= kept
    feeding.require_each_once(lake.catalog.load_table("t"), 39)


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        ({}, 100),
        ({"calve.snapshots.keep": "20"}, 20),
        ({"calve.snapshots.keep": "1"}, 10),
        ({"calve.snapshots.keep": "many"}, 100),
        ({"calve.snapshots.keep": "20", "history.expire.min-snapshots-to-keep": "30"}, 30),
    ],
)
def test_how_many_snapshots_are_kept_is_the_tables_to_say(
    lake: Lake, properties: dict[str, str], kept: int
) -> None:
    table = lake.catalog.create_table("t", feeding.SCHEMA, properties=properties)
    for end in range(1, kept + 8):
        rows = log_range(end - 1, end)
        table = commit_range(table, rows, Edit(), operation_id=range_operation_id(rows)).table
    assert len(table.metadata.snapshots) == kept


def test_snapshots_that_the_table_wants_to_get_older_stay(lake: Lake) -> None:
    keep = {"calve.snapshots.keep": "10", "history.expire.max-snapshot-age-ms": "3600000"}
    table = make_table(lake.catalog, keep)
    for end in range(1, 16):
        table = feed(table, end - 1, end).table
    assert len(table.metadata.snapshots) == 15


def test_a_name_given_while_a_commit_is_under_way_is_kept(lake: Lake) -> None:
    table = make_table(lake.catalog, {"calve.snapshots.keep": "10"})
    for end in range(1, 11):
        table = feed(table, end - 1, end).table
    oldest = table.metadata.snapshots[0].snapshot_id

    def names_the_oldest(commit: Any) -> Any:
        create_tag(lake.catalog.load_table("t"), "just-now", oldest)
        return commit()

    with lying(lake.catalog, names_the_oldest, lambda commit: commit()):
        feed(table, 10, 11)
    after = lake.catalog.load_table("t")
    assert after.metadata.refs["just-now"].snapshot_id == oldest
    assert after.snapshot_by_id(oldest) is not None
    feeding.require_each_once(after, 11)


def test_a_snapshot_expired_by_somebody_else_meanwhile_is_no_obstacle(lake: Lake) -> None:
    table = make_table(lake.catalog, {"calve.snapshots.keep": "10"})
    for end in range(1, 11):
        table = feed(table, end - 1, end).table
    oldest = table.metadata.snapshots[0].snapshot_id
    removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [oldest]})
    lake.catalog.iceberg.commit_table(table, (), (removal,))
    assert feed(table, 10, 11).is_new
    feeding.require_each_once(lake.catalog.load_table("t"), 11)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "rest"])
def test_metadata_files_stay_few(
    catalog_settings: MakeCatalogSettings, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LakeCatalog(catalog_settings(kind)) as catalog:
        few = {"write.metadata.previous-versions-max": "3"}
        table = make_table(catalog, few, name=f"few_{uuid4().hex}")
        for end in range(1, 12):
            table = feed(table, end - 1, end).table
        root = Path(table.location().removeprefix("file://")) / "metadata"
        assert len(list(root.glob("*.metadata.json"))) == 3 + 1
        feeding.require_each_once(catalog.load_table(".".join(table.name())), 11)
    assert not caplog.records


def test_metadata_is_copied_without_its_snapshots(catalog: LakeCatalog) -> None:
    table = feed(now(catalog), 0, 1).table
    copied = table.metadata.model_copy(deep=True)
    assert copied == table.metadata
    assert copied.snapshots is not table.metadata.snapshots
    assert copied.snapshots[0] is table.metadata.snapshots[0]
    assert copied.schemas[0] is not table.metadata.schemas[0]


def test_manifests_stay_few(lake: Lake) -> None:
    table = make_table(lake.catalog)
    commits = TIER_MANIFESTS_MAX * 5
    for end in range(1, commits + 1):
        table = feed(table, end - 1, end).table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 2 * TIER_MANIFESTS_MAX
    feeding.require_each_once(lake.catalog.load_table("t"), commits)


def test_a_table_may_keep_its_manifests_and_metadata_as_it_likes(lake: Lake) -> None:
    own = {
        "commit.manifest-merge.enabled": "false",
        "write.metadata.delete-after-commit.enabled": "false",
    }
    table = lake.catalog.create_table("t", feeding.SCHEMA, properties=own)
    for end in range(1, TIER_MANIFESTS_MAX + 4):
        table = feed(table, end - 1, end).table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) == TIER_MANIFESTS_MAX + 3
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "false"


def test_merged_manifests_keep_sequence_numbers_and_deletes_apply(lake: Lake) -> None:
    table = make_table(lake.catalog)
    for end in range(1, TIER_MANIFESTS_MAX + 2):
        table = feed(table, end - 1, end).table
    files = {
        entry.data_file.file_path: entry.sequence_number
        for manifest in table.inspect.manifests()["path"].to_pylist()
        for entry in _entries(table, manifest)
    }
    assert sorted(files.values()) == list(range(1, TIER_MANIFESTS_MAX + 2))


def _entries(table: Table, path: str) -> Any:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = next(each for each in snapshot.manifests(table.io) if each.manifest_path == path)
    return found.fetch_manifest_entry(table.io)


@pytest.mark.parametrize(
    "value",
    [
        "10",
        "",
        "{}",
        '{"log":"x","offset":1,"checksum":"","snapshot":"1"}',
        f'{{"log":"{LOG}","offset":-1,"checksum":"","snapshot":"1"}}',
        f'{{"log":"{LOG}","offset":"1","checksum":"","snapshot":"1"}}',
        f'{{"log":"{LOG}","offset":1,"checksum":"","snapshot":"x"}}',
    ],
)
def test_an_unreadable_position_is_an_error_with_the_way_out(
    catalog: LakeCatalog, value: str
) -> None:
    table = now(catalog)
    table.transaction().set_properties({"calve.committed.0": value}).commit_transaction()
    with pytest.raises(Corruption, match=r"calve\.committed\.0 cannot be read") as unreadable:
        committed_position(now(catalog), 0)
    assert unreadable.value.hint
    with pytest.raises(Corruption):
        feed(now(catalog), 0, 10)


def test_a_position_reads_as_it_was_written(catalog: LakeCatalog) -> None:
    wanted = Position(OTHER_LOG, 2**62, 'quo"te', 2**62 + 1)
    table = now(catalog)
    table.transaction().set_properties(position_property(3, wanted)).commit_transaction()
    assert committed_position(now(catalog), 3) == wanted
    assert committed_positions(now(catalog)) == {3: wanted}


def test_an_exception_says_nothing_about_a_commit(
    catalog: LakeCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 4: after each kind of answer the table has the range once, and all its files."""
    caplog.set_level(logging.ERROR)
    kinds = [
        lies.fails_before,
        lies.applies_then_fails,
        lies.applies_then_refuses,
        lies.refuses,
        lies.applies_then_dies,
    ]
    for turn, kind in enumerate(kinds):
        with lying(catalog, kind) as left:
            assert feed(now(catalog), turn * 10, turn * 10 + 10).is_new
        assert not left
        feeding.require_each_once(now(catalog), turn * 10 + 10)
    # An attempt that failed leaves no manifest behind once another one has taken its place.
    table = now(catalog)
    needed = {Path(path).name for path in referred_files(table.io, table.metadata.snapshots)}
    root = Path(table.location().removeprefix("file://")) / "metadata"
    assert {path.name for path in root.glob("*.avro")} <= needed
    assert not caplog.records


@pytest.mark.parametrize("answer", [lies.fails_before, lies.refuses])
def test_a_commit_whose_snapshot_has_expired_before_it_was_looked_for(
    catalog: LakeCatalog, answer: lies.Lie
) -> None:
    def applies_and_is_forgotten(commit: Any) -> Any:
        commit()
        feed(now(catalog), 10, 20)
        expire_snapshots(now(catalog), datetime.now(UTC) + timedelta(hours=1))
        return answer(commit)

    honest = [lambda commit: commit()] * 2
    sent = parcel(now(catalog), log_range(0, 10))
    with lying(catalog, applies_and_is_forgotten, *honest):
        assert sent.send(now(catalog)).is_new
    assert len(now(catalog).metadata.snapshots) == 1
    feeding.require_each_once(now(catalog), 20)


def test_exactly_once_into_the_table(catalog: LakeCatalog) -> None:
    """Invariant 3: the property moves with a snapshot only, and a stale one moves nothing."""
    rivals = [parcel(now(catalog), log_range(0, 10)) for _ in range(2)]
    read_before = now(catalog)
    assert [rival.send(read_before).is_new for rival in rivals] == [True, False]
    feeding.require_each_once(now(catalog), 10)
    # A commit that was read at 10 and comes after 20 changes neither rows nor property.
    late = parcel(now(catalog), log_range(10, 20))
    stale = now(catalog)
    feed(now(catalog), 10, 20)
    feed(now(catalog), 20, 30)
    assert not late.send(stale).is_new
    feeding.require_each_once(now(catalog), 30)
    summaries = [each.summary for each in now(catalog).metadata.snapshots]
    assert [each and each["calve.range.0"] for each in summaries] == ["0-10", "10-20", "20-30"]
