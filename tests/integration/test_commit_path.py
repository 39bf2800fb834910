"""A commit's outcome is read from the table, whatever the catalog answered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from calve.changes import insert_rows
from calve.errors import CalveError, Conflict, NotFound, UnknownOutcome
from calve.lake import Lake
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.data_files import write_data_files
from calve.tables.expiry import expire_snapshots
from calve.tables.references import create_branch, create_tag
from calve.tables.schemas import define_table
from calve.tables.staging import Edit
from tests.conftest import MakeCatalogSettings
from tests.fakes import lying_catalog as lies
from tests.fakes.lying_catalog import lying

ROWS = [{"id": 1}, {"id": 2}]
QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    defined = define_table({"id": "long"})
    lake.catalog.create_table("t", defined.schema, properties=QUICK)
    return lake.catalog


def ids(catalog: LakeCatalog, **scan: Any) -> list[int]:
    found: list[int] = catalog.load_table("t").scan(**scan).to_arrow()["id"].to_pylist()
    return sorted(found)


def files_on_disk(catalog: LakeCatalog, ending: str) -> set[str]:
    root = Path(catalog.load_table("t").location().removeprefix("file://"))
    return {path.name for path in root.rglob(f"*{ending}")}


def referred(table: Table) -> set[str]:
    snapshots = table.metadata.snapshots
    lists = {each.manifest_list for each in snapshots}
    manifests = {m.manifest_path for each in snapshots for m in each.manifests(table.io)}
    return {Path(path).name for path in lists | manifests}


def files_of(table: Table, *numbers: int) -> list[Any]:
    batch = pa.RecordBatch.from_pylist([{"id": n} for n in numbers])
    return write_data_files(table, [batch], operation_id="test")


@pytest.mark.parametrize(
    "lie",
    [lies.applies_then_fails, lies.applies_then_refuses, lies.applies_then_dies],
)
def test_a_commit_that_happened_is_not_repeated_and_keeps_its_files(
    catalog: LakeCatalog, lie: lies.Lie
) -> None:
    with lying(catalog, lie) as left:
        change = insert_rows(catalog, "t", ROWS)
    assert not left
    table = catalog.load_table("t")
    assert table.metadata.current_snapshot_id == change.snapshot_id
    assert len(table.metadata.snapshots) == 1
    assert ids(catalog) == [1, 2]
    assert files_on_disk(catalog, ".avro") == referred(table)


@pytest.mark.parametrize("lie", [lies.refuses, lies.fails_before])
def test_a_commit_that_did_not_happen_is_tried_again(catalog: LakeCatalog, lie: lies.Lie) -> None:
    with lying(catalog, lie, lie, lie) as left:
        insert_rows(catalog, "t", ROWS)
    assert not left
    assert ids(catalog) == [1, 2]
    assert len(files_on_disk(catalog, ".parquet")) == 1


def test_refused_attempts_leave_no_manifests_behind(catalog: LakeCatalog) -> None:
    with lying(catalog, lies.refuses, lies.refuses):
        insert_rows(catalog, "t", ROWS)
    assert files_on_disk(catalog, ".avro") == referred(catalog.load_table("t"))


def test_an_answer_that_was_lost_and_comes_true_late_is_found(catalog: LakeCatalog) -> None:
    late: list[Any] = []

    def keeps_for_later(commit: Any) -> Any:
        late.append(commit)
        return lies.fails_before(commit)

    def late_one_wins(commit: Any) -> Any:
        late.pop()()
        return commit()

    with lying(catalog, keeps_for_later, late_one_wins):
        insert_rows(catalog, "t", ROWS)
    assert ids(catalog) == [1, 2]
    assert len(catalog.load_table("t").metadata.snapshots) == 1


def test_a_commit_that_is_refused_for_good_deletes_its_files(lake: Lake) -> None:
    schema = define_table({"id": "long"}).schema
    lake.catalog.create_table("t", schema, properties={**QUICK, "commit.retry.num-retries": "2"})
    with lying(lake.catalog, *[lies.refuses] * 3), pytest.raises(Conflict):
        insert_rows(lake.catalog, "t", ROWS)
    assert ids(lake.catalog) == []
    assert not files_on_disk(lake.catalog, ".parquet")
    assert not files_on_disk(lake.catalog, ".avro")


def test_a_commit_of_unknown_outcome_keeps_its_files(lake: Lake) -> None:
    schema = define_table({"id": "long"}).schema
    lake.catalog.create_table("t", schema, properties={**QUICK, "commit.retry.num-retries": "1"})
    with lying(lake.catalog, lies.fails_before, lies.refuses), pytest.raises(UnknownOutcome):
        insert_rows(lake.catalog, "t", ROWS)
    assert len(files_on_disk(lake.catalog, ".parquet")) == 1


def test_a_table_that_cannot_be_read_after_a_commit_leaves_all_files(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_the_catalog(commit: Any) -> Any:
        commit()
        monkeypatch.setattr(catalog.iceberg, "load_table", _unreachable)
        return lies.refuses(commit)

    with lying(catalog, breaks_the_catalog), pytest.raises(UnknownOutcome, match="cannot be read"):
        insert_rows(catalog, "t", ROWS)
    monkeypatch.undo()
    assert ids(catalog) == [1, 2]


def _unreachable(*_: object) -> Any:
    raise ConnectionError("nobody there")


def test_an_interrupt_during_a_commit_deletes_nothing(catalog: LakeCatalog) -> None:
    with lying(catalog, lies.applies_then_is_interrupted), pytest.raises(KeyboardInterrupt):
        insert_rows(catalog, "t", ROWS)
    assert ids(catalog) == [1, 2]


def test_an_append_goes_on_top_of_whatever_came_before(catalog: LakeCatalog) -> None:
    commit = TableCommit(catalog.load_table("t"))
    files = files_of(commit.table, 1)
    insert_rows(catalog, "t", [{"id": 2}])
    done = commit.append(Edit(added=files))
    assert ids(catalog) == [1, 2]
    assert done.table.metadata.current_snapshot_id == done.snapshot_id


def test_an_append_meets_a_new_schema_and_a_new_partitioning(catalog: LakeCatalog) -> None:
    commit = TableCommit(catalog.load_table("t"))
    files = files_of(commit.table, 1)
    other = catalog.load_table("t")
    with other.update_schema() as schema:
        schema.add_column("name", define_table({"x": "string"}).schema.fields[0].field_type)
    with other.update_spec() as spec:
        spec.add_identity("id")
    done = commit.append(Edit(added=files))
    assert ids(catalog) == [1]
    assert ids(catalog, row_filter="id > 5") == []
    snapshot = done.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.schema_id == other.schema().schema_id
    # The other way round: new files under the new partitioning beside the old one.
    insert_rows(catalog, "t", [{"id": 7, "name": "x"}])
    assert ids(catalog) == [1, 7]


def test_files_are_replaced_on_the_head_that_was_read_only(catalog: LakeCatalog) -> None:
    insert_rows(catalog, "t", ROWS)
    commit = TableCommit(catalog.load_table("t"))
    old = [task.file for task in commit.table.scan().plan_files()]
    new = files_of(commit.table, 5)
    insert_rows(catalog, "t", [{"id": 3}])
    with pytest.raises(Conflict):
        commit.attempt(Edit(added=new, removed=old))
    assert commit.reload() is None
    commit.attempt(Edit(added=new, removed=old))
    assert ids(catalog) == [3, 5]
    with pytest.raises(Conflict, match="replaced or removed"):
        TableCommit(catalog.load_table("t")).attempt(Edit(removed=old))


def test_the_summary_counts_and_carries_what_is_given(catalog: LakeCatalog) -> None:
    commit = TableCommit(catalog.load_table("t"))
    done = commit.append(
        Edit(
            added=files_of(commit.table, 1, 2, 3),
            summary={"calve.range": "0-3"},
            properties={"calve.committed.0": "3"},
        )
    )
    snapshot = done.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["calve.range"] == "0-3"
    assert snapshot.summary["total-records"] == "3"
    assert catalog.load_table("t").properties["calve.committed.0"] == "3"
    old = [task.file for task in done.table.scan().plan_files()]
    gone = TableCommit(done.table).attempt(Edit(removed=old)).table.current_snapshot()
    assert gone is not None
    assert gone.summary is not None
    assert (gone.summary.operation.value, gone.summary["total-records"]) == ("delete", "0")


def test_files_in_partitions_of_null_and_nan_can_be_removed(lake: Lake) -> None:
    defined = define_table({"id": "long", "p": "double"}, partition_by=["p"])
    lake.catalog.create_table("t", defined.schema, partition_spec=defined.partition_spec)
    values = [1.5, None, float("nan"), -0.0]
    for n, value in enumerate(values):
        insert_rows(lake.catalog, "t", [{"id": n, "p": value}])
    for n in range(len(values)):
        commit = TableCommit(lake.catalog.load_table("t"))
        tasks = [task.file for task in commit.table.scan().plan_files()]
        commit.attempt(Edit(removed=tasks[:1]))
        assert len(ids(lake.catalog)) == len(values) - n - 1


def test_branches_are_written_and_tags_are_not(catalog: LakeCatalog) -> None:
    insert_rows(catalog, "t", ROWS)
    create_branch(catalog.load_table("t"), "b")
    create_tag(catalog.load_table("t"), "v1")
    assert insert_rows(catalog, "t", [{"id": 3}], branch="b").branch == "b"
    assert ids(catalog) == [1, 2]
    head = catalog.load_table("t").snapshot_by_name("b")
    assert head is not None
    assert ids(catalog, snapshot_id=head.snapshot_id) == [1, 2, 3]
    with pytest.raises(NotFound, match="no branch 'c'"):
        insert_rows(catalog, "t", ROWS, branch="c")
    with pytest.raises(Exception, match="is a tag"):
        insert_rows(catalog, "t", ROWS, branch="v1")


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "rest"])
def test_a_snapshot_is_continued_only_while_it_is_kept(
    catalog_settings: MakeCatalogSettings, kind: str
) -> None:
    name = f"continued_{uuid4().hex}"
    with LakeCatalog(catalog_settings(kind)) as catalog:
        catalog.create_table(name, define_table({"id": "long"}).schema, properties=QUICK)
        first, second = (insert_rows(catalog, name, [{"id": n}]).snapshot_id for n in (1, 2))
        back = TableCommit(catalog.load_table(name)).attempt(Edit(onto=first))
        assert catalog.load_table(name).scan().to_arrow()["id"].to_pylist() == [1]
        assert set(catalog.load_table(name).metadata.refs) == {"main"}
        late = TableCommit(catalog.load_table(name))

        def expires(commit: Any) -> Any:
            expire_snapshots(catalog.load_table(name), datetime.now(UTC) + timedelta(hours=1))
            return commit()

        with lying(catalog, expires, lambda commit: commit()), pytest.raises(CalveError):
            late.attempt(Edit(onto=second))
        assert not late.is_undecided
        table = catalog.load_table(name)
        assert table.metadata.current_snapshot_id == back.snapshot_id
        assert table.scan().to_arrow()["id"].to_pylist() == [1]


def test_a_table_that_was_made_again_is_not_written_to(catalog: LakeCatalog) -> None:
    commit = TableCommit(catalog.load_table("t"))
    files = files_of(commit.table, 1)
    catalog.drop_table("t")
    catalog.create_table("t", define_table({"id": "long"}).schema)
    with pytest.raises((NotFound, UnknownOutcome)):
        commit.append(Edit(added=files))
    assert ids(catalog) == []


def test_manifests_are_merged_where_the_table_wants_it(lake: Lake) -> None:
    lake.catalog.create_table(
        "t",
        define_table({"id": "long"}).schema,
        properties={
            "commit.manifest-merge.enabled": "true",
            "commit.manifest.min-count-to-merge": "3",
        },
    )
    for n in range(7):
        insert_rows(lake.catalog, "t", [{"id": n}])
    assert ids(lake.catalog) == list(range(7))
    table = lake.catalog.load_table("t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 4
