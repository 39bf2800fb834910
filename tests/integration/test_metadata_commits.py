"""What changes no rows is held to the same: whether it happened is read from the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata

from calve.errors import Conflict, UnknownOutcome
from calve.lake import Lake
from calve.manager import IcebergManager
from calve.tables.catalog import LakeCatalog
from tests.fakes import lying_catalog as lies
from tests.fakes.lying_catalog import lying

Work = Callable[[IcebergManager, int], object]


@pytest.fixture
def manager(lake: Lake) -> IcebergManager:
    tables = lake.tables
    tables.create_table("t", {"id": "long", "a": "int"})
    for number in range(3):
        tables.insert_data("t", [{"id": number}])
    tables.create_branch("t", "old")
    tables.create_tag("t", "v1")
    return tables


def first_snapshot(manager: IcebergManager) -> int:
    return manager.list_snapshots("t")[0].id


WORKS: dict[str, Work] = {
    "rollback": lambda manager, first: manager.rollback("t", first),
    "create_branch": lambda manager, first: manager.create_branch("t", "b", snapshot_id=first),
    "create_tag": lambda manager, first: manager.create_tag("t", "x", snapshot_id=first),
    "delete_branch": lambda manager, _: manager.delete_branch("t", "old"),
    "delete_tag": lambda manager, _: manager.delete_tag("t", "v1"),
    "expire": lambda manager, _: manager.expire_snapshots("t", 0),
    "add_column": lambda manager, _: manager.add_column("t", "more", "string"),
    "widen": lambda manager, _: manager.alter_column("t", "a", type="long"),
    "partition": lambda manager, _: manager.alter_partition("t", add=["bucket(4, id)"]),
}


def state(catalog: LakeCatalog) -> tuple[object, ...]:
    metadata: TableMetadata = catalog.load_table("t").metadata
    snapshots = sorted(each.snapshot_id for each in metadata.snapshots)
    return (metadata.refs, metadata.schema(), metadata.spec(), snapshots)


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize(
    "lie", [lies.applies_then_fails, lies.applies_then_refuses, lies.applies_then_dies]
)
def test_what_happened_is_done_whatever_was_answered(
    lake: Lake, manager: IcebergManager, work: Work, lie: lies.Lie
) -> None:
    before, first = state(lake.catalog), first_snapshot(manager)
    with lying(lake.catalog, lie) as left:
        work(manager, first)
    assert not left
    assert state(lake.catalog) != before


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_what_was_refused_is_tried_again(lake: Lake, manager: IcebergManager, work: Work) -> None:
    before, first = state(lake.catalog), first_snapshot(manager)
    with lying(lake.catalog, lies.refuses, lies.refuses) as left:
        work(manager, first)
    assert not left
    assert state(lake.catalog) != before


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_an_answer_that_was_lost_is_said_to_be(
    lake: Lake, manager: IcebergManager, work: Work
) -> None:
    before, first = state(lake.catalog), first_snapshot(manager)
    files = set(Path(lake.catalog.load_table("t").location().removeprefix("file://")).rglob("*.*"))
    with lying(lake.catalog, lies.fails_before), pytest.raises(UnknownOutcome, match="was lost"):
        work(manager, first)
    assert state(lake.catalog) == before
    assert all(file.exists() for file in files)


def test_publishing_is_done_whatever_was_answered(lake: Lake, manager: IcebergManager) -> None:
    manager.create_branch("t", "b")
    manager.insert_data("t", [{"id": 9}], branch="b")
    with lying(lake.catalog, lies.applies_then_refuses):
        published = manager.publish_branch("t", "b")
    assert manager.get_current_snapshot("t") == published
    assert len(manager.query_table("t")) == 4


def test_a_rollback_that_happened_does_not_undo_what_came_after_it(
    lake: Lake, manager: IcebergManager
) -> None:
    def another_writer_is_quick(commit: Any) -> Any:
        commit()
        manager.insert_data("t", [{"id": 7}])
        return lies.refuses(commit)

    first = first_snapshot(manager)
    with lying(lake.catalog, another_writer_is_quick):
        manager.rollback("t", first)
    assert sorted(row["id"] for row in manager.query_table("t", columns=["id"])) == [0, 7]


def test_expired_files_go_only_when_the_table_has_forgotten_them(
    lake: Lake, manager: IcebergManager
) -> None:
    with lying(lake.catalog, lies.applies_then_fails):
        expired = manager.expire_snapshots("t", 0)
    assert len(expired.snapshot_ids) == 2
    assert not any(Path(file.removeprefix("file://")).exists() for file in expired.files)
    assert len(manager.query_table("t")) == 3


def test_a_tag_that_is_given_meanwhile_keeps_its_snapshot(
    lake: Lake, manager: IcebergManager
) -> None:
    first = first_snapshot(manager)

    def somebody_is_quicker(commit: Any) -> Any:
        manager.create_tag("t", "rescued", snapshot_id=first)
        return commit()

    with lying(lake.catalog, somebody_is_quicker):
        expired = manager.expire_snapshots("t", 0)
    assert first not in expired.snapshot_ids
    assert len(expired.snapshot_ids) == 1
    assert len(manager.query_table("t", tag="rescued")) == 1


def test_what_somebody_else_expired_meanwhile_is_no_mistake(
    lake: Lake, manager: IcebergManager
) -> None:
    def somebody_is_quicker(commit: Any) -> Any:
        # Not by Calve, whose own expiries of one table wait for each other.
        table = lake.catalog.load_table("t")
        kept = {each.snapshot_id for each in table.refs().values()}
        old = [each for each in table.snapshots() if each.snapshot_id not in kept]
        assert len(old) == 2
        table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
        return commit()

    with lying(lake.catalog, somebody_is_quicker):
        manager.expire_snapshots("t", 0)
    assert len(manager.query_table("t")) == 3


def test_a_branch_that_moved_is_deleted_all_the_same(lake: Lake, manager: IcebergManager) -> None:
    def somebody_writes(commit: Any) -> Any:
        manager.insert_data("t", [{"id": 8}], branch="old")
        return commit()

    with lying(lake.catalog, somebody_writes) as left:
        manager.delete_branch("t", "old")
    assert not left
    assert [each.name for each in manager.list_branches("t")] == ["main"]


def test_the_settings_of_main_outlive_a_rollback(lake: Lake, manager: IcebergManager) -> None:
    table = lake.catalog.load_table("t")
    head = table.metadata.current_snapshot_id
    assert head is not None
    with table.manage_snapshots() as manage:
        manage.create_branch(head, "main", min_snapshots_to_keep=5)
    manager.rollback("t", first_snapshot(manager))
    assert lake.catalog.load_table("t").refs()["main"].min_snapshots_to_keep == 5


@pytest.mark.parametrize("branch", ["main", "audit"])
def test_the_settings_of_a_branch_outlive_commits(
    lake: Lake, manager: IcebergManager, branch: str
) -> None:
    table = lake.catalog.load_table("t")
    head = table.metadata.current_snapshot_id
    assert head is not None
    with table.manage_snapshots() as manage:
        manage.create_branch(head, branch, min_snapshots_to_keep=5, max_snapshot_age_ms=1000)
    manager.insert_data("t", [{"id": 100}], branch=branch)
    manager.delete_data("t", "id = 100", branch=branch)
    kept = lake.catalog.load_table("t").refs()[branch]
    assert (kept.min_snapshots_to_keep, kept.max_snapshot_age_ms) == (5, 1000)


def test_two_of_whom_one_is_refused_are_told_so(lake: Lake, manager: IcebergManager) -> None:
    def somebody_is_quicker(commit: Any) -> Any:
        manager.create_tag("t", "x", snapshot_id=first_snapshot(manager))
        return commit()

    with lying(lake.catalog, somebody_is_quicker), pytest.raises(Conflict, match="exists already"):
        manager.create_tag("t", "x")
