"""Rows deleted, updated and upserted: the right ones, in one snapshot, other files untouched."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.changes import Change, Expression, delete_rows, insert_rows, update_rows, upsert_rows
from calve.errors import Conflict, InvalidRequest
from calve.lake import Lake
from calve.tables.catalog import LakeCatalog
from calve.tables.reading import FileReader
from calve.tables.references import create_branch
from calve.tables.schemas import define_table
from tests.fakes import lying_catalog as lies
from tests.fakes.delete_files import delete_equal, delete_positions
from tests.fakes.lying_catalog import lying

Rows = list[tuple[Any, ...]]
COLUMNS = {"id": "long", "name": "string", "price": "double"}


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    return lake.catalog


def make(catalog: LakeCatalog, *files: Sequence[tuple[Any, ...]], **options: Any) -> None:
    """A table with one file, or one for each partition, for each list of rows."""
    defined = define_table(COLUMNS, **options)
    catalog.create_table(
        "t",
        defined.schema,
        partition_spec=defined.partition_spec,
        sort_order=defined.sort_order,
        properties={"commit.retry.min-wait-ms": "1", "commit.retry.num-retries": "6"},
    )
    for rows in files:
        insert_rows(catalog, "t", [dict(zip(COLUMNS, row, strict=True)) for row in rows])


def rows(catalog: LakeCatalog, **scan: Any) -> Rows:
    found = catalog.load_table("t").scan(**scan).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def paths(catalog: LakeCatalog) -> set[str]:
    return {task.file.file_path for task in catalog.load_table("t").scan().plan_files()}


A = (1, "a", 1.0)
B = (2, "b", None)
C = (3, "c", 3.0)
D = (4, None, 4.0)


def test_delete_rewrites_only_the_files_that_lose_rows(catalog: LakeCatalog) -> None:
    make(catalog, [A, B], [C, D])
    before = paths(catalog)
    change = delete_rows(catalog, "t", "id = 3")
    assert (change.deleted_rows, change.added_files, change.deleted_files) == (1, 1, 1)
    assert rows(catalog) == [A, B, D]
    assert len(before & paths(catalog)) == 1
    assert change.snapshot_id == catalog.load_table("t").metadata.current_snapshot_id


def test_a_file_of_which_all_rows_go_is_not_written_anew(catalog: LakeCatalog) -> None:
    make(catalog, [A, B], [C, D])
    change = delete_rows(catalog, "t", "id <= 2")
    assert (change.deleted_rows, change.added_files, change.deleted_files) == (2, 0, 1)
    assert rows(catalog) == [C, D]
    assert delete_rows(catalog, "t", "true").deleted_rows == 2
    assert rows(catalog) == []
    assert delete_rows(catalog, "t", "true").snapshot_id is None


def test_rows_for_which_the_condition_is_null_stay(catalog: LakeCatalog) -> None:
    make(catalog, [A, B, C, D])
    assert delete_rows(catalog, "t", "price > 2").deleted_rows == 2
    assert rows(catalog) == [A, B]
    assert delete_rows(catalog, "t", "(price > 2) IS NOT TRUE").deleted_rows == 2
    assert rows(catalog) == []


def test_nan_is_above_every_number(catalog: LakeCatalog) -> None:
    make(catalog, [A, (9, "n", math.nan)])
    assert delete_rows(catalog, "t", "price > 1e300").deleted_rows == 1
    assert rows(catalog) == [A]


def test_a_change_that_changes_nothing_makes_no_snapshot(catalog: LakeCatalog) -> None:
    make(catalog, [A, B])
    before = catalog.load_table("t").metadata.current_snapshot_id
    changes = [
        delete_rows(catalog, "t", "id = 77"),
        update_rows(catalog, "t", {"name": "x"}, "id = 77"),
        update_rows(catalog, "t", {"name": "a", "price": Expression("id")}, "id = 1"),
        update_rows(catalog, "t", {"price": None}, "id = 2"),
        upsert_rows(catalog, "t", [{"id": 1, "name": "a", "price": 1.0}], ["id"]),
        upsert_rows(catalog, "t", [{"id": 2}], ["id"]),
        upsert_rows(catalog, "t", [], ["id"]),
    ]
    assert [change.snapshot_id for change in changes] == [None] * 7
    assert not any(change.updated_rows for change in changes)
    assert catalog.load_table("t").metadata.current_snapshot_id == before


def test_update_sets_values_and_works_out_expressions(catalog: LakeCatalog) -> None:
    make(catalog, [A, B], [C, D])
    updates = {"name": "new", "price": Expression("price + id"), "id": Expression("id * 10")}
    change = update_rows(catalog, "t", updates, "id IN (2, 3)")
    assert (change.updated_rows, change.inserted_rows, change.deleted_rows) == (2, 0, 0)
    assert rows(catalog) == sorted([A, D, (20, "new", None), (30, "new", 6.0)], key=repr)
    assert update_rows(catalog, "t", {"name": None}).updated_rows == 3
    assert {row[1] for row in rows(catalog)} == {None}


def test_update_leaves_files_alone_whose_rows_have_the_values(catalog: LakeCatalog) -> None:
    make(catalog, [A, B], [(5, "z", 5.0), (6, "z", 6.0)], [(7, "z", 7.0), (8, "y", 8.0)])
    before = paths(catalog)
    change = update_rows(catalog, "t", {"name": "z"}, "id > 4")
    assert (change.updated_rows, change.added_files, change.deleted_files) == (1, 1, 1)
    assert len(before & paths(catalog)) == 2
    assert [row for row in rows(catalog) if row[0] > 6] == [(7, "z", 7.0), (8, "z", 8.0)]


def test_update_moves_rows_to_their_new_partitions(catalog: LakeCatalog) -> None:
    make(catalog, [A, B, C, D], partition_by=["name", "bucket(3, id)"], sort_by=["price desc"])
    update_rows(catalog, "t", {"name": Expression("upper(name) || 'X'")}, "id < 3")
    assert rows(catalog) == sorted([(1, "AX", 1.0), (2, "BX", None), C, D], key=repr)
    assert rows(catalog, row_filter="name = 'AX'") == [(1, "AX", 1.0)]


@pytest.mark.parametrize(
    "updates",
    [
        {"id": "text"},
        {"id": 2**63},
        {"id": Expression("name")},
        {"id": Expression("id * 9223372036854775807")},
        {"name": Expression("id")},
        {"nmae": "x"},
        {"price": Expression("(SELECT 1)")},
        {"price": Expression("random()")},
        {"id": Expression("CAST(name AS BIGINT)")},
        {},
    ],
)
def test_an_update_that_does_not_fit_leaves_the_table_as_it_was(
    catalog: LakeCatalog, updates: dict[str, object]
) -> None:
    make(catalog, [A, B], [C, D])
    before = paths(catalog)
    with pytest.raises(InvalidRequest):
        update_rows(catalog, "t", updates)
    assert paths(catalog) == before
    assert _files_on_disk(catalog) == len(before)


def test_a_required_column_does_not_become_null(catalog: LakeCatalog) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64())])
    catalog.create_table("t", define_table(schema).schema)
    insert_rows(catalog, "t", [{"id": 1}])
    for null in (None, Expression("NULL"), Expression("x")):
        with pytest.raises(InvalidRequest, match="id"):
            update_rows(catalog, "t", {"id": null})
    assert _files_on_disk(catalog) == 1


def _files_on_disk(catalog: LakeCatalog) -> int:
    location = Path(catalog.load_table("t").location().removeprefix("file://"))
    return len(list(location.rglob("*.parquet")))


def test_upsert_updates_and_inserts(catalog: LakeCatalog) -> None:
    make(catalog, [A, B], [C, D])
    before = paths(catalog)
    data = [
        {"id": 2, "name": "b2", "price": math.nan},
        {"id": 1, "name": "a", "price": 1.0},
        {"id": 9, "name": "new", "price": None},
    ]
    change = upsert_rows(catalog, "t", data, ["id"])
    assert (change.updated_rows, change.inserted_rows) == (1, 1)
    expected = sorted([A, (2, "b2", math.nan), C, D, (9, "new", None)], key=repr)
    assert repr(rows(catalog)) == repr(expected)
    assert len(before & paths(catalog)) == 1
    assert upsert_rows(catalog, "t", data, ["id"]).snapshot_id is None


def test_upsert_by_several_keys_never_matches_null(catalog: LakeCatalog) -> None:
    make(catalog, [A, D], partition_by=["truncate(1, name)"])
    data = [{"id": 1, "name": "b", "price": 9.0}, {"id": 1, "name": "a", "price": 8.0}]
    change = upsert_rows(catalog, "t", data, ["id", "name"])
    assert (change.updated_rows, change.inserted_rows) == (1, 1)
    assert rows(catalog) == sorted([(1, "a", 8.0), (1, "b", 9.0), D], key=repr)


def test_upsert_of_many_keys_reads_only_files_that_may_have_them(catalog: LakeCatalog) -> None:
    make(catalog, *([(n * 1000 + m, "x", 0.0) for m in range(1000)] for n in range(4)))
    before = paths(catalog)
    data = [{"id": 1000 + m, "name": "y", "price": 0.0} for m in range(300, 900)]
    assert upsert_rows(catalog, "t", data, ["id"]).updated_rows == 600
    assert len(before & paths(catalog)) == 3
    assert sum(row[1] == "y" for row in rows(catalog)) == 600


def test_the_last_of_many_keys_is_looked_for_too(catalog: LakeCatalog) -> None:
    make(catalog, [(5, "x", 0.0)], [(10_000, "x", 0.0)])
    data = [{"id": n, "name": "y", "price": 0.0} for n in (*range(300), 10_000)]
    change = upsert_rows(catalog, "t", data, ["id"])
    assert (change.updated_rows, change.inserted_rows) == (2, 299)


@pytest.mark.parametrize(
    ("data", "keys", "said"),
    [
        ([{"id": 1, "name": "x"}, {"id": 1, "name": "y"}], ["id"], r"same key id: 1 \(2 times\)"),
        ([{"id": 1}, {"id": 1}], ["id", "price"], "row 1, column 'price': a key is null"),
        ([{"id": None}], ["id"], "a key is null"),
        ([{"id": 1}], ["idd"], "no column 'idd'.*did you mean 'id'"),
        ([{"id": 1}], [], "needs a key"),
        ([{"id": 1}], ["id", "id"], "names column 'id' twice"),
    ],
)
def test_keys_that_do_not_tell_rows_apart_are_refused(
    catalog: LakeCatalog, data: list[dict[str, Any]], keys: list[str], said: str
) -> None:
    make(catalog, [A, B])
    with pytest.raises(InvalidRequest, match=said):
        upsert_rows(catalog, "t", data, keys)
    assert rows(catalog) == [A, B]


CHANGES: list[tuple[Callable[[LakeCatalog], Change], Rows]] = [
    (lambda c: delete_rows(c, "t", "id = 3"), [A, (5, "e", 5.0)]),
    (lambda c: update_rows(c, "t", {"price": 0.0}, "id = 3"), [A, (3, "c", 0.0), (5, "e", 5.0)]),
    (
        lambda c: upsert_rows(c, "t", [{"id": 3, "name": "z"}, {"id": 2, "name": "back"}], ["id"]),
        [A, (2, "back", None), (3, "z", 3.0), (5, "e", 5.0)],
    ),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES, ids=["delete", "update", "upsert"])
@pytest.mark.parametrize("partition_by", [[], ["truncate(1, name)"]])
def test_rows_that_were_deleted_by_position_do_not_come_back(
    catalog: LakeCatalog,
    change: Callable[[LakeCatalog], Change],
    expected: Rows,
    partition_by: list[str],
) -> None:
    make(catalog, [A, B, C, D, (5, "e", 5.0)], partition_by=partition_by)
    table = catalog.load_table("t")
    gone = {}
    for task in table.scan().plan_files():
        names = pq.read_table(task.file.file_path.removeprefix("file://"))["id"].to_pylist()
        places = [place for place, n in enumerate(names) if n in {2, 4}]
        if places:
            gone[task.file.file_path] = places
    delete_positions(table, gone)
    assert rows(catalog) == [A, C, (5, "e", 5.0)]
    change(catalog)
    assert rows(catalog) == sorted(expected, key=repr)


def test_the_bounds_of_deletes_do_not_hide_them(catalog: LakeCatalog) -> None:
    make(catalog, [A, B, C])
    (path,) = paths(catalog)
    two = (2).to_bytes(8, "little")
    delete_positions(catalog.load_table("t"), {path: [1]}, row_bounds={1: two})
    assert update_rows(catalog, "t", {"price": 0.0}, "id = 3").updated_rows == 1
    assert rows(catalog) == [A, (3, "c", 0.0)]


def test_a_file_that_lost_rows_meanwhile_is_worked_out_again(catalog: LakeCatalog) -> None:
    make(catalog, [A, B, C])
    (path,) = paths(catalog)

    def somebody_is_first(commit: Any) -> Any:
        delete_positions(catalog.load_table("t"), {path: [1]})
        return commit()

    with lying(catalog, somebody_is_first):
        update_rows(catalog, "t", {"price": 0.0}, "id = 3")
    assert rows(catalog) == [A, (3, "c", 0.0)]


def test_equality_deletes_are_left_to_spark(catalog: LakeCatalog) -> None:
    make(catalog, [A, B], [C, D])
    delete_equal(catalog.load_table("t"), "id", [4])
    for change, _ in CHANGES:
        with pytest.raises(InvalidRequest, match=r'(?s)equality deletes.*engine="spark"'):
            change(catalog)


def test_a_change_on_a_branch_leaves_main_alone(catalog: LakeCatalog) -> None:
    make(catalog, [A, B, C])
    create_branch(catalog.load_table("t"), "b")
    insert_rows(catalog, "t", [{"id": 50}], branch="b")
    assert delete_rows(catalog, "t", "id = 2", branch="b").branch == "b"
    assert (
        upsert_rows(catalog, "t", [{"id": 50, "name": "x"}], ["id"], branch="b").updated_rows == 1
    )
    assert rows(catalog) == [A, B, C]
    head = catalog.load_table("t").snapshot_by_name("b")
    assert head is not None
    assert rows(catalog, snapshot_id=head.snapshot_id) == [A, C, (50, "x", None)]


def test_the_newest_names_count_on_every_branch(catalog: LakeCatalog) -> None:
    make(catalog, [A, B, C])
    create_branch(catalog.load_table("t"), "b")
    with catalog.load_table("t").update_schema() as update:
        update.rename_column("name", "old_name")
    with catalog.load_table("t").update_schema() as update:
        update.add_column("name", define_table({"x": "string"}).schema.fields[0].field_type)
    assert delete_rows(catalog, "t", "name = 'a'", branch="b").snapshot_id is None
    assert delete_rows(catalog, "t", "old_name = 'a'", branch="b").deleted_rows == 1
    assert update_rows(catalog, "t", {"name": "n"}, "name IS NULL").updated_rows == 3


@pytest.mark.parametrize(("change", "_"), CHANGES, ids=["delete", "update", "upsert"])
@pytest.mark.parametrize("lie", [lies.applies_then_fails, lies.applies_then_refuses])
def test_a_change_that_happened_is_not_done_again(
    catalog: LakeCatalog, change: Callable[[LakeCatalog], Change], _: Rows, lie: lies.Lie
) -> None:
    make(catalog, [A, B, C])
    with lying(catalog, lie):
        done = change(catalog)
    table = catalog.load_table("t")
    assert table.metadata.current_snapshot_id == done.snapshot_id
    assert len(table.metadata.snapshots) == 2
    rows(catalog)


def test_files_that_others_added_meanwhile_are_changed_too_and_no_file_twice(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(catalog, [A, C], [B, D])
    worked_out: list[str] = []
    honest = FileReader.batches

    def counted(self: FileReader, task: Any, columns: Any = None) -> Any:
        if columns is None:
            worked_out.append(task.file.file_path)
        return honest(self, task, columns)

    monkeypatch.setattr(FileReader, "batches", counted)

    def somebody_is_first(commit: Any) -> Any:
        insert_rows(catalog, "t", [{"id": 100, "price": 3.0}, {"id": 101}])
        return commit()

    with lying(catalog, somebody_is_first, lambda commit: commit(), somebody_is_first):
        change = update_rows(catalog, "t", {"name": "hit"}, "price >= 3")
    assert change.updated_rows == 4
    assert sum(row[1] == "hit" for row in rows(catalog)) == 4
    assert len(worked_out) == len(set(worked_out)) == 4
    assert _files_on_disk(catalog) == len(paths(catalog)) + 4


def test_files_that_others_replaced_meanwhile_are_worked_out_again(catalog: LakeCatalog) -> None:
    make(catalog, [A, C], [B, D])

    def somebody_is_first(commit: Any) -> Any:
        update_rows(catalog, "t", {"price": Expression("price + 10")}, "id = 1")
        return commit()

    with lying(catalog, somebody_is_first):
        update_rows(catalog, "t", {"price": Expression("price + 1")})
    assert rows(catalog) == sorted([(1, "a", 12.0), B, (3, "c", 4.0), (4, None, 5.0)], key=repr)
    with lying(catalog, lambda commit: (delete_rows(catalog, "t", "id = 3"), commit())[1]):
        data = [{"id": 3, "name": "again"}, {"id": 4, "name": "d"}]
        change = upsert_rows(catalog, "t", data, ["id"])
    assert (change.updated_rows, change.inserted_rows) == (1, 1)
    assert rows(catalog) == sorted([(1, "a", 12.0), B, (3, "again", None), (4, "d", 5.0)], key=repr)


def test_new_keys_that_others_insert_meanwhile_are_not_inserted_again(catalog: LakeCatalog) -> None:
    make(catalog, [A])

    def somebody_is_first(commit: Any) -> Any:
        insert_rows(catalog, "t", [{"id": 9, "name": "theirs"}])
        return commit()

    data = [{"id": 9, "name": "ours"}, {"id": 10, "name": "new"}]
    with lying(catalog, somebody_is_first):
        change = upsert_rows(catalog, "t", data, ["id"])
    assert (change.updated_rows, change.inserted_rows) == (1, 1)
    assert rows(catalog) == sorted([A, (9, "ours", None), (10, "new", None)], key=repr)


def test_a_change_that_always_comes_second_gives_up_and_leaves_nothing(
    catalog: LakeCatalog,
) -> None:
    make(catalog, [A, B])
    with lying(catalog, *[lies.refuses] * 7), pytest.raises(Conflict):
        update_rows(catalog, "t", {"name": "x"})
    assert rows(catalog) == [A, B]
    assert _files_on_disk(catalog) == 1
