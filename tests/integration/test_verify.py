"""The auditor finds what was done to a table by hand, with the exact ranges, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFile

from calve.errors import Conflict, InvalidRequest, NotFound
from calve.lake import Lake
from calve.maintenance import verify
from calve.maintenance.sweep import _Sweeper, sweep
from calve.maintenance.verification import PartitionReport, Verification
from calve.maintenance.verify import verify_topic
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.expiry import expire_snapshots
from calve.tables.offset_scan import OffsetFile, OffsetReader, Piece
from calve.tables.ranges import Range
from calve.tables.schemas import define_table
from calve.tables.staging import Edit
from tests.fakes.defects import compact, forget
from tests.fakes.delete_files import delete_equal, delete_positions
from tests.fakes.topic_table import data_files, feed, make_topic_table, small_chunks, topic_rows


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    make_topic_table(lake.catalog)
    return lake.catalog


def verified(catalog: LakeCatalog) -> Verification:
    return verify_topic(catalog, "t")


def only(found: Verification) -> PartitionReport:
    (report,) = found.partitions
    return report


def text(ranges: Iterable[Range]) -> str:
    return ",".join(map(str, ranges))


def edit(catalog: LakeCatalog, change: Edit) -> int:
    return TableCommit(catalog.load_table("t")).attempt(change).snapshot_id


def file_of(catalog: LakeCatalog, offset: int) -> DataFile:
    scan = catalog.load_table("t").scan(row_filter=f"_calve_offset = {offset}")
    (found,) = (task.file for task in scan.plan_files())
    return found


def test_a_table_that_was_only_fed_is_sound(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    feed(catalog, range(50), partition=3)
    last = feed(catalog, range(100, 250))
    found = verified(catalog)
    assert (found.is_sound, found.snapshot_id, found.rows) == (True, last, 300)
    assert [(each.partition, each.committed, each.rows) for each in found.partitions] == [
        (0, 250, 250),
        (3, 50, 50),
    ]


def test_an_empty_topic_is_sound(catalog: LakeCatalog) -> None:
    found = verified(catalog)
    assert found.is_sound
    assert found.partitions == ()


def test_a_file_that_a_manifest_has_lost_is_missing(catalog: LakeCatalog) -> None:
    for start in (0, 100, 200):
        feed(catalog, range(start, start + 100))
    forget(catalog.load_table("t"), [file_of(catalog, 150).file_path])
    found = verified(catalog)
    assert not found.is_sound
    assert text(only(found).missing) == "100-200"
    assert only(found).rows == 200


def test_a_compaction_that_loses_rows_is_a_defect(catalog: LakeCatalog) -> None:
    for start in (0, 100, 200):
        feed(catalog, range(start, start + 100))
    table = catalog.load_table("t")
    lossy = data_files(table, topic_rows([*range(100), *range(103, 197)]))
    compact(table, [file_of(catalog, 50), file_of(catalog, 150)], lossy)
    found = only(verified(catalog))
    assert (text(found.missing), found.removed) == ("100-103,197-200", ())


def test_a_compaction_that_loses_nothing_is_sound(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    feed(catalog, range(100, 200))
    table = catalog.load_table("t")
    mixed = data_files(table, topic_rows([*range(199, -1, -1)]))
    compact(table, [file_of(catalog, 50), file_of(catalog, 150)], mixed)
    assert verified(catalog).is_sound


def test_a_file_that_was_added_twice_is_doubled(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    feed(catalog, range(100, 200))
    edit(catalog, Edit(added=[file_of(catalog, 150)]))
    found = only(verified(catalog))
    assert (text(found.doubled), text(found.missing), found.rows) == ("100-200", "", 300)


def test_a_row_that_was_rewritten_twice_is_doubled(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    table = catalog.load_table("t")
    again = data_files(table, topic_rows([*range(100), 17, 17, 40]))
    edit(catalog, Edit(added=again, removed=[file_of(catalog, 0)]))
    assert text(only(verified(catalog)).doubled) == "17-18,40-41"


def test_a_range_that_was_skipped_is_missing(catalog: LakeCatalog) -> None:
    feed(catalog, range(10, 100))
    feed(catalog, range(120, 200), end=230)
    assert text(only(verified(catalog)).missing) == "0-10,100-120,200-230"


def test_rows_beyond_the_committed_offset_are_a_defect(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    edit(catalog, Edit(added=data_files(catalog.load_table("t"), topic_rows([150, 151]))))
    edit(catalog, Edit(added=data_files(catalog.load_table("t"), topic_rows([5], partition=9))))
    edit(catalog, Edit(added=data_files(catalog.load_table("t"), topic_rows([-4]))))
    found = verified(catalog)
    assert not found.is_sound
    assert [text(each.beyond) for each in found.partitions] == ["-4--3,150-152", "5-6"]


def test_rows_without_an_offset_are_counted_and_are_no_defect(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    edit(catalog, Edit(added=data_files(catalog.load_table("t"), topic_rows([None] * 7))))
    found = verified(catalog)
    assert (found.is_sound, found.rows, found.unnumbered_rows) == (True, 107, 7)


def test_what_a_kept_snapshot_took_out_was_removed_by_it(catalog: LakeCatalog) -> None:
    for start in (0, 100, 200):
        feed(catalog, range(start, start + 100))
    table = catalog.load_table("t")
    kept = data_files(table, topic_rows([*range(100, 110), *range(120, 200)]))
    overwrite = edit(catalog, Edit(added=kept, removed=[file_of(catalog, 150)]))
    delete = edit(catalog, Edit(removed=[file_of(catalog, 0)]))
    found = verified(catalog)
    assert found.is_sound
    assert text(only(found).removed) == "0-100,110-120"
    assert [(each.snapshot_ids, text(each.ranges)) for each in only(found).removed_by] == [
        ((delete,), "0-100"),
        ((overwrite,), "110-120"),
    ]


def test_removed_on_purpose_does_not_hide_what_is_missing(catalog: LakeCatalog) -> None:
    for start in (0, 100, 200):
        feed(catalog, range(start, start + 100))
    edit(catalog, Edit(removed=[file_of(catalog, 0)]))
    forget(catalog.load_table("t"), [file_of(catalog, 250).file_path])
    found = only(verified(catalog))
    assert (text(found.removed), text(found.missing)) == ("0-100", "200-300")


def test_position_deletes_are_honoured(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    table = catalog.load_table("t")
    delete_positions(table, {file_of(catalog, 0).file_path: [3, 4, 50]})
    found = only(verified(catalog))
    assert (found.rows, text(found.removed)) == (97, "3-5,50-51")


def test_equality_deletes_are_refused_with_the_way_out(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    delete_equal(catalog.load_table("t"), "id", [5])
    with pytest.raises(InvalidRequest, match="equality deletes") as caught:
        verified(catalog)
    assert "compact" in (caught.value.hint or "")


def test_what_is_recorded_as_removed_is_not_missing(catalog: LakeCatalog) -> None:
    feed(catalog, [*range(40), *range(60, 80), 90], end=100)
    record(catalog, "40-60,80-100:15")
    found = only(verified(catalog))
    assert (text(found.removed), text(found.missing)) == ("40-60,80-100:15", "80-100:4")


def record(catalog: LakeCatalog, ranges: str) -> None:
    edit(catalog, Edit(properties={"calve.removed.0": ranges}))


def test_where_the_record_is_not_exact_numbers_decide(catalog: LakeCatalog) -> None:
    feed(catalog, [0, 1, 4, 5, 8, 9], end=10)
    record(catalog, "0-10:4")
    found = only(verified(catalog))
    assert (text(found.removed), found.missing, found.returned) == ("2-4,6-8", (), 0)
    record(catalog, "0-10:6")
    assert only(verified(catalog)).returned == 2
    record(catalog, "0-10:3")
    found = only(verified(catalog))
    assert sum(each.count for each in found.missing) == 1
    assert sum(each.count for each in found.removed) == 3


def test_offsets_outside_the_bounds_of_their_file_are_a_defect(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    table = catalog.load_table("t")
    (file,) = data_files(table, topic_rows(range(100, 200)))
    field = table.schema().find_field("_calve_offset").field_id
    file.lower_bounds[field] = file.upper_bounds[field]
    edit(catalog, Edit(added=[file]))
    feed(catalog, [], end=200)
    found = verified(catalog)
    assert not found.is_sound
    assert file.file_path in found.problems[0]


def test_others_may_commit_meanwhile(catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    first = feed(catalog, range(100))

    def sweeping(*given: Any) -> Any:
        feed(catalog, range(100, 200))
        return sweep(*given)

    monkeypatch.setattr(verify, "sweep", sweeping)
    found = verified(catalog)
    assert (found.is_sound, found.snapshot_id, only(found).committed) == (True, first, 100)


def rewritten_and_expired(catalog: LakeCatalog) -> None:
    """All files are replaced by others, and those before deleted."""
    files = [task.file for task in catalog.load_table("t").scan().plan_files()]
    rows = catalog.load_table("t").scan().to_arrow().cast(topic_rows([]).schema)
    compact(catalog.load_table("t"), files, data_files(catalog.load_table("t"), rows))
    expire_snapshots(catalog.load_table("t"), datetime.now(UTC) + timedelta(days=1))


def test_a_snapshot_that_expires_meanwhile_is_left_for_the_newest(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(catalog, range(100))
    seen = []

    def sweeping(*given: Any) -> Any:
        seen.append(given)
        if len(seen) <= 2:
            rewritten_and_expired(catalog)
        return sweep(*given)

    monkeypatch.setattr(verify, "sweep", sweeping)
    found = verified(catalog)
    assert (len(seen), found.is_sound, found.rows) == (3, True, 100)
    assert found.snapshot_id == catalog.load_table("t").metadata.current_snapshot_id


def test_snapshots_that_expire_all_the_time_are_an_error_within_bounds(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(catalog, range(100))

    def sweeping(*given: Any) -> Any:
        rewritten_and_expired(catalog)
        return sweep(*given)

    monkeypatch.setattr(verify, "sweep", sweeping)
    with pytest.raises(Conflict, match="expire while they are read"):
        verified(catalog)


def test_a_data_file_that_is_gone_is_named_and_the_others_are_counted(
    catalog: LakeCatalog,
) -> None:
    for start in (0, 100, 200):
        feed(catalog, range(start, start + 100))
    forget(catalog.load_table("t"), [file_of(catalog, 250).file_path])
    gone = file_of(catalog, 100).file_path
    catalog.load_table("t").io.delete(gone)
    found = verify_topic(catalog, "t", with_orphans=True)
    assert not found.is_sound
    (told,) = found.problems
    assert f"{gone} cannot be read, and its manifest has offsets 100-200 of partition 0" in told
    assert "missing" in told
    assert (text(only(found).missing), only(found).rows) == ("100-300", 100)


def test_a_file_that_cannot_be_read_hides_no_removal_and_explains_nothing(
    catalog: LakeCatalog,
) -> None:
    for start in (0, 100):
        feed(catalog, range(start, start + 100))
    table = catalog.load_table("t")
    kept = data_files(table, topic_rows(range(10, 100)))
    edit(catalog, Edit(added=kept, removed=[file_of(catalog, 0)]))
    edit(catalog, Edit(removed=[file_of(catalog, 150)]))
    table.io.delete(kept[0].file_path)
    found = verified(catalog)
    assert len(found.problems) == 2
    assert (text(only(found).missing), text(only(found).removed)) == ("0-100", "100-200")


def test_deletes_that_are_gone_are_named_with_the_files_they_belong_to(
    catalog: LakeCatalog,
) -> None:
    for start in (0, 100):
        feed(catalog, range(start, start + 100))
    table = catalog.load_table("t")
    data = file_of(catalog, 0).file_path
    delete_positions(table, {data: [3, 4]})
    (deletes,) = next(
        task.delete_files
        for task in catalog.load_table("t").scan().plan_files()
        if task.file.file_path == data
    )
    table.io.delete(deletes.file_path)
    found = verified(catalog)
    assert data in found.problems[0]
    assert Path(deletes.file_path).name in found.problems[0]
    assert (text(only(found).missing), only(found).rows) == ("0-100", 100)


@pytest.mark.parametrize("kind", ["data file", "footer", "manifest", "manifest list"])
def test_a_file_that_is_damaged_is_named(catalog: LakeCatalog, kind: str) -> None:
    feed(catalog, range(100_000))
    table = catalog.load_table("t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    data = file_of(catalog, 0).file_path
    location = {
        "manifest": manifest.manifest_path,
        "manifest list": snapshot.manifest_list,
    }.get(kind, data)
    path = Path(location.removeprefix("file://"))
    content = path.read_bytes()
    middle = len(content) // 2
    cut = content[: middle // 2] + bytes(middle) + content[middle // 2 + middle :]
    path.write_bytes(cut if kind == "data file" else content[:middle])
    found = verify_topic(catalog, "t", with_orphans=True)
    assert not found.is_sound
    assert "is damaged" in found.problems[0]
    assert location in found.problems[0]
    assert "restore" in found.problems[0]
    assert text(only(found).missing) == "0-100000"


@pytest.mark.parametrize("kind", ["manifest", "manifest list"])
def test_a_manifest_that_is_gone_is_named_and_the_others_are_read(
    catalog: LakeCatalog, kind: str
) -> None:
    for start in (0, 100):
        feed(catalog, range(start, start + 100))
    snapshot = catalog.load_table("t").current_snapshot()
    assert snapshot is not None
    newest = next(
        each.manifest_path
        for each in snapshot.manifests(catalog.load_table("t").io)
        if each.added_snapshot_id == snapshot.snapshot_id
    )
    gone = newest if kind == "manifest" else snapshot.manifest_list
    Path(gone.removeprefix("file://")).unlink()
    found = verify_topic(catalog, "t", with_orphans=True)
    assert not found.is_sound
    assert gone in found.problems[0]
    assert "missing" in found.problems[0]
    assert text(only(found).missing) == ("100-200" if kind == "manifest" else "0-200")


def test_no_offset_is_settled_while_a_file_may_still_hold_it(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(0, 2_000, 100):
        feed(catalog, range(start, start + 100))
    settled = threading.Event()
    settle, pieces = _Sweeper._settle, OffsetReader.pieces

    def settling(sweeper: _Sweeper, oldest: OffsetFile) -> None:
        settle(sweeper, oldest)
        settled.set()

    def slow(reader: OffsetReader, file: OffsetFile) -> Iterator[Piece]:
        if file.first == 100:
            assert settled.wait(10)
        yield from pieces(reader, file)

    monkeypatch.setattr(_Sweeper, "_settle", settling)
    monkeypatch.setattr(OffsetReader, "pieces", slow)
    with small_chunks():
        assert verified(catalog).is_sound


def test_a_table_that_no_topic_feeds_says_so(catalog: LakeCatalog) -> None:
    catalog.create_table("plain", define_table({"id": "long"}).schema)
    with pytest.raises(NotFound, match="no topic feeds it"):
        verify_topic(catalog, "plain")
    with pytest.raises(NotFound):
        verify_topic(catalog, "nowhere")


def test_data_files_that_no_snapshot_refers_to_are_listed(catalog: LakeCatalog) -> None:
    feed(catalog, range(100))
    table = catalog.load_table("t")
    (stray,) = data_files(table, topic_rows(range(5)))
    found = verify_topic(catalog, "t", with_orphans=True)
    assert found.is_sound
    assert found.orphans is not None
    assert [each.path for each in found.orphans] == [stray.file_path]
    assert verified(catalog).orphans is None
