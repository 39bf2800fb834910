"""A table goes from one stream to the next: of a topic bound to it again, or given a new log.

Whatever of the earlier stream is under way then, the later one goes on from where the table ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pyarrow as pa
import pytest

from calve.errors import Conflict, InvalidRequest, NotFound, Unavailable
from calve.ingest import Intake
from calve.ingest.attached import Attachments
from calve.lake import Lake
from calve.maintenance.verify import verify_topic
from calve.manager import IcebergManager
from calve.model import TableName
from calve.settings import Settings
from calve.tables.commit import TableCommit
from calve.tables.handover import hand_over
from calve.tables.offsets import LogRange, commit_range
from calve.tables.positions import Position, committed_position
from calve.tables.ranges import Ranges
from calve.tables.staging import Edit
from calve.topics import Topic, TopicRegistry, TopicSpec
from calve.wal import Rejected, Stream
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, let_side_lane_end, site
from tests.fakes.topic_table import LOG, feed, make_topic_table

ORDERS = TableName.parse("orders")
BOUND = TopicSpec(bind_table=True)
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
FOREIGN = UUID(int=9)


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        made.create("orders", schema={"id": "long"}, on_unknown_column="dead_letter")
        yield made
        let_side_lane_end()


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": each} for each in ids]


def send_both(made: Site, number: int) -> None:
    """A good row, and a bad one."""
    bad = Rejected(b'{"id": %d, "x": 1}' % number, "application/x-ndjson", "no column x")
    made.intake.submit(ORDERS, [pa.record_batch({"id": [number]}), [bad]]).wait()


def once(step: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Do something when a pipeline reaches a step for the first time."""
    left = [act]

    def reach(reached: str) -> None:
        if reached == step and left:
            left.pop()()

    return reach


def bind_again(made: Site) -> None:
    made.intake.delete_topic(ORDERS)
    made.intake.create_topic(ORDERS, BOUND)


def require_sound(made: Site, settings: Settings | None = None) -> None:
    settings = settings or made.settings
    found = verify_topic(made.catalog, ORDERS, own_log=settings.wal.path, settings=settings)
    assert found.is_sound, found


def position_of(made: Site | Lake) -> Position:
    found = committed_position(made.catalog.load_table("orders"), 0)
    assert found is not None
    return found


@pytest.mark.parametrize("point", ["planned", "prepared", "before commit", "committed"])
def test_a_range_of_the_deleted_topic_does_not_stop_the_one_of_now(
    lake_site: Site, point: str
) -> None:
    lake_site.send("orders", rows(1))
    assert lake_site.pipeline().drain(30)

    def act() -> None:
        bind_again(lake_site)
        lake_site.send("orders", rows(100))

    lake_site.send("orders", rows(2))
    pipeline = lake_site.pipeline(reach=once(point, act))
    assert pipeline.drain(30)
    assert pipeline.drain(30)  # of the topic that it did not know yet, where it knew no other
    # What was committed before the topic was bound again stays, and what was not is gone with it.
    kept = rows(1, 2, 100) if point == "committed" else rows(1, 100)
    assert lake_site.rows("orders") == kept
    lake_site.require_each_once("orders", len(kept))
    require_sound(lake_site)


def test_the_first_range_of_a_deleted_topic_does_not_stop_the_one_of_now(lake_site: Site) -> None:
    """Its table is there, and has nothing yet."""

    def act() -> None:
        bind_again(lake_site)
        lake_site.send("orders", rows(100))

    lake_site.send("orders", rows(1))
    assert lake_site.pipeline(reach=once("before commit", act)).drain(30)
    assert lake_site.rows("orders") == rows(100)
    require_sound(lake_site)


