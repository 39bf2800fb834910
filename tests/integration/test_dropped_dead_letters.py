"""Dead letters that are dropped on purpose: recorded first, then dropped, with rows in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from calve.errors import Conflict, InvalidRequest, Unavailable
from calve.ingest import Intake
from calve.maintenance.verification import Verification
from calve.maintenance.verify import verify_topic
from calve.manager import IcebergManager
from calve.model import TableName
from calve.pipeline.backlog import Backlog
from calve.pipeline.feed import PartitionFeed, TopicFeed
from calve.pipeline.lane_work import PartitionWork
from calve.tables.catalog import LakeCatalog
from calve.tables.dead_letters import files_named_by
from calve.wal import Rejected
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Crash, Site, let_side_lane_end, site

ORDERS = TableName.parse("orders")
LETTERS = "orders__dead_letters"
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    """With a row and a dead letter, at offsets 0 and 1."""
    with site(make_settings(**AT_ONCE)) as made:
        made.create("orders", schema={"id": "long"}, on_unknown_column="dead_letter")
        send_both(made, 1)
        assert made.pipeline().drain(30)
        yield made
        let_side_lane_end()


def send_both(made: Site, number: int) -> None:
    """A good row, and a bad one."""
    made.intake.submit(ORDERS, [pa.record_batch({"id": [number]}), bad_row(number)]).wait()


def bad_row(number: int) -> list[Rejected]:
    return [Rejected(b'{"id": %d, "x": 1}' % number, "application/x-ndjson", "no column x")]


def audited(made: Site) -> Verification:
    found = verify_topic(made.catalog, ORDERS, own_log=made.settings.wal.path)
    assert found.is_sound, found
    return found


def stopped_with(made: Site) -> tuple[str, str]:
    (told,) = made.state.progress().partitions.values()
    return str(told.error), str(told.hint)


def drop(made: Site, *, purge: bool = False, before: Callable[[], object] | None = None) -> None:
    """Drop the dead letters; `before` comes between the record and the drop."""
    works = LakeCatalog.drop_table

    def late(self: LakeCatalog, name: TableName | str, *, only: UUID | None = None) -> None:
        if before is not None:
            before()
        works(self, name, only=only)

    with pytest.MonkeyPatch.context() as patch, IcebergManager(made.settings) as manager:
        patch.setattr(LakeCatalog, "drop_table", late)
        manager.drop_table(LETTERS, force=True, purge=purge)


def dies() -> None:
    raise Crash


def drop_half(made: Site, *, purge: bool = False) -> None:
    """Die after the record."""
    with suppress(Crash):
        drop(made, purge=purge, before=dies)
    assert made.catalog.find_table(LETTERS) is not None


@pytest.mark.parametrize("is_same_pipeline", [True, False])
@pytest.mark.parametrize("purge", [True, False])
def test_what_is_set_aside_between_record_and_drop_waits_for_a_new_table(
    lake_site: Site, *, purge: bool, is_same_pipeline: bool
) -> None:
    pipeline = lake_site.pipeline()
    assert pipeline.drain(30)

    def comes() -> None:
        lake_site.send("orders", [{"id": 2}])
        assert pipeline.drain(30), "nothing is set aside"
        send_both(lake_site, 3)
        assert not pipeline.drain(0.5)
        let_side_lane_end()
        error, hint = stopped_with(lake_site)
        assert f"the table {LETTERS} is being dropped" in error
        assert f"calve table drop --force {LETTERS}" in hint

    drop(lake_site, purge=purge, before=comes)
    assert (pipeline if is_same_pipeline else lake_site.pipeline()).drain(30)
    assert lake_site.rows("orders") == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert lake_site.offsets(LETTERS) == [4]
    assert [(each.first, each.end) for each in audited(lake_site).partitions[0].removed] == [(1, 2)]


@pytest.mark.parametrize("purge", [True, False])
def test_who_died_between_record_and_drop_does_it_again(lake_site: Site, *, purge: bool) -> None:
    drop_half(lake_site, purge=purge)
    send_both(lake_site, 2)
    pipeline = lake_site.pipeline()
    assert not pipeline.drain(0.5)
    let_side_lane_end()
    drop(lake_site, purge=purge)
    assert pipeline.drain(30)
    assert lake_site.offsets(LETTERS) == [3]
    assert audited(lake_site).dead_letters == 1


def test_dead_letters_that_were_to_be_dropped_are_kept_under_another_name(lake_site: Site) -> None:
    drop_half(lake_site)
    send_both(lake_site, 2)
    with IcebergManager(lake_site.settings) as manager:
        manager.rename_table(LETTERS, "kept", force=True)
    assert lake_site.pipeline().drain(30)
    assert (lake_site.offsets("kept"), lake_site.offsets(LETTERS)) == ([1], [3])
    audited(lake_site)


def test_what_waits_for_the_table_after_one_that_was_set_back_does_not_go_with_it(
    lake_site: Site,
) -> None:
    """Its files are named by the topic's table, and nothing says that the one of now had them."""
    older = lake_site.table(LETTERS)
    for number in (2, 3):
        send_both(lake_site, number)
        assert lake_site.pipeline().drain(30)
    lake_site.catalog.iceberg.drop_table(older.name())
    lake_site.catalog.iceberg.register_table(older.name(), older.metadata_location)
    for _ in range(2):
        drop_half(lake_site, purge=True)
        assert not lake_site.pipeline().drain(0.5)
        let_side_lane_end()
        assert lake_site.offsets(LETTERS) == [1], "nothing is added"
    drop(lake_site, purge=True)
    assert lake_site.pipeline().drain(30)
    assert lake_site.offsets(LETTERS) == [5]


