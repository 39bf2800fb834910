"""A catalog restored from an older copy stops its topics, whoever starts a pipeline, until somebody decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from pyiceberg.table import Table

from calve.changes.hold import Hold
from calve.errors import Conflict, Corruption, Unavailable
from calve.manager import IcebergManager
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.state import PIPELINE_LEASE
from calve.tables.positions import committed_position
from calve.tables.topic_tables import create_topic_table
from calve.wal import Rejected
from tests.commands import run_command
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site

ORDERS = TableName.parse("orders")
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
SMALL_SEGMENTS = {"wal__hot_window_seconds": 0, "wal__segment_bytes_max": 65536}
LARGE = "x" * 20_000
COPIED, COMMITTED = 6, 10


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        yield made


def fill(made: Site, topic: str = "orders") -> tuple[str, str]:
    """Rows, each with a snapshot of its own; where the metadata of the copy and the newest is."""
    pipeline = made.pipeline()
    copied = ""
    for number in range(COMMITTED):
        made.send(topic, [{"id": number, "text": LARGE}])
        assert pipeline.drain(30)
        if number == COPIED - 1:
            copied = made.table(topic).metadata_location
    return copied, made.table(topic).metadata_location


def restore(made: Site, metadata: str, topic: str = "orders") -> None:
    """Have the catalog know the table as it was with that metadata."""
    name = made.table(topic).name()
    made.catalog.iceberg.drop_table(name)
    made.catalog.iceberg.register_table(name, metadata)


def delete_by_hand(made: Site, condition: str) -> None:
    with IcebergManager(made.settings) as manager:
        assert manager.delete_data("orders", condition, flush=False).deleted_rows


def error_of(made: Site, topic: str = "orders") -> tuple[str, str]:
    """What the pipeline says about a topic, to whoever asks for its status."""
    topic_id = made.intake.topics.topic(TableName.parse(topic)).id
    told = [each for at, each in made.state.progress().partitions.items() if at[0] == topic_id]
    return next(((each.error, each.hint or "") for each in told if each.error), ("", ""))


def require_stopped(made: Site, pipeline: Pipeline) -> str:
    """The topic stops, with nothing written or published; what it says to do."""
    before = made.table("orders").metadata_location, made.data_files("orders")
    assert not pipeline.drain(0.5)
    error, hint = error_of(made)
    assert "the state knows that it had come to 10" in error
    assert (made.table("orders").metadata_location, made.data_files("orders")) == before
    assert made.committed("orders") == COMMITTED
    return hint


def roll_back_to_current(made: Site, *, replay: bool) -> None:
    with IcebergManager(made.settings) as manager:
        current = manager.get_current_snapshot("orders")
        assert current is not None
        log = made.intake.log.directory if replay else None
        manager.rollback("orders", current.id, replay=replay, log=log)


def verified(made: Site) -> Any:
    with IcebergManager(made.settings) as manager:
        return manager.verify_topic("orders", log=made.intake.log.directory)


def ids(made: Site) -> list[int]:
    return [row["id"] for row in made.rows("orders")]


@pytest.mark.parametrize("comes_more", [True, False])
def test_a_restored_catalog_stops_the_topic_of_a_pipeline_that_starts(
    lake_site: Site, *, comes_more: bool
) -> None:
    copied, _ = fill(lake_site)
    delete_by_hand(lake_site, "id = 8")
    restore(lake_site, copied)
    lake_site.send("others", [{"id": 1}])
    if comes_more:
        lake_site.send("orders", [{"id": 10}])
    for _ in range(2):  # it outlives the pipeline
        hint = require_stopped(lake_site, lake_site.pipeline())
        current = lake_site.table("orders").current_snapshot()
        assert current is not None
        assert f"calve table rollback orders --snapshot {current.snapshot_id} --replay" in hint
    assert "it has 6 as committed offset" in error_of(lake_site)[0]
    # Others go on.
    assert lake_site.committed("others") == 1
    assert ids(lake_site) == list(range(COPIED))


def test_a_pipeline_that_runs_stops_as_well_and_so_does_one_that_had_seen_no_more(
    lake_site: Site,
) -> None:
    first, second = lake_site.pipeline(), lake_site.pipeline()
    for number in range(COPIED):
        lake_site.send("orders", [{"id": number}])
        assert first.drain(30)
    assert second.drain(30)
    copied = lake_site.table("orders").metadata_location
    for number in range(COPIED, COMMITTED):
        lake_site.send("orders", [{"id": number}])
        assert first.drain(30)
    restore(lake_site, copied)
    lake_site.send("orders", [{"id": COMMITTED}])
    require_stopped(lake_site, first)
    require_stopped(lake_site, second)


def test_the_topic_goes_on_by_itself_when_the_right_catalog_is_back(lake_site: Site) -> None:
    copied, _ = fill(lake_site)
    delete_by_hand(lake_site, "id = 8")
    newest = lake_site.table("orders").metadata_location
    restore(lake_site, copied)
    pipeline = lake_site.pipeline()
    require_stopped(lake_site, pipeline)
    restore(lake_site, newest)
    lake_site.send("orders", [{"id": 10}])
    assert pipeline.drain(30)
    assert error_of(lake_site) == ("", "")
    assert ids(lake_site) == [*range(8), 9, 10]
    assert verified(lake_site).is_sound


def test_rows_come_again_when_somebody_says_so(lake_site: Site) -> None:
    copied, _ = fill(lake_site)
    restore(lake_site, copied)
    pipeline = lake_site.pipeline()
    require_stopped(lake_site, pipeline)
    roll_back_to_current(lake_site, replay=True)
    lake_site.send("orders", [{"id": 10}])
    assert pipeline.drain(30)
    lake_site.require_each_once("orders", COMMITTED + 1)
    assert error_of(lake_site) == ("", "")
    assert verified(lake_site).is_sound


def test_rows_are_given_up_and_recorded_when_somebody_says_so(make_settings: MakeSettings) -> None:
    """As where the log has let go of them."""
    with site(make_settings(**AT_ONCE, **SMALL_SEGMENTS)) as made:
        copied, _ = fill(made)
        assert made.intake.trim() > 0
        assert made.intake.offsets(ORDERS).first > COPIED
        restore(made, copied)
        pipeline = made.pipeline()
        require_stopped(made, pipeline)
        with pytest.raises(Conflict, match="no longer in the log"):
            roll_back_to_current(made, replay=True)
        require_stopped(made, made.pipeline())
        roll_back_to_current(made, replay=False)
        made.send("orders", [{"id": 10}])
        assert pipeline.drain(30)
        assert ids(made) == [*range(COPIED), 10]
        found = verified(made)
        assert found.is_sound
        assert [(each.first, each.end) for each in found.partitions[0].removed] == [(6, 10)]


def test_the_log_keeps_what_the_table_lacks(make_settings: MakeSettings) -> None:
    with site(make_settings(**AT_ONCE, **SMALL_SEGMENTS)) as made:
        copied, _ = fill(made)
        restore(made, copied)
        pipeline = made.pipeline()
        require_stopped(made, pipeline)
        made.intake.trim()
        assert made.intake.offsets(ORDERS).first <= COPIED
        roll_back_to_current(made, replay=True)
        assert pipeline.drain(30)
        made.require_each_once("orders", COMMITTED)
        made.send("orders", *([{"id": each, "text": LARGE}] for each in range(10, 20)))
        assert pipeline.drain(30)
        assert made.intake.trim() > 0


def test_the_log_lets_go_again_when_the_right_catalog_is_back(make_settings: MakeSettings) -> None:
    with site(make_settings(**AT_ONCE, **SMALL_SEGMENTS)) as made:
        copied, newest = fill(made)
        restore(made, copied)
        pipeline = made.pipeline()
        require_stopped(made, pipeline)
        restore(made, newest)
        assert pipeline.drain(30)
        assert made.intake.trim() > 0
        assert made.intake.offsets(ORDERS).first > COPIED


def test_a_flush_does_not_count_what_the_table_lost(lake_site: Site) -> None:
    """It waits as for any topic that stops, and ends when the rows are there."""
    copied, newest = fill(lake_site)
    assert lake_site.intake.flush(ORDERS, 0).committed == COMMITTED
    restore(lake_site, copied)
    pipeline = lake_site.pipeline()
    require_stopped(lake_site, pipeline)
    lake_site.state.take_lease(PIPELINE_LEASE, "somebody", 600)
    with pytest.raises(Unavailable, match="reached offset 6, and 10 was asked for") as late:
        lake_site.intake.flush(ORDERS, 0)
    assert "partition 0 was set back" in str(late.value.hint)
    restore(lake_site, newest)
    assert pipeline.drain(30)
    assert lake_site.intake.flush(ORDERS, 0).committed == COMMITTED
    restore(lake_site, copied)
    require_stopped(lake_site, lake_site.pipeline())
    roll_back_to_current(lake_site, replay=True)
    with pytest.raises(Unavailable, match="reached offset 6, and 10 was asked for"):
        lake_site.intake.flush(ORDERS, 0)
    assert pipeline.drain(30)
    assert lake_site.intake.flush(ORDERS, 0).committed == COMMITTED
    lake_site.require_each_once("orders", COMMITTED)


def remade_empty(made: Site) -> None:
    topic = made.intake.topics.topic(ORDERS)
    create_topic_table(made.catalog, ORDERS, topic.schema, properties={})


def remade_with_a_row(made: Site) -> None:
    remade_empty(made)
    with IcebergManager(made.settings) as manager:
        manager.insert_data("orders", [{"id": 77, "text": "by hand"}], force=True)


@pytest.mark.parametrize("make", [remade_empty, remade_with_a_row])
def test_a_table_made_again_stops_the_topic(lake_site: Site, make: Callable[[Site], None]) -> None:
    fill(lake_site)
    lake_site.catalog.drop_table("orders")
    make(lake_site)
    hint = require_stopped(lake_site, lake_site.pipeline())
    assert "it has no committed offset" in error_of(lake_site)[0]
    assert not verified(lake_site).is_sound
    if make is remade_empty:
        assert "calve topic delete orders" in hint
        return
    roll_back_to_current(lake_site, replay=True)
    assert lake_site.pipeline().drain(30)
    assert lake_site.offsets("orders") == list(range(COMMITTED))


def test_dead_letters_are_not_touched_while_the_topic_stops(lake_site: Site) -> None:
    """Those that the older table names as pending are not committed either."""
    pipeline = lake_site.pipeline()
    lake_site.send("orders", [{"id": 0}])
    assert pipeline.drain(30)
    lake_site.intake.submit(ORDERS, [Rejected(b"{", "application/x-ndjson", "no row")]).wait()
    lake_site.run_until_crash("committed")
    copied = lake_site.table("orders").metadata_location
    before = lake_site.table(str(ORDERS.dead_letters)).metadata_location
    lake_site.send("orders", *([{"id": each}] for each in range(2, COMMITTED)))
    assert lake_site.pipeline().drain(30)
    restore(lake_site, before, str(ORDERS.dead_letters))
    restore(lake_site, copied)
    require_stopped(lake_site, lake_site.pipeline())
    assert lake_site.table(str(ORDERS.dead_letters)).metadata_location == before


def test_a_catalog_that_shows_commits_late_is_believed_when_it_shows_them(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read after write is not every catalog's promise: nothing is written twice meanwhile."""
    copied, _ = fill(lake_site)
    stale = [0] * 6
    name = lake_site.table("orders").name()
    works = lake_site.catalog.iceberg.load_table

    def load(*given: Any) -> Table:
        found = works(*given)
        if stale and tuple(found.name()) == tuple(name):
            stale.pop()
            from pyiceberg.serializers import FromInputFile

            found.metadata = FromInputFile.table_metadata(found.io.new_input(copied))
            found.metadata_location = copied
        return found

    monkeypatch.setattr(lake_site.catalog.iceberg, "load_table", load)
    pipeline = lake_site.pipeline()
    lake_site.send("orders", [{"id": 10}])
    assert pipeline.drain(30)
    assert not stale
    lake_site.require_each_once("orders", COMMITTED + 1)


