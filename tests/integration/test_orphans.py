"""Files that nobody refers to are found, and only those; a purged table leaves none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.changes import delete_rows, insert_rows, update_rows
from calve.errors import Conflict, InvalidRequest, NotFound
from calve.lake import Lake
from calve.tables import orphans
from calve.tables.catalog import LakeCatalog
from calve.tables.expiry import expire_snapshots
from calve.tables.orphans import drop_and_purge, remove_orphans
from calve.tables.own_files import file_name, own_files
from calve.tables.references import create_branch, create_tag
from calve.tables.schemas import define_table

NOW = timedelta()


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    defined = define_table({"id": "long", "p": "string"}, partition_by=["p"])
    lake.catalog.create_table("t", defined.schema, partition_spec=defined.partition_spec)
    insert_rows(lake.catalog, "t", [{"id": n, "p": f"p{n % 3}"} for n in range(9)])
    return lake.catalog


def root(catalog: LakeCatalog) -> Path:
    return Path(catalog.load_table("t").location().removeprefix("file://"))


def test_a_table_with_a_history_has_no_orphans(catalog: LakeCatalog) -> None:
    create_tag(catalog.load_table("t"), "first")
    create_branch(catalog.load_table("t"), "b")
    update_rows(catalog, "t", {"p": "x"}, "id = 1")
    delete_rows(catalog, "t", "id = 2", branch="b")
    found = remove_orphans(catalog.load_table("t"), NOW)
    assert found.files == ()
    table = catalog.load_table("t")
    for snapshot in table.metadata.snapshots:
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows >= 8


def test_what_nobody_refers_to_is_removed_when_it_is_old_enough(catalog: LakeCatalog) -> None:
    strays = [
        root(catalog) / "data" / "p=p0" / "stray.parquet",
        root(catalog) / "metadata" / "x.avro",
    ]
    for stray in strays:
        stray.write_bytes(b"12345")
    table = catalog.load_table("t")
    assert remove_orphans(table, timedelta(hours=1)).files == ()
    would = remove_orphans(table, NOW, dry_run=True)
    assert {Path(file).name for file in would.files} == {"stray.parquet", "x.avro"}
    assert (would.bytes, would.is_dry_run) == (10, True)
    assert all(stray.exists() for stray in strays)
    assert remove_orphans(table, NOW).files == would.files
    assert not any(stray.exists() for stray in strays)
    assert catalog.load_table("t").scan().to_arrow().num_rows == 9
    with pytest.raises(InvalidRequest):
        remove_orphans(table, -timedelta(1))


def test_what_lies_beside_the_tables_directories_is_not_looked_at(catalog: LakeCatalog) -> None:
    stranger = root(catalog) / "notes" / "mine.parquet"
    stranger.parent.mkdir()
    stranger.write_text("x")
    assert remove_orphans(catalog.load_table("t"), NOW).files == ()
    drop_and_purge(catalog, "t")
    assert stranger.exists()


def test_a_directory_that_is_reached_by_a_link_keeps_its_files(
    catalog: LakeCatalog, tmp_path: Path
) -> None:
    table = catalog.load_table("t")
    link = tmp_path / "link"
    link.symlink_to(root(catalog))
    table.metadata = table.metadata.model_copy(update={"location": f"file://{link}"})
    listed = list(own_files(table))
    assert listed
    assert all(str(link) in file.location for file in listed)
    needed = {file_name(file) for file in orphans.needed_files(table)}
    assert {file_name(file.location) for file in listed} - needed == {"version-hint.text"}


def test_expiry_leaves_no_orphans(catalog: LakeCatalog) -> None:
    for n in range(3):
        update_rows(catalog, "t", {"p": f"new{n}"}, f"id = {n}")
    table = catalog.load_table("t")
    assert expire_snapshots(table, datetime.now(UTC) + timedelta(hours=1)).files
    assert remove_orphans(catalog.load_table("t"), NOW).files == ()
    assert catalog.load_table("t").scan().to_arrow().num_rows == 9


def test_a_purged_table_leaves_nothing(catalog: LakeCatalog) -> None:
    place = root(catalog)
    would = drop_and_purge(catalog, "t", dry_run=True)
    assert len(would.files) >= 6
    assert catalog.load_table("t").scan().to_arrow().num_rows == 9
    assert drop_and_purge(catalog, "t").files == would.files
    assert not place.exists()
    with pytest.raises(NotFound):
        catalog.load_table("t")


def twin_of(catalog: LakeCatalog) -> None:
    """Another table, registered from this one's metadata, and changed since."""
    table = catalog.load_table("t")
    catalog.iceberg.register_table((*table.name()[:-1], "twin"), table.metadata_location)
    insert_rows(catalog, "twin", [{"id": 9, "p": "p0"}])


