"""Dead letters from the front door through the pipeline to their table, and back again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from calve.errors import Conflict, InvalidRequest, NotFound
from calve.ingest.dead_letters.box import DeadLetters
from calve.maintenance.verification import Verification
from calve.maintenance.verify import verify_topic
from calve.manager import IcebergManager
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.tables import offset_scan
from calve.tables.commit import TableCommit
from calve.tables.dead_letters import ensure_dead_letter_table
from calve.tables.ranges import Range
from calve.tables.staging import Edit
from calve.topics import TopicChange
from calve.wal import Rejected
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site

ORDERS = TableName.parse("orders")
NDJSON = "application/x-ndjson"
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        made.create("orders", schema={"id": "long"}, on_unknown_column="dead_letter")
        yield made


def letters(made: Site) -> DeadLetters:
    return DeadLetters.of(made.intake, ORDERS)


def send(made: Site, *ids: int) -> None:
    """A good row, and a bad one, of each."""
    good = pa.record_batch({"id": list(ids)})
    bad = [Rejected(b'{"id": %d, "x": 1}' % (1000 + each), NDJSON, "no column x") for each in ids]
    made.intake.submit(ORDERS, [good, bad]).wait()


def audited(made: Site) -> Verification:
    found = verify_topic(made.catalog, ORDERS, own_log=made.settings.wal.path)
    assert found.is_sound, found
    return found


def ids(made: Site) -> list[int]:
    return sorted(row["id"] for row in made.rows("orders"))


POINTS = ("planned", "prepared", "written", "before commit", "committed", "dead letters committed")


@pytest.mark.parametrize("point", POINTS)
def test_a_bad_row_is_kept_and_set_aside(lake_site: Site, point: str) -> None:
    """Whatever dies, an offset is in one table or the other; and replayed, a row lands once."""
    send(lake_site, 1, 2)
    assert lake_site.pipeline().drain(30)
    assert (audited(lake_site).rows, audited(lake_site).dead_letters) == (2, 2)
    send(lake_site, 3)
    lake_site.run_until_crash(point)
    audited(lake_site)
    # What did not fit fits now, also what is still in the log.
    lake_site.intake.alter_topic(ORDERS, TopicChange(on_unknown_column="ignore"))
    letters(lake_site).replay(all=True)
    lake_site.run_until_crash(point)
    audited(lake_site)
    assert lake_site.pipeline().drain(30)
    audited(lake_site)
    letters(lake_site).replay(all=True)
    assert lake_site.pipeline().drain(30)
    assert audited(lake_site).dead_letters == 0
    assert ids(lake_site) == [1, 2, 3, 1001, 1002, 1003]


def test_rows_that_do_not_fit_the_table_come_back_when_they_do(lake_site: Site) -> None:
    lake_site.intake.submit(ORDERS, pa.record_batch({"id": [1]})).wait()
    assert lake_site.pipeline().drain(30)
    lake_site.intake.submit(
        ORDERS, [Rejected('{"id": "grün"}'.encode(), NDJSON, "not a number")]
    ).wait()
    assert lake_site.pipeline().drain(30)
    done = letters(lake_site).replay(all=True)
    assert (done.rows, done.rejected) == (0, 1)
    assert lake_site.pipeline().drain(30)
    (left,) = letters(lake_site).list().letters
    assert left.offset == 2
    assert letters(lake_site).show(2).text == '{"id": "grün"}'
    letters(lake_site).discard(offsets="2")
    found = audited(lake_site)
    assert (found.rows, found.dead_letters) == (1, 0)


@pytest.mark.parametrize("count", [1, 10])
def test_dead_letters_of_an_earlier_topic_stop_the_one_of_now_until_they_have_another_name(
    lake_site: Site, count: int
) -> None:
    pipeline = lake_site.pipeline()
    send(lake_site, 1, 2)
    assert pipeline.drain(30)
    lake_site.intake.delete_topic(ORDERS)
    lake_site.catalog.drop_table(ORDERS)
    lake_site.create("orders", schema={"id": "long"}, on_unknown_column="dead_letter")
    bad = [Rejected(b"{", NDJSON, "no JSON")] * count
    lake_site.intake.submit(ORDERS, [pa.record_batch({"id": [3]}), bad]).wait()
    assert not pipeline.drain(0.3)
    (told,) = [each for each in lake_site.state.progress().partitions.values() if each.error]
    assert "earlier topic" in str(told.error)
    assert "orders__dead_letters NEW_NAME` keeps them" in str(told.hint)
    with IcebergManager(lake_site.settings) as manager:
        manager.rename_table("orders__dead_letters", "orders_before", force=True)
    assert pipeline.drain(30)
    assert lake_site.offsets("orders__dead_letters") == list(range(1, 1 + count))
    assert lake_site.offsets("orders_before") == [2, 3]
    found = audited(lake_site)
    assert (found.rows, found.dead_letters) == (1, count)


def test_dead_letters_that_an_earlier_topic_left_behind_the_commit_are_not_mixed_up(
    lake_site: Site,
) -> None:
    """They come back under the name in the worst moment: between the two commits."""
    send(lake_site, 1, 2)
    assert lake_site.pipeline().drain(30)
    lake_site.catalog.rename_table("orders__dead_letters", "aside")
    lake_site.intake.delete_topic(ORDERS)
    lake_site.catalog.drop_table(ORDERS)
    lake_site.create("orders", schema={"id": "long"}, on_unknown_column="dead_letter")
    send(lake_site, 3)

    def reach(step: str) -> None:
        if step == "committed" and lake_site.catalog.find_table("aside") is not None:
            lake_site.catalog.drop_table("orders__dead_letters")
            lake_site.catalog.rename_table("aside", "orders__dead_letters")

    pipeline = lake_site.pipeline(reach=reach)
    assert not pipeline.drain(0.5)
    with IcebergManager(lake_site.settings) as manager:
        manager.rename_table("orders__dead_letters", "elsewhere", force=True)
    assert pipeline.drain(30)
    assert lake_site.offsets("orders__dead_letters") == [1]
    audited(lake_site)


def test_dead_letters_that_could_not_be_committed_come_in_without_more_rows(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = lake_site.pipeline()
    send(lake_site, 1)
    assert pipeline.drain(30)
    send(lake_site, 2)
    iceberg = lake_site.catalog.iceberg
    works = iceberg.commit_table

    def fails(table: Table, *more: Any) -> Any:
        if table.name()[-1].endswith("__dead_letters"):
            raise ConnectionError("the network is gone")
        return works(table, *more)

    monkeypatch.setattr(iceberg, "commit_table", fails)
    assert not pipeline.drain(1)
    assert ids(lake_site) == [1, 2]
    (told,) = lake_site.state.progress().partitions.values()
    assert told.error
    assert lake_site.committed("orders") == 2
    monkeypatch.setattr(iceberg, "commit_table", works)
    assert pipeline.drain(30)
    assert lake_site.offsets("orders__dead_letters") == [1, 3]
    assert lake_site.committed("orders") == 4
    audited(lake_site)


@pytest.mark.parametrize("is_same_pipeline", [True, False])
@pytest.mark.parametrize("is_renamed", [True, False])
def test_dead_letters_whose_table_is_gone_stop_their_topic(
    lake_site: Site, *, is_renamed: bool, is_same_pipeline: bool
) -> None:
    pipeline = lake_site.pipeline()
    send(lake_site, 1)
    assert pipeline.drain(30)
    lake_site.intake.submit(ORDERS, pa.record_batch({"id": [2]})).wait()
    assert pipeline.drain(30)
    if is_renamed:
        lake_site.catalog.rename_table("orders__dead_letters", "kept")
    else:
        lake_site.catalog.drop_table("orders__dead_letters")
    send(lake_site, 3)
    later = pipeline if is_same_pipeline else lake_site.pipeline()
    assert not later.drain(0.5)
    assert lake_site.catalog.find_table("orders__dead_letters") is None
    (told,) = lake_site.state.progress().partitions.values()
    assert "the table orders__dead_letters is gone" in str(told.error)
    assert "calve table drop --force orders__dead_letters" in str(told.hint)
    if is_renamed:
        lake_site.catalog.rename_table("kept", "orders__dead_letters")
        assert later.drain(30)
        lake_site.require_each_once("orders", 5)
        audited(lake_site)
        return
    with IcebergManager(lake_site.settings) as manager:
        manager.drop_table("orders__dead_letters", force=True)
    send(lake_site, 4)
    assert later.drain(30)
    assert lake_site.offsets("orders__dead_letters")[-1] == 6
    assert ids(lake_site) == [1, 2, 3, 4]


def test_dead_letters_that_are_dropped_on_purpose_are_recorded(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    send(lake_site, 1, 2)
    assert pipeline.drain(30)
    letters(lake_site).discard(offsets="2")
    with IcebergManager(lake_site.settings) as manager:
        with pytest.raises(InvalidRequest, match="feeds the table") as caught:
            manager.drop_table("orders__dead_letters")
        assert "dead-letter discard" in str(caught.value.hint)
        tried = manager.drop_table("orders__dead_letters", force=True, purge=True, dry_run=True)
        files = manager.drop_table("orders__dead_letters", force=True, purge=True).files
        assert files == tried.files
        with pytest.raises(NotFound):
            manager.drop_table("orders__dead_letters", force=True)
    assert audited(lake_site).rows == 2
    send(lake_site, 3)
    assert pipeline.drain(30)
    assert lake_site.offsets("orders__dead_letters") == [5]
    found = audited(lake_site)
    assert (found.rows, found.dead_letters) == (3, 1)
    lake_site.catalog.drop_table("orders__dead_letters")
    assert not lake_site.pipeline().drain(0.3), "it is noticed again"


def test_dead_letters_on_their_way_are_not_dropped(lake_site: Site) -> None:
    send(lake_site, 1)
    lake_site.run_until_crash("committed")
    with lake_site.table("orders").transaction() as change:
        change.set_properties({"commit.retry.num-retries": "2"})
    on_their_way = pytest.raises(Conflict, match="on their way")
    with IcebergManager(lake_site.settings) as manager, on_their_way:
        manager.drop_table("orders__dead_letters", force=True)
    assert lake_site.pipeline().drain(30)
    audited(lake_site)


def drop_letters(made: Site, *, purge: bool = False) -> None:
    with IcebergManager(made.settings) as manager:
        manager.drop_table("orders__dead_letters", force=True, purge=purge)


def pipeline_that_meets(
    made: Site, change: Callable[[], object], point: str = "before commit"
) -> Pipeline:
    """One that finds, when it has come to that point for the first time, that something changed."""
    left = [change]

    def reach(step: str) -> None:
        if step == point and left:
            left.pop()()

    return made.pipeline(reach=reach)


@pytest.mark.parametrize("is_purged", [True, False])
@pytest.mark.parametrize("has_letters", [True, False])
@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_a_topic_goes_on_when_its_dead_letters_are_dropped_during_a_cycle(
    lake_site: Site, *, earlier: int, has_letters: bool, is_purged: bool
) -> None:
    """Also if some were dropped before, or none had ever come to their table."""
    for number in range(earlier):
        if number:
            drop_letters(lake_site)
        send(lake_site, number)
        assert lake_site.pipeline().drain(30)
    if not earlier:
        ensure_dead_letter_table(lake_site.catalog, ORDERS)
    if has_letters:
        send(lake_site, 7)
    else:
        lake_site.intake.submit(ORDERS, pa.record_batch({"id": [7]})).wait()
    meeting = pipeline_that_meets(lake_site, lambda: drop_letters(lake_site, purge=is_purged))
    assert meeting.drain(30)
    found = audited(lake_site)
    assert (found.rows, found.dead_letters) == (earlier + 1, int(has_letters))
    send(lake_site, 8)
    assert lake_site.pipeline().drain(30)
    found = audited(lake_site)
    assert (found.rows, found.dead_letters) == (earlier + 2, int(has_letters) + 1)
    assert len(lake_site.rows("orders__dead_letters")) == int(has_letters) + 1
    lake_site.catalog.drop_table("orders__dead_letters")
    assert not lake_site.pipeline().drain(0.3), "it is noticed when they are gone"


@pytest.mark.parametrize("has_letters", [True, False])
def test_a_topic_that_says_of_dropped_dead_letters_how_far_they_had_come_has_a_way_out(
    lake_site: Site, *, has_letters: bool
) -> None:
    """An earlier Calve left such tables behind."""
    send(lake_site, 1, 2)
    assert lake_site.pipeline().drain(30)
    drop_letters(lake_site)
    send(lake_site, 3)
    assert lake_site.pipeline().drain(30)
    if has_letters:
        known_as_new(lake_site)
    else:
        lake_site.catalog.drop_table("orders__dead_letters")
    said = {"calve.dead_letters.let_go": "yes", "calve.dead_letters.reached.0": "4"}
    said |= {} if has_letters else {"calve.dead_letters.0": ""}
    TableCommit(lake_site.table("orders")).attempt(Edit(properties=said))
    if has_letters:
        assert not lake_site.pipeline().drain(0.3)
    drop_letters(lake_site)
    send(lake_site, 4)
    assert lake_site.pipeline().drain(30)
    expected = [5, 7] if has_letters else [7]
    assert lake_site.offsets("orders__dead_letters") == expected
    send(lake_site, 5)
    assert lake_site.pipeline().drain(30)
    assert ids(lake_site) == [1, 2, 3, 4, 5]
    lake_site.catalog.drop_table("orders__dead_letters")
    assert not lake_site.pipeline().drain(0.3), "it is noticed when they are gone"


def known_as_new(made: Site) -> None:
    """Have an empty table instead of the one with dead letters; the files stay."""
    made.catalog.drop_table("orders__dead_letters")
    ensure_dead_letter_table(made.catalog, ORDERS)


def test_dead_letters_that_come_while_they_are_dropped_are_recorded_too(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(lake_site, 1, 2)
    assert lake_site.pipeline().drain(30)
    read, counts = offset_scan.read_offsets, list[int]()

    def slowly(*args: Any, **options: Any) -> Any:
        found = read(*args, **options)
        counts.append(len(counts))
        if len(counts) == 1:
            send(lake_site, 3)
            assert lake_site.pipeline().drain(30)
            lake_site.intake.submit(ORDERS, pa.record_batch({"id": [4]})).wait()
            assert lake_site.pipeline().drain(30)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(offset_scan, "read_offsets", slowly)
        drop_letters(lake_site)
    assert len(counts) == 2
    found = audited(lake_site)
    assert (found.rows, found.dead_letters) == (4, 0)
    assert found.partitions[0].removed == (Range(2, 4, 2), Range(5, 6, 1))


@pytest.mark.parametrize("is_same_pipeline", [True, False])
@pytest.mark.parametrize("is_dropped", [True, False])
def test_dead_letters_whose_table_was_set_back_stop_their_topic(
    lake_site: Site, *, is_dropped: bool, is_same_pipeline: bool
) -> None:
    pipeline = lake_site.pipeline()
    places = []
    for number in (1, 2, 3):
        send(lake_site, number)
        assert pipeline.drain(30)
        places.append(lake_site.table("orders__dead_letters").metadata_location)
    known_as(lake_site, places[0])
    send(lake_site, 4)
    later = pipeline if is_same_pipeline else lake_site.pipeline()
    assert not later.drain(0.5)
    assert lake_site.offsets("orders__dead_letters") == [1], "nothing is added"
    (told,) = lake_site.state.progress().partitions.values()
    assert "orders__dead_letters was set back" in str(told.error)
    audit = verify_topic(lake_site.catalog, ORDERS, own_log=lake_site.settings.wal.path)
    assert any("was set back" in each and str(told.hint) in each for each in audit.problems)
    if is_dropped:
        assert "calve table drop --force orders__dead_letters" in str(told.hint)
        drop_letters(lake_site, purge=is_same_pipeline)
        send(lake_site, 5)
        assert later.drain(30)
        # The newest range of then is still named by the topic's table, and so not lost.
        assert lake_site.offsets("orders__dead_letters") == [5, 7, 9]
        assert ids(lake_site) == [1, 2, 3, 4, 5]
        return
    known_as(lake_site, places[-1])
    assert later.drain(30)
    lake_site.require_each_once("orders", 8)
    audited(lake_site)


def known_as(made: Site, metadata: str) -> None:
    """Have the catalog know the dead letters as they were with that metadata."""
    name = made.table("orders__dead_letters").name()
    made.catalog.iceberg.drop_table(name)
    made.catalog.iceberg.register_table(name, metadata)