@pytest.mark.parametrize("is_there", [True, False])
def test_files_that_are_there_come_into_the_next_table_when_theirs_is_gone(
    lake_site: Site, *, is_there: bool
) -> None:
    send_both(lake_site, 2)
    lake_site.run_until_crash("committed")
    fed = lake_site.table("orders")
    (file,) = files_named_by(fed)
    lake_site.catalog.drop_table(LETTERS)  # as another tool does
    if not is_there:
        fed.io.delete(file)
    drop(lake_site)
    send_both(lake_site, 3)
    assert lake_site.pipeline().drain(30)
    assert lake_site.offsets(LETTERS) == ([3, 5] if is_there else [5])


@pytest.mark.parametrize("purge", [True, False])
def test_a_table_that_was_made_meanwhile_is_not_dropped(lake_site: Site, *, purge: bool) -> None:
    """Of two who drop at once the later meets the table of the rows that came after the first."""

    def other() -> None:
        lake_site.catalog.iceberg.drop_table(lake_site.table(LETTERS).name())
        send_both(lake_site, 2)
        assert lake_site.pipeline().drain(30)

    with pytest.raises(Conflict, match="another one made"):
        drop(lake_site, purge=purge, before=other)
    assert lake_site.offsets(LETTERS) == [3]
    audited(lake_site)


def test_what_was_written_for_a_table_that_goes_is_written_again_for_the_next(
    lake_site: Site, make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a partition that is away until the next is there: who purges may still delete."""
    there = tmp_path / "there"
    both = make_settings(**AT_ONCE, pipeline__logs=str(there))
    second = make_settings(**AT_ONCE, wal__path=str(there), ingest__partition=1)
    send_both(lake_site, 2)
    works, away = Backlog._part, set[int]()

    def part(self: Backlog, feed: TopicFeed, each: PartitionFeed) -> PartitionWork | None:
        if each.number in away:
            raise Unavailable("its log is away")
        return works(self, feed, each)

    def reach(step: str) -> None:
        if step == "before commit" and lake_site.catalog.find_table("gone") is None:
            drop(lake_site)
            lake_site.catalog.create_table("gone", lake_site.table("orders").schema())
            away.add(1)

    monkeypatch.setattr(Backlog, "_part", part)
    with Intake(second) as intake:
        intake.submit(ORDERS, [bad_row(3)]).wait()
        pipeline = lake_site.pipeline(settings=both, reach=reach)
        pipeline.drain(1)
        let_side_lane_end()
        assert lake_site.offsets(LETTERS, 0) == [3]
        away.clear()
        assert pipeline.drain(30)
    letters = lake_site.table(LETTERS)
    files = [task.file.file_path for task in letters.scan().plan_files()]
    assert len(files) == 2
    assert all(file.startswith(f"{letters.location()}/") for file in files)


def test_a_purge_that_is_refused_records_nothing(lake_site: Site) -> None:
    with lake_site.table(LETTERS).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    before = lake_site.table("orders").metadata_location
    with pytest.raises(InvalidRequest, match=r"gc\.enabled"):
        drop(lake_site, purge=True)
    assert lake_site.table("orders").metadata_location == before
