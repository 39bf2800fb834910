"""What a writer makes a table remember stays bounded, and nothing goes that somebody wants."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from calve.lake import Lake
from tests.integration.writing import ids, rows, snapshots, writer_for

KEEP_10 = {"calve.snapshots.keep": "10"}


def kept(lake: Lake) -> set[int]:
    return {each.snapshot_id for each in lake.catalog.load_table("t").metadata.snapshots}


def write(lake: Lake, count: int, *, start: int = 0) -> None:
    with writer_for(lake) as writer:
        for n in range(start, start + count):
            writer.write_batch(rows(1, start=n))


@pytest.mark.parametrize(
    ("properties", "left"),
    [
        ({}, 100),
        (KEEP_10, 10),
        (KEEP_10 | {"history.expire.min-snapshots-to-keep": "14"}, 14),
        (KEEP_10 | {"history.expire.max-snapshot-age-ms": "3600000"}, 16),
    ],
)
def test_snapshots_stay_few_unless_the_table_wants_more(
    lake: Lake, properties: dict[str, str], left: int
) -> None:
    lake.tables.create_table("t", {"id": "long"}, properties=properties)
    count = 105 if left == 100 else 16
    write(lake, count)
    assert snapshots(lake) == left
    assert ids(lake) == list(range(count))


def test_metadata_files_and_manifests_stay_few(lake: Lake) -> None:
    few = {**KEEP_10, "write.metadata.previous-versions-max": "3"}
    lake.tables.create_table("t", {"id": "long"}, properties=few)
    write(lake, 40)
    table = lake.catalog.load_table("t")
    place = Path(table.location().removeprefix("file://"))
    assert len(list(place.rglob("*.metadata.json"))) <= 4
    head = table.current_snapshot()
    assert head is not None
    assert len(head.manifests(table.io)) < 32
    assert ids(lake) == list(range(40))
    # A commit deletes no manifests; expiry does, as soon as nobody can be about to commit them.
    assert len(list((place / "metadata").glob("*.avro"))) > 60
    assert lake.tables.expire_snapshots("t", 30).files == ()
    age(place)
    would = lake.tables.expire_snapshots("t", 30, dry_run=True)
    cleared = lake.tables.expire_snapshots("t", 30)
    assert (len(would.files) > 30, would.files) == (True, cleared.files)
    assert lake.tables.remove_orphans("t", older_than_days=0).files == ()
    assert len(list((place / "metadata").glob("*.avro"))) < 45
    assert ids(lake) == list(range(40))


def test_data_files_of_forgotten_snapshots_go_with_their_manifests(lake: Lake) -> None:
    lake.tables.create_table("t", {"id": "long"})
    lake.tables.insert_data("t", [{"id": 1}])
    lake.tables.insert_data("t", [{"id": 2}])
    lake.tables.delete_data("t", "id = 1")
    table = lake.catalog.load_table("t")
    place = Path(table.location().removeprefix("file://"))
    # As a commit does that keeps snapshots few: none of their files is touched.
    for snapshot in table.metadata.snapshots[:2]:
        table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    (torn := place / "metadata" / f"{uuid4()}-m0.avro").write_bytes(b"Obj")
    (stranger := place / "metadata" / "mine.avro").write_bytes(b"x")
    age(place)
    gone = {Path(file).name for file in lake.tables.expire_snapshots("t", 30).files}
    assert torn.name in gone
    assert len(list(place.rglob("*.parquet"))) == 1
    assert stranger.exists()
    assert ids(lake) == [2]


def age(place: Path) -> None:
    """Make all files older than any work that could be under way."""
    for file in place.rglob("*.*"):
        os.utime(file, (0, 0))


def test_metadata_that_somebody_wants_to_keep_is_kept(lake: Lake) -> None:
    wanted = {
        "write.metadata.delete-after-commit.enabled": "false",
        "write.metadata.previous-versions-max": "3",
    }
    lake.tables.create_table("t", {"id": "long"}, properties=wanted)
    write(lake, 8)
    place = Path(lake.catalog.load_table("t").location().removeprefix("file://"))
    assert len(list(place.rglob("*.metadata.json"))) == 9


def test_what_others_made_or_a_name_leads_to_is_not_a_writers_to_forget(lake: Lake) -> None:
    lake.tables.create_table("t", {"id": "long"}, properties=KEEP_10)
    write(lake, 1)
    lake.tables.create_tag("t", "first")
    by_hand = {lake.tables.insert_data("t", [{"id": n}]).snapshot_id for n in range(100, 103)}
    write(lake, 1, start=1)
    lake.tables.create_branch("t", "audit")
    audited = lake.tables.insert_data("t", [{"id": 200}], branch="audit").snapshot_id
    refs = lake.catalog.load_table("t").metadata.refs
    named = {ref.snapshot_id for name, ref in refs.items() if name != "main"}
    write(lake, 20, start=2)
    assert by_hand | named | {audited} <= kept(lake)
    assert snapshots(lake) == 10 + len(by_hand) + 2
    assert ids(lake) == [*range(22), 100, 101, 102]


@pytest.mark.parametrize(
    "wish", [{"min_snapshots_to_keep": 5}, {"max_snapshot_age_ms": 3_600_000}], ids=str
)
def test_what_a_branch_wants_to_keep_stays(lake: Lake, wish: dict[str, int]) -> None:
    lake.tables.create_table("t", {"id": "long"}, properties=KEEP_10)
    write(lake, 5)
    before = kept(lake)
    table = lake.catalog.load_table("t")
    with table.manage_snapshots() as manage:
        head = table.current_snapshot()
        assert head is not None
        manage.create_branch(head.snapshot_id, "audit", **wish)
    write(lake, 20, start=5)
    assert before <= kept(lake)