def test_a_topic_that_was_bound_and_deleted_does_not_take_its_table_back(lake_site: Site) -> None:
    """Of two topics that both begin where the table ended, it is the later one's: also while the
    pipeline still has files of the earlier one, whose commit failed, and tries them again."""
    lake_site.send("orders", rows(1))
    assert lake_site.pipeline().drain(30)
    bind_again(lake_site)
    lake_site.send("orders", rows(2))
    steps: list[str] = []

    def reach(step: str) -> None:
        if step == "before commit" and not steps:
            steps.append("failed")
            raise Unavailable("the catalog cannot be reached", hint="look at it")
        is_tried = any(feed.is_busy for feed in pipeline._backlog.feeds)
        if step == "planned" and steps == ["failed"] and is_tried:
            steps.append("bound")
            bind_again(lake_site)
            lake_site.send("orders", rows(100))

    pipeline = lake_site.pipeline(reach=reach)
    assert not pipeline.drain(0)
    assert pipeline.drain(30)
    let_side_lane_end()
    assert lake_site.pipeline().drain(30)
    assert steps == ["failed", "bound"]
    assert lake_site.rows("orders") == rows(1, 100)
    require_sound(lake_site)


@pytest.mark.parametrize("has_table", [False, True])
def test_rows_that_another_process_takes_in_after_a_deletion_are_those_of_the_topic_of_now(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings, has_table: bool
) -> None:
    """Or it would acknowledge them for the deleted one, with which they go."""
    path = str(tmp_path / "second")
    both = make_settings(**AT_ONCE, pipeline__logs=path)
    with Intake(make_settings(**AT_ONCE, wal__path=path, ingest__partition=1)) as second:
        second.submit(ORDERS, pa.record_batch({"id": [1]})).wait()
        if has_table:
            assert lake_site.pipeline(settings=both).drain(30)
        lake_site.intake.delete_topic(ORDERS)
        again = BOUND if has_table else TopicSpec(schema={"id": "long"})
        lake_site.intake.create_topic(ORDERS, again)
        second.submit(ORDERS, pa.record_batch({"id": [100]})).wait()
        assert lake_site.pipeline(settings=both).drain(30)
        kept = rows(1, 100) if has_table else rows(100)
        assert lake_site.rows("orders") == kept


def test_a_process_that_does_not_run_is_not_waited_for_without_end(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings
) -> None:
    second = make_settings(**AT_ONCE, wal__path=str(tmp_path / "second"), ingest__partition=1)
    with Intake(second) as intake:
        intake.submit(ORDERS, pa.record_batch({"id": [1]})).wait()
    lake_site.intake.delete_topic(ORDERS)
    lake_site.intake.create_topic(ORDERS, TopicSpec(schema={"id": "long"}))
    with Intake(second) as intake:
        assert intake.submit(ORDERS, pa.record_batch({"id": [100]})).wait().first == 0


@pytest.mark.parametrize("point", ["before commit", "committed", "dead letters committed"])
def test_dead_letters_of_the_deleted_topic_stay_each_once(lake_site: Site, point: str) -> None:
    send_both(lake_site, 1)
    assert lake_site.pipeline().drain(30)
    send_both(lake_site, 2)

    def act() -> None:
        bind_again(lake_site)
        send_both(lake_site, 3)

    assert lake_site.pipeline(reach=once(point, act)).drain(30)
    send_both(lake_site, 4)
    assert lake_site.pipeline().drain(30)
    kept = [1, 3, 4] if point == "before commit" else [1, 2, 3, 4]
    # A topic that is bound again has unknown columns added, but what is rejected stays so.
    assert [row["id"] for row in lake_site.rows("orders")] == kept
    assert len(lake_site.rows("orders__dead_letters")) == len(kept)
    lake_site.require_each_once("orders", 2 * len(kept))
    require_sound(lake_site)


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("point", ["planned", "before commit"])
def test_a_range_of_a_lost_log_does_not_stop_the_new_one(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings, point: str, is_bound: bool
) -> None:
    """Also where both begin at the same offset, and the lost one can still be read."""
    lake_site.send("orders", rows(1))
    assert lake_site.pipeline().drain(30)
    if is_bound:
        bind_again(lake_site)
    lake_site.send("orders", rows(2))
    other = make_settings(**AT_ONCE, wal__path=str(tmp_path / "other"))

    def act() -> None:
        with Intake(other) as intake:
            assert intake.adopt_new_log(ORDERS) == 1
            intake.submit(ORDERS, pa.record_batch({"id": [100]})).wait()

    assert not lake_site.pipeline(reach=once(point, act)).drain(0.3)
    assert lake_site.pipeline(settings=other).drain(30)
    assert lake_site.rows("orders") == rows(1, 100)
    require_sound(lake_site, other)


