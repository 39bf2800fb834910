"""Invariant 11, from the intake's side: a topic and a log that do not belong together stop."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest

from calve.clock import SystemClock
from calve.errors import Conflict, InvalidRequest, NotFound
from calve.ingest import Intake
from calve.ingest.attached import Attachments
from calve.ingest.kept_log import KeptLog
from calve.ingest.readers import ReaderPool
from calve.lake import Lake
from calve.model import TableName
from calve.settings import Settings
from calve.state import open_state
from calve.state.sqlite import SqliteState
from calve.topics import TopicRegistry, TopicSpec
from calve.wal import Kind, Log, LogOptions, OsFiles
from calve.wal.layout import LogLayout
from calve.wal.repair import repair
from tests.conftest import MakeSettings
from tests.fakes.segment_map import extents
from tests.fakes.topic_table import feed, make_topic_table

ORDERS, OTHERS = TableName.parse("orders"), TableName.parse("others")
BATCH = pa.record_batch({"id": [1, 2, 3]})


def wal(settings: Settings) -> Path:
    assert settings.wal.path is not None
    return settings.wal.path


def filled(settings: Settings, committed: int = 0) -> str:
    """A lake with three rows in a topic; the id of its log."""
    with Intake(settings) as intake:
        intake.submit(ORDERS, BATCH).wait()
        if committed:
            topic = intake.topics.topic(ORDERS)
            log_id = intake.log.log_id
            intake.state.publish_committed(topic.id, 0, log_id=log_id, offset=committed)
        return str(intake.log.log_id)


def test_a_lost_directory_stops_its_topics_and_no_others(make_settings: MakeSettings) -> None:
    settings = make_settings()
    lost = filled(settings, committed=2)
    shutil.rmtree(wal(settings))
    with Intake(settings) as intake:
        assert list(intake.problems) == [ORDERS]
        with pytest.raises(Conflict) as raised:
            intake.submit(ORDERS, BATCH)
        assert lost in raised.value.message
        assert str(intake.log.log_id) in raised.value.message
        assert "--new-log" in str(raised.value.hint)
        assert intake.submit(OTHERS, BATCH).wait() == (0, 3, False)


def test_an_operator_has_a_topic_go_on_in_a_new_log_where_its_table_ends(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings()
    filled(settings, committed=2)
    shutil.rmtree(wal(settings))
    with Intake(settings) as intake:
        assert intake.adopt_new_log(ORDERS) == 2
        assert intake.problems == {}
        assert intake.offsets(ORDERS) == (2, 2, 2)
        assert intake.submit(ORDERS, BATCH).wait() == (2, 5, False)
        topic = intake.topics.topic(ORDERS)
        intake.state.publish_committed(topic.id, 0, log_id=intake.log.log_id, offset=5)
    with Intake(settings) as intake:
        assert intake.problems == {}
        assert intake.offsets(ORDERS) == (2, 5, 5)


def test_a_topic_whose_name_a_repair_could_not_save_goes_on_where_its_table_ends(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings()
    with Intake(settings) as intake:
        intake.submit(OTHERS, BATCH).wait()
    filled(settings, committed=2)
    path = LogLayout(wal(settings)).segment(1)
    content = bytearray(path.read_bytes())
    opened = [f for f in extents(bytes(content)) if f.kind == Kind.STREAM_OPENED and f.stream == 2]
    for frame in opened:
        content[frame.begin : frame.end] = bytes(frame.end - frame.begin)
    path.write_bytes(content)
    repair(OsFiles(), LogLayout(wal(settings)), [], accept_unknown=True, dry_run=False)
    with Intake(settings) as intake:
        assert list(intake.problems) == [ORDERS]
        assert intake.submit(OTHERS, BATCH).wait() == (3, 6, False)
        with pytest.raises(Conflict, match="has no stream of it") as raised:
            intake.submit(ORDERS, BATCH)
        assert "topic alter orders --new-log" in str(raised.value.hint)
        assert intake.adopt_new_log(ORDERS) == 2
        assert intake.submit(ORDERS, BATCH).wait() == (2, 5, False)
    with Intake(settings) as intake:
        assert intake.problems == {}


def test_a_topic_whose_log_is_here_is_not_begun_anew(make_settings: MakeSettings) -> None:
    """Its rows that are in no table yet would be lost, also when an operator asks twice."""
    settings = make_settings()
    filled(settings, committed=2)
    with Intake(settings) as intake:
        with pytest.raises(Conflict, match="is not lost") as raised:
            intake.adopt_new_log(ORDERS)
        assert "leave --new-log out" in str(raised.value.hint)
        assert intake.offsets(ORDERS) == (0, 3, 2)
    shutil.rmtree(wal(settings))
    with Intake(settings) as intake:
        intake.adopt_new_log(ORDERS)
        intake.submit(ORDERS, BATCH).wait()
        with pytest.raises(Conflict, match="is not lost"):
            intake.adopt_new_log(ORDERS)
        assert intake.offsets(ORDERS) == (2, 5, 2)


def test_a_new_log_that_was_begun_by_one_who_died_is_taken_over_with_its_rows(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    filled(settings, committed=2)
    shutil.rmtree(wal(settings))
    with Intake(settings) as intake:
        with monkeypatch.context() as patch:
            patch.setattr(intake.state, "reset_committed", _dies)
            with pytest.raises(KeyboardInterrupt):
                intake.adopt_new_log(ORDERS)
        intake.submit(ORDERS, BATCH).wait()
        assert intake.adopt_new_log(ORDERS) == 2
        assert intake.offsets(ORDERS) == (2, 5, 2)


def _dies(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


def test_a_swapped_directory_is_noticed(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings()
    filled(settings)
    other = make_settings(data=str(tmp_path / "other"))
    filled(other)
    aside = tmp_path / "aside"
    wal(settings).rename(aside)
    wal(other).rename(wal(settings))
    with Intake(settings) as intake:
        assert list(intake.problems) == [ORDERS]
        with pytest.raises(Conflict, match="is in log"):
            intake.offsets(ORDERS)
    wal(settings).rename(wal(other))
    aside.rename(wal(settings))
    with Intake(settings) as intake:
        assert intake.problems == {}
        assert intake.submit(ORDERS, BATCH).wait() == (3, 6, False)


def older_copy(settings: Settings, tmp_path: Path) -> Path:
    """A copy of the log as it is, which can be put back in its place."""
    copy = tmp_path / "copy"
    shutil.copytree(wal(settings), copy)
    return copy


def put_back(settings: Settings, copy: Path) -> None:
    """Restored below the file system: the same files, with the contents of then."""
    for path in wal(settings).iterdir():
        old = copy / path.name
        if old.exists():
            path.write_bytes(old.read_bytes())
        else:
            path.unlink()


def test_an_older_log_than_the_table_is_noticed(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings()
    filled(settings)
    copy = older_copy(settings, tmp_path)
    with Intake(settings) as intake:
        intake.submit(ORDERS, BATCH).wait()
        topic = intake.topics.topic(ORDERS)
        intake.state.publish_committed(topic.id, 0, log_id=intake.log.log_id, offset=6)
    put_back(settings, copy)
    with Intake(settings) as intake, pytest.raises(Conflict, match="older than the table"):
        intake.submit(ORDERS, BATCH)


def test_a_log_from_before_the_topic_is_noticed(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings()
    Intake(settings).close()
    copy = older_copy(settings, tmp_path)
    filled(settings)
    put_back(settings, copy)
    with Intake(settings) as intake, pytest.raises(Conflict, match="has no stream of it"):
        intake.submit(ORDERS, BATCH)


def test_a_log_from_a_topics_life_before_is_noticed(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings()
    filled(settings)
    copy = older_copy(settings, tmp_path)
    with Intake(settings) as intake:
        before = intake.topics.topic(ORDERS).partitions[0].stream_id
        intake.delete_topic(ORDERS)
        intake.submit(ORDERS, BATCH).wait()
        after = intake.topics.topic(ORDERS).partitions[0].stream_id
    put_back(settings, copy)
    with Intake(settings) as intake:
        with pytest.raises(Conflict, match=f"{after}.*has stream {before}"):
            intake.submit(ORDERS, BATCH)
        assert intake.adopt_new_log(ORDERS) == 0
        assert intake.submit(ORDERS, BATCH).wait() == (0, 3, False)


def test_rows_of_a_topic_that_the_state_forgot_are_not_taken_for_anothers(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings()
    filled(settings)
    for path in (settings.data / "_calve").glob("state.db*"):
        path.unlink()
    with Intake(settings) as intake:
        with pytest.raises(Conflict, match="which the registry does not know") as raised:
            intake.submit(ORDERS, BATCH)
        assert "--adopt" in str(raised.value.hint)
        intake.create_topic(ORDERS, TopicSpec(schema={"id": "long"}), adopt=True)
        assert intake.offsets(ORDERS) == (0, 3, 0)
        assert intake.submit(ORDERS, BATCH).wait() == (3, 6, False)
        with pytest.raises(NotFound, match="no rows of a topic others"):
            intake.create_topic(OTHERS, TopicSpec(schema={"id": "long"}), adopt=True)


def test_a_topic_that_was_never_used_here_has_no_problem(make_settings: MakeSettings) -> None:
    settings = make_settings()
    state = open_state(settings)
    TopicRegistry(state).create(ORDERS, TopicSpec(schema={"id": "long"}))
    state.close()
    with Intake(settings) as intake:
        assert intake.problems == {}
        assert intake.submit(ORDERS, BATCH).wait() == (0, 3, False)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[TopicRegistry]:
    state = SqliteState(tmp_path / "state.db", clock=SystemClock())
    yield TopicRegistry(state)
    state.close()


@contextmanager
def attachments(directory: Path, registry: TopicRegistry) -> Iterator[tuple[Attachments, Log]]:
    state = SqliteState(directory.parent / "state.db", clock=SystemClock())
    kept = KeptLog(directory, LogOptions(), clock=SystemClock())
    with closing(state), closing(kept):
        readers = ReaderPool(kept)
        yield Attachments(state, registry, kept, readers, 0, hand_over=_no_table), kept.current


def _no_table(*_: object) -> NoReturn:
    raise AssertionError("nobody was to ask for a table")


def test_a_topic_made_again_meanwhile_does_not_get_the_rows_of_the_one_before(
    registry: TopicRegistry, tmp_path: Path
) -> None:
    registry.create(ORDERS, TopicSpec(schema={"id": "long"}))
    with attachments(tmp_path / "wal", registry) as (attached, log):
        first = attached.attach(ORDERS).stream
        log.append(first, BATCH)
        attached.forget(ORDERS)
        registry.delete(ORDERS)
        registry.create(ORDERS, TopicSpec(schema={"id": "long"}))
        second = attached.attach(ORDERS).stream
        assert second.id != first.id
        assert log.streams == [second]


def test_of_two_logs_that_bind_one_partition_at_once_the_second_is_told(
    registry: TopicRegistry, tmp_path: Path
) -> None:
    topic = registry.create(ORDERS, TopicSpec(schema={"id": "long"}))
    with (
        attachments(tmp_path / "one", registry) as (one, log),
        attachments(tmp_path / "two", registry) as (two, other),
    ):
        bound = one.bind(topic, log.create_stream(ORDERS))
        with pytest.raises(Conflict, match=f"is in log {log.log_id}"):
            two.bind(topic, other.create_stream(ORDERS))
        assert registry.topic(ORDERS) == bound


def test_a_topic_is_bound_to_a_table_with_its_columns_and_ids(make_settings: MakeSettings) -> None:
    with Lake(make_settings()) as lake:
        lake.tables.create_table("orders", {"old": "int", "id": "long", "name": "string"})
        lake.tables.drop_column("orders", "old")
        with pytest.raises(Conflict, match="there is a table orders already"):
            lake.produce("orders", [{"id": 1}])
        topic = lake.intake.create_topic(ORDERS, TopicSpec(bind_table=True))
        assert topic.is_bound
        fields = {field.name: field.field_id for field in topic.schema.fields}
        assert fields == {"id": 2, "name": 3}
        assert topic.last_column_id == 3
        lake.produce("orders", [{"id": 1, "new": True}])
        grown = lake.intake.topics.topic(ORDERS)
        assert grown.schema.find_field("new").field_id == 4
        assert lake.intake.create_topic(ORDERS, TopicSpec(bind_table=True)) == grown


def test_a_topic_made_again_begins_where_its_table_ends(make_settings: MakeSettings) -> None:
    with Lake(make_settings()) as lake:
        make_topic_table(lake.catalog, "orders")
        feed(lake.catalog, range(40), name="orders")
        topic = lake.intake.create_topic(ORDERS, TopicSpec(bind_table=True))
        assert [field.name for field in topic.schema.fields] == ["id", "name"]
        assert lake.intake.offsets(ORDERS) == (40, 40, 40)
        assert lake.produce("orders", [{"id": 1}]).first == 40


@pytest.mark.parametrize(
    "spec",
    [
        TopicSpec(bind_table=True, schema={"id": "long"}),
        TopicSpec(bind_table=True, partition_by=["id"]),
        TopicSpec(bind_table=True, kind="messages"),
    ],
)
def test_a_bound_topic_takes_everything_from_its_table(
    make_settings: MakeSettings, spec: TopicSpec
) -> None:
    with Lake(make_settings()) as lake:
        lake.tables.create_table("orders", {"id": "long"})
        with pytest.raises(InvalidRequest, match="has the table's columns"):
            lake.intake.create_topic(ORDERS, spec)
        with pytest.raises(NotFound, match="no table others"):
            lake.intake.create_topic(OTHERS, TopicSpec(bind_table=True))