def deletions(lake: Lake, name: str) -> list[Callable[[], object]]:
    """All that deletes files of a table."""
    return [
        lambda: lake.tables.drop_table(name, purge=True),
        lambda: lake.tables.remove_orphans(name, older_than_days=0),
        lambda: lake.tables.expire_snapshots(name, 0),
    ]


@pytest.mark.parametrize("is_damaged", [False, True], ids=["readable", "unreadable"])
def test_a_place_that_two_tables_share_loses_no_file(
    lake: Lake, catalog: LakeCatalog, *, is_damaged: bool
) -> None:
    twin_of(catalog)
    delete_rows(catalog, "t", "true")
    pointer = Path(catalog.load_table("twin").metadata_location.removeprefix("file://"))
    text = pointer.read_text()
    if is_damaged:
        pointer.write_text("{")
    for delete in deletions(lake, "t"):
        with pytest.raises(Conflict, match="twin"):
            delete()
    pointer.write_text(text)
    assert catalog.load_table("twin").scan().to_arrow().num_rows == 10
    assert len(catalog.load_table("t").metadata.snapshots) == 2


def test_a_table_that_cannot_be_read_and_lies_elsewhere_is_in_nobodys_way(
    lake: Lake, catalog: LakeCatalog
) -> None:
    other = catalog.create_table("other", catalog.load_table("t").schema())
    Path(other.metadata_location.removeprefix("file://")).unlink()
    place = root(catalog)
    for delete in reversed(deletions(lake, "t")):
        delete()
    assert not place.exists()


def test_a_copied_table_still_needs_the_files_of_the_first(
    lake: Lake, catalog: LakeCatalog, tmp_path: Path
) -> None:
    table = catalog.load_table("t")
    copy = shutil.copytree(root(catalog) / "metadata", tmp_path / "copy" / "metadata")
    pointer = f"file://{copy}/{table.metadata_location.rpartition('/')[2]}"
    catalog.iceberg.register_table((*table.name()[:-1], "copy"), pointer)
    for delete in deletions(lake, "t"):
        with pytest.raises(Conflict, match="copy"):
            delete()


def test_a_file_that_lies_elsewhere_is_not_the_tables_to_delete(
    lake: Lake, catalog: LakeCatalog, tmp_path: Path
) -> None:
    shared = tmp_path / "shared.parquet"
    pq.write_table(pa.table({"id": [5]}), shared)
    for name in ("a", "b"):
        lake.tables.create_table(name, {"id": "long"})
        catalog.load_table(name).add_files([f"file://{shared}"])
    lake.tables.delete_data("a", "id = 5")
    assert f"file://{shared}" not in lake.tables.expire_snapshots("a", 0).files
    lake.tables.drop_table("a", purge=True)
    assert list(lake.tables.query_table("b")) == [{"id": 5}]


def test_a_table_that_forbids_it_loses_no_file(lake: Lake) -> None:
    lake.tables.create_table("g", {"id": "long"}, properties={"gc.enabled": "false"})
    lake.tables.insert_data("g", [{"id": 1}])
    first = lake.tables.list_snapshots("g")[0].id
    lake.tables.delete_data("g", "true")
    for delete in deletions(lake, "g"):
        with pytest.raises(InvalidRequest, match=r"gc\.enabled"):
            delete()
    assert list(lake.tables.query_snapshot("g", first)) == [{"id": 1}]
    lake.tables.drop_table("g")