def test_a_range_that_comes_before_the_table_changes_hands_is_followed(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lake(make_settings()) as lake:
        make_topic_table(lake.catalog, "orders")
        feed(lake.catalog, range(40), name="orders")
        begun, late = Attachments._begun, [range(40, 45)]

        def begin(self: Attachments, *arguments: Any) -> Stream:
            stream = begun(self, *arguments)
            if late:
                feed(lake.catalog, late.pop(), name="orders")
            return stream

        monkeypatch.setattr(Attachments, "_begun", begin)
        topic = lake.intake.create_topic(ORDERS, BOUND)
        assert topic.first_offsets == {0: 45}
        assert lake.intake.offsets(ORDERS) == (45, 45, 45)
        assert position_of(lake).log == topic.partitions[0].stream_id
        with pytest.raises(Conflict, match="is fed by log"):
            feed(lake.catalog, range(45, 50), name="orders")
        assert [stream.id for stream in lake.intake.log.streams] == [position_of(lake).log]


@pytest.fixture
def own_site(make_settings: MakeSettings) -> Iterator[Site]:
    """A lake with a table that somebody has made and filled, without a topic."""
    with site(make_settings(**AT_ONCE)) as made:
        with IcebergManager(made.settings) as manager:
            manager.create_table("orders", {"id": "long"})
            manager.insert_data("orders", rows(1))
        yield made
        let_side_lane_end()


@pytest.mark.parametrize("point", ["planned", "prepared", "before commit", "committed"])
def test_the_first_range_into_somebodys_own_table_does_not_stop_the_topic_of_now(
    own_site: Site, point: str
) -> None:
    """Which has nothing of Calve's that would tell who feeds it."""
    own_site.intake.create_topic(ORDERS, BOUND)
    own_site.send("orders", rows(2))

    def act() -> None:
        bind_again(own_site)
        own_site.send("orders", rows(100))

    assert own_site.pipeline(reach=once(point, act)).drain(30)
    let_side_lane_end()
    assert own_site.pipeline().drain(30)
    kept = rows(1, 2, 100) if point == "committed" else rows(1, 100)
    assert own_site.rows("orders") == kept
    assert own_site.offsets("orders") == list(range(len(kept) - 1))
    require_sound(own_site)


def test_somebodys_own_table_is_the_topics_before_its_first_row(own_site: Site) -> None:
    own_site.intake.create_topic(ORDERS, BOUND)
    require_sound(own_site)
    own_site.send("orders", rows(2))
    require_sound(own_site)
    with IcebergManager(own_site.settings) as manager:
        with pytest.raises(InvalidRequest, match="feeds the table"):
            manager.insert_data("orders", rows(3))
        with pytest.raises(InvalidRequest, match="would lose its table"):
            manager.drop_table("orders")
        assert manager.query_table("orders").to_arrow().to_pylist() == rows(1)


@pytest.mark.parametrize("when", ["bound", "bound and deleted", "with rows"])
def test_somebodys_own_table_can_be_rolled_back_before_its_first_range(
    own_site: Site, when: str
) -> None:
    with IcebergManager(own_site.settings) as manager:
        first = manager.list_snapshots("orders")[0].id
        manager.insert_data("orders", rows(2))
        own_site.intake.create_topic(ORDERS, BOUND)
        if when == "with rows":
            own_site.send("orders", rows(100))
        if when == "bound and deleted":
            own_site.intake.delete_topic(ORDERS)
        manager.rollback("orders", first)
    if when == "bound and deleted":
        own_site.intake.create_topic(ORDERS, BOUND)
    if when != "with rows":
        own_site.send("orders", rows(100))
    assert own_site.pipeline().drain(30)
    assert own_site.rows("orders") == rows(1, 100)
    require_sound(own_site)


@pytest.mark.parametrize("restarts", [False, True])
def test_somebodys_own_table_that_is_made_again_gets_all_rows(
    own_site: Site, restarts: bool
) -> None:
    """By another program, before there was any."""
    own_site.intake.create_topic(ORDERS, BOUND)
    pipeline = own_site.pipeline()
    assert pipeline.drain(30)
    own_site.catalog.iceberg.drop_table(own_site.table("orders").name())
    with IcebergManager(own_site.settings) as manager:
        manager.create_table("orders", {"id": "long"})
    own_site.send("orders", rows(5))
    assert (own_site.pipeline() if restarts else pipeline).drain(30)
    assert own_site.rows("orders") == rows(5)
    require_sound(own_site)


def test_a_topic_that_is_made_again_while_it_is_deleted_does_not_begin_over_its_table(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program does that makes its topics whenever it starts."""
    lake_site.send("orders", rows(1))
    assert lake_site.pipeline().drain(30)
    find, left = TopicRegistry.find, [2]

    def late(registry: TopicRegistry, name: TableName) -> Topic | None:
        found = find(registry, name)
        left[0] -= 1
        if not left[0]:
            lake_site.intake.delete_topic(ORDERS)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(TopicRegistry, "find", late)
        with pytest.raises(NotFound, match="there is no topic orders"):
            lake_site.create("orders", schema={"id": "long"}, on_unknown_column="dead_letter")
    assert lake_site.intake.topics.find(ORDERS) is None


@pytest.mark.parametrize("point", ["planned", "prepared", "written", "before commit"])
@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_topic_that_was_deleted_before_its_table_was_made_leaves_it_to_the_next(
    lake_site: Site,
    tmp_path: Path,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    is_made_again: bool,
) -> None:
    """Somebody else deletes it, and its own process is slow to see it: its rows can be read."""
    monkeypatch.setattr(Attachments, "await_ended", lambda *_: None)
    lake_site.send("orders", rows(1))
    other = make_settings(**AT_ONCE, wal__path=str(tmp_path / "other"))

    def act() -> None:
        is_there = lake_site.catalog.find_table("orders") is not None
        with Intake(other) as intake:
            intake.delete_topic(ORDERS)
            if is_made_again:
                spec = BOUND if is_there else TopicSpec(schema={"id": "long"})
                intake.create_topic(ORDERS, spec)
                intake.submit(ORDERS, pa.record_batch({"id": [100]})).wait()

    lake_site.pipeline(reach=once(point, act)).drain(0.3)
    let_side_lane_end()
    if is_made_again:
        assert lake_site.pipeline(settings=other).drain(30)
        assert lake_site.rows("orders") == rows(100)
        require_sound(lake_site, other)
    elif lake_site.catalog.find_table("orders") is not None:
        assert lake_site.rows("orders") == []


def test_a_partition_that_was_given_to_the_topic_of_now_is_not_taken_back_with_another(
    lake_site: Site, tmp_path: Path, make_settings: MakeSettings
) -> None:
    """Both begin where the table ended; of the other partition, nobody has told the table yet."""
    path = str(tmp_path / "second")
    both = make_settings(**AT_ONCE, pipeline__logs=path)
    with Intake(make_settings(**AT_ONCE, wal__path=path, ingest__partition=1)) as second:

        def send(number: int) -> None:
            second.submit(ORDERS, pa.record_batch({"id": [number]})).wait()

        def act() -> None:
            second.delete_topic(ORDERS)
            second.create_topic(ORDERS, BOUND)
            send(100)

        lake_site.send("orders", rows(1))
        send(11)
        assert lake_site.pipeline(settings=both).drain(30)
        bind_again(lake_site)
        lake_site.send("orders", rows(2))
        send(12)
        pipeline = lake_site.pipeline(settings=both, reach=once("before commit", act))
        pipeline.drain(0.3)
        let_side_lane_end()
        assert pipeline.drain(30)
        found = sorted(row["id"] for row in lake_site.rows("orders"))
        assert found == [1, 2, 11, 100]  # the second was under way, and is not the later topic's


def test_a_table_that_was_set_back_is_still_known_for_it(lake_site: Site) -> None:
    """A snapshot in which it changes hands would hide that rows are gone."""
    for number in (1, 2):
        lake_site.send("orders", rows(number))
        assert lake_site.pipeline().drain(30)
    table = lake_site.table("orders")
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    bind_again(lake_site)
    lake_site.send("orders", rows(100))
    pipeline = lake_site.pipeline()
    assert not pipeline.drain(0.3)
    (told,) = (each for each in lake_site.state.progress().partitions.values() if each.error)
    assert "was set back or edited" in str(told.error)
    with IcebergManager(lake_site.settings) as manager:
        manager.rollback("orders", first)
    assert pipeline.drain(30)
    assert lake_site.rows("orders") == rows(1, 100)
    require_sound(lake_site)


def test_a_table_changes_hands_once(make_settings: MakeSettings) -> None:
    with Lake(make_settings()) as lake:
        make_topic_table(lake.catalog, "orders")
        feed(lake.catalog, range(40), name="orders")
        topic = lake.intake.create_topic(ORDERS, BOUND)
        given = lake.catalog.load_table("orders").metadata_location
        assert lake.intake.create_topic(ORDERS, BOUND) == topic
        lake.produce("orders", [{"id": 1}])
    with Lake(make_settings()) as lake:
        lake.produce("orders", [{"id": 2}])
        assert lake.catalog.load_table("orders").metadata_location == given


def _dies(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("moves_on", [False, True])
@pytest.mark.parametrize(
    ("place", "name"), [(Attachments, "_begun"), (TableCommit, "attempt"), (Attachments, "bind")]
)
def test_one_who_died_over_it_leaves_a_topic_that_can_be_bound(
    lake_site: Site,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
    place: type,
    name: str,
    moves_on: bool,
) -> None:
    """Before the stream was made, before the table was given to it, and before it was bound."""
    lake_site.send("orders", rows(1))
    assert lake_site.pipeline().drain(30)
    before = position_of(lake_site).log
    lake_site.intake.delete_topic(ORDERS)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, _dies)
        with pytest.raises(KeyboardInterrupt):
            lake_site.intake.create_topic(ORDERS, BOUND)
    lake_site.intake.close()
    is_given = name == "bind"
    assert (position_of(lake_site).log != before) == is_given
    if moves_on and not is_given:
        lost = LogRange(0, before, 1, 3, "", Ranges.exact((1, 3)))
        commit_range(lake_site.table("orders"), lost, Edit(), operation_id="late")
    with Intake(make_settings(**AT_ONCE)) as lake_site.intake:
        topic = lake_site.intake.create_topic(ORDERS, BOUND)
        assert position_of(lake_site).log == topic.partitions[0].stream_id
        assert len(lake_site.intake.log.streams) == 1
        lake_site.send("orders", rows(100))
        assert lake_site.pipeline().drain(30)
        assert lake_site.rows("orders") == rows(1, 100)
        require_sound(lake_site)


def test_of_two_who_bind_a_table_at_once_one_gets_it(
    lake_site: Site,
    tmp_path: Path,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first to be written down, even where the other was given the table before."""
    lake_site.send("orders", rows(1))
    assert lake_site.pipeline().drain(30)
    lake_site.intake.delete_topic(ORDERS)
    other = make_settings(**AT_ONCE, wal__path=str(tmp_path / "other"))
    bind = Attachments.bind
    with Intake(other) as intake:

        def late(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(Attachments, "bind", bind)
            lake_site.intake.create_topic(ORDERS, BOUND)
            return bind(*arguments, **options)

        monkeypatch.setattr(Attachments, "bind", late)
        with pytest.raises(Conflict, match="is in log"):
            intake.create_topic(ORDERS, BOUND)
    topic = lake_site.intake.topics.topic(ORDERS)
    assert position_of(lake_site).log == topic.partitions[0].stream_id
    lake_site.send("orders", rows(100))
    assert lake_site.pipeline().drain(30)
    assert lake_site.rows("orders") == rows(1, 100)
    require_sound(lake_site)


def test_a_table_that_the_second_of_two_was_given_last_is_the_firsts_all_the_same(
    lake_site: Site,
    tmp_path: Path,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake_site.send("orders", rows(1))
    assert lake_site.pipeline().drain(30)
    lake_site.intake.delete_topic(ORDERS)
    other = make_settings(**AT_ONCE, wal__path=str(tmp_path / "other"))
    bind = Attachments.bind
    with Intake(other) as intake:

        def between(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(Attachments, "bind", _dies)
            with pytest.raises(KeyboardInterrupt):
                intake.create_topic(ORDERS, BOUND)
            monkeypatch.setattr(Attachments, "bind", bind)
            return bind(*arguments, **options)

        monkeypatch.setattr(Attachments, "bind", between)
        topic = lake_site.intake.create_topic(ORDERS, BOUND)
        assert position_of(lake_site).log != topic.partitions[0].stream_id
        with pytest.raises(Conflict, match="is in log"):
            intake.submit(ORDERS, pa.record_batch({"id": [3]}))
    lake_site.send("orders", rows(100))
    assert lake_site.pipeline().drain(30)
    assert lake_site.rows("orders") == rows(1, 100)
    assert position_of(lake_site).log == topic.partitions[0].stream_id
    require_sound(lake_site)


def test_a_catalog_out_of_reach_leaves_no_topic_behind(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when the columns are asked for, nor when the table is to be given over."""
    with Lake(make_settings(**AT_ONCE)) as lake:
        make_topic_table(lake.catalog, "orders")
        feed(lake.catalog, range(40), name="orders")
        load = lake.intake.catalog.load_table
        for answers in (0, 1):
            left = [load] * answers

            def unsure(name: TableName, left: list[Any] = left) -> Any:
                if left:
                    return left.pop()(name)
                raise Unavailable("the catalog cannot be reached", hint="look at it")

            with monkeypatch.context() as patch:
                patch.setattr(lake.intake.catalog, "load_table", unsure)
                with pytest.raises(Unavailable, match="cannot be reached"):
                    lake.intake.create_topic(ORDERS, BOUND)
            assert lake.intake.topics.find(ORDERS) is None
            assert position_of(lake).log == LOG
        assert lake.intake.create_topic(ORDERS, BOUND).first_offsets == {0: 40}


def test_the_hint_for_a_table_of_another_log_leads_on(lake_site: Site) -> None:
    lake_site.send("orders", rows(1))
    assert lake_site.pipeline().drain(30)
    hand_over(lake_site.table("orders"), 0, lambda _: FOREIGN, topic=ORDERS, settle=_dies)
    lake_site.send("orders", rows(2))
    pipeline = lake_site.pipeline()
    assert not pipeline.drain(0.3)
    (told,) = lake_site.state.progress().partitions.values()
    assert str(FOREIGN) in str(told.error)
    for command in ("topic delete orders", "topic create orders --table", "wal dump orders"):
        assert f"`calve {command}" in str(told.hint)
    assert "begins at offset 1" in str(told.hint)
    bind_again(lake_site)
    lake_site.send("orders", rows(2))
    assert pipeline.drain(30)
    assert lake_site.rows("orders") == rows(1, 2)
    require_sound(lake_site)
