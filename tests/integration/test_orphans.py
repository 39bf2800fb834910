"""Files that nobody refers to are found, and only those; a purged table leaves none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calve.changes import delete_rows, insert_rows, update_rows
from calve.errors import Conflict, InvalidRequest, NotFound
from calve.lake import Lake
from calve.tables import orphans
from calve.tables.catalog import LakeCatalog
from calve.tables.expiry import expire_snapshots
from calve.tables.orphans import drop_and_purge, remove_orphans
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
    listed = list(orphans._own_files(table))
    assert listed
    assert all(str(link) in file.location for file in listed)
    needed = {orphans._name(file) for file in orphans.needed_files(table)}
    assert {orphans._name(file.location) for file in listed} - needed == {"version-hint.text"}


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


def test_a_place_that_two_tables_share_is_not_purged(catalog: LakeCatalog) -> None:
    table = catalog.load_table("t")
    catalog.iceberg.register_table((*table.name()[:-1], "twin"), table.metadata_location)
    with pytest.raises(Conflict, match="twin"):
        drop_and_purge(catalog, "t")
    assert catalog.load_table("t").scan().to_arrow().num_rows == 9