def test_verify_tells_of_the_gap(
    lake_site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, newest = fill(lake_site)
    assert verified(lake_site).is_sound
    restore(lake_site, copied)
    (problem,) = verified(lake_site).partitions[0].problems
    assert "it has 6 as committed offset" in problem
    assert "had come to 10" in problem
    words = ["calve", "topic", "verify", "orders", "--data", str(lake_site.settings.data)]
    told = run_command(words, monkeypatch, capsys)
    assert told.code == Corruption.exit_code
    assert "had come to 10" in told.err
    restore(lake_site, newest)
    assert run_command(words, monkeypatch, capsys).code == 0
    lake_site.catalog.drop_table("orders")
    assert not verified(lake_site).is_sound


def test_a_topic_made_again_over_a_restored_table_goes_on_from_it(lake_site: Site) -> None:
    """Its state is its own: the other topic's went with it."""
    copied, _ = fill(lake_site)
    restore(lake_site, copied)
    require_stopped(lake_site, lake_site.pipeline())
    lake_site.intake.delete_topic(ORDERS)
    lake_site.create("orders", bind_table=True)
    lake_site.send("orders", [{"id": 6}])
    assert lake_site.pipeline().drain(30)
    position = committed_position(lake_site.table("orders"), 0)
    assert position is not None
    assert position.offset == COPIED + 1
    assert verified(lake_site).is_sound


def test_a_commit_between_two_looks_is_not_taken_for_it(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pipeline commits after the table was read, and before the state is."""
    fill(lake_site)
    first, second = lake_site.pipeline(), lake_site.pipeline()
    works = lake_site.state.committed
    more = [[{"id": 10}]]
    lake_site.send("orders", [{"id": 10}])

    def committed(*given: Any) -> Any:
        if more:
            more.pop()
            assert first.drain(30)
        return works(*given)

    monkeypatch.setattr(lake_site.state, "committed", committed)
    second.run_cycle()
    assert not more
    assert error_of(lake_site) == ("", "")
    assert second.drain(30)
    lake_site.require_each_once("orders", COMMITTED + 1)


def test_a_replay_that_is_killed_after_its_hold_goes_on_by_itself(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has decided, and nobody releases what is held."""
    copied, _ = fill(lake_site)
    restore(lake_site, copied)
    pipeline = lake_site.pipeline()
    require_stopped(lake_site, pipeline)
    monkeypatch.setattr("calve.changes.hold._SECONDS", 1.0)
    monkeypatch.setattr(Hold, "release", lambda _: None)
    roll_back_to_current(lake_site, replay=True)
    assert lake_site.committed("orders") == COPIED
    assert lake_site.pipeline().drain(30)
    lake_site.require_each_once("orders", COMMITTED)


def test_one_partition_that_was_set_back_stops_the_topic(lake_site: Site) -> None:
    """Rows of others would be lost when the right catalog comes back."""
    fill(lake_site)
    topic = lake_site.intake.topics.topic(ORDERS)
    binding = topic.partitions[0]
    lake_site.intake.topics.evolve(
        ORDERS, lambda each: msgspec.structs.replace(each, partitions={0: binding, 1: binding})
    )
    lake_site.state.publish_committed(topic.id, 1, log_id=binding.log_id, offset=COMMITTED)
    lake_site.send("orders", [{"id": 10}])
    require_stopped(lake_site, lake_site.pipeline())
    assert "partition 1" in error_of(lake_site)[0]


def test_rows_come_again_of_a_partition_of_which_the_older_table_knows_nothing(
    lake_site: Site,
) -> None:
    """Also where the first snapshots have expired, which tell that there was nothing."""
    fill(lake_site)
    lake_site.catalog.drop_table("orders")
    remade_with_a_row(lake_site)
    remade = lake_site.table("orders")
    with IcebergManager(lake_site.settings) as manager:
        manager.insert_data("orders", [{"id": 78, "text": "by hand"}], force=True)
    with lake_site.table("orders").maintenance.expire_snapshots() as expiry:
        expiry.by_id(remade.metadata.snapshots[0].snapshot_id)
    require_stopped(lake_site, lake_site.pipeline())
    roll_back_to_current(lake_site, replay=True)
    assert lake_site.pipeline().drain(30)
    assert lake_site.offsets("orders") == [*range(COMMITTED)]
