"""The state: records by compare-and-set, committed offsets that never go back, damage that is told."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from calve.clock import SystemClock
from calve.errors import Conflict, Corruption, InvalidSettings, Unavailable
from calve.model import TableName
from calve.state import State, TopicPartition, open_state
from calve.state.sqlite import SqliteState
from tests.conftest import MakeSettings

ORDERS = TableName.parse("orders")
LOG, OTHER_LOG, TOPIC = UUID(int=1), UUID(int=2), UUID(int=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state.db"


@pytest.fixture
def state(path: Path) -> Iterator[State]:
    state = SqliteState(path, clock=SystemClock())
    yield state
    state.close()


def test_a_topic_is_created_once(state: State) -> None:
    created = state.create_topic(ORDERS, b"one")
    assert created is not None
    assert state.create_topic(ORDERS, b"two") is None
    assert state.topic(ORDERS) == created == (ORDERS, b"one", created.version)
    assert state.topic(TableName.parse("others")) is None


def test_only_the_expected_version_is_replaced(state: State) -> None:
    first = state.create_topic(ORDERS, b"one")
    assert first is not None
    second = state.replace_topic(first, b"two")
    assert second is not None
    assert second.version > first.version
    assert state.replace_topic(first, b"three") is None
    assert not state.delete_topic(first, TOPIC, [])
    assert state.topic(ORDERS) == second


def test_a_version_is_not_used_again_after_a_deletion(state: State) -> None:
    first = state.create_topic(ORDERS, b"one")
    assert first is not None
    assert state.delete_topic(first, TOPIC, [])
    again = state.create_topic(ORDERS, b"one")
    assert again is not None
    assert again.version > first.version
    assert state.replace_topic(first, b"late") is None


def test_topics_are_listed_by_tenant(state: State) -> None:
    names = [TableName.parse(each) for each in ("b.d.x", "a.d.y", "a.c.z")]
    for name in names:
        state.create_topic(name, b"")
    assert [record.name for record in state.topics()] == sorted(names)
    assert [str(record.name) for record in state.topics("a")] == ["a.c.z", "a.d.y"]
    assert state.topics("c") == []


def test_streams_of_a_deleted_topic_are_remembered_until_their_log_is_rid_of_them(
    state: State,
) -> None:
    record = state.create_topic(ORDERS, b"")
    assert record is not None
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=5)
    state.add_bytes(0, {TOPIC: 7})
    streams = [uuid4(), uuid4()]
    assert state.delete_topic(record, TOPIC, streams)
    assert state.ended_streams() == set(streams)
    assert state.committed(TOPIC, 0) is None
    assert state.bytes_appended(TOPIC, 0) == 0
    state.forget_ended(streams[0])
    assert state.ended_streams() == {streams[1]}


def test_every_change_of_a_topic_counts(state: State) -> None:
    counts = [state.change_count()]
    record = state.create_topic(ORDERS, b"")
    assert record is not None
    counts.append(state.change_count())
    record = state.replace_topic(record, b"x")
    assert record is not None
    counts.append(state.change_count())
    state.delete_topic(record, TOPIC, [])
    counts.append(state.change_count())
    assert len(set(counts)) == 4


def test_a_committed_offset_never_goes_back(state: State) -> None:
    assert state.committed(TOPIC, 0) is None
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=10).offset == 10
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=4).offset == 10
    known = state.committed(TOPIC, 0)
    assert known is not None
    assert (known.log_id, known.offset) == (LOG, 10)
    assert state.committed(TOPIC, 1) is None


def test_a_committed_offset_of_another_log_is_refused_with_both(state: State) -> None:
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=10)
    with pytest.raises(Conflict, match=f"{OTHER_LOG}.*{LOG}"):
        state.publish_committed(TOPIC, 0, log_id=OTHER_LOG, offset=20)
    assert state.reset_committed(TOPIC, 0, log_id=OTHER_LOG, offset=3).offset == 3
    assert state.publish_committed(TOPIC, 0, log_id=OTHER_LOG, offset=4).offset == 4


def test_a_committed_offset_that_is_held_moves_with_a_commit_alone(state: State) -> None:
    before = state.publish_committed(TOPIC, 0, log_id=LOG, offset=10)
    assert before.resets == 0
    held = state.hold_committed(TOPIC, 0, log_id=LOG, offset=4, seconds=60)
    assert (held.offset, held.resets) == (4, 1)
    assert state.pipeline_orders().resets == {TopicPartition(TOPIC, 0): 1}
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=10, resets=1).offset == 4
    # Whoever has read the table before the hold says nothing that counts, commit or not.
    late = state.publish_committed(TOPIC, 0, log_id=LOG, offset=10, resets=0, is_commit=True)
    assert (late.offset, late.resets) == (4, 1)
    done = state.publish_committed(TOPIC, 0, log_id=LOG, offset=12, resets=1, is_commit=True)
    assert (done.offset, done.resets) == (12, 1)
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=13, resets=1).offset == 13


def test_a_hold_never_raises_an_offset(state: State) -> None:
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=3)
    assert state.hold_committed(TOPIC, 0, log_id=LOG, offset=5, seconds=60).offset == 3
    assert state.hold_committed(TOPIC, 1, log_id=LOG, offset=5, seconds=60).offset == 5


def test_a_hold_ends_when_it_is_released_by_whoever_has_it(state: State) -> None:
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=10)
    first = state.hold_committed(TOPIC, 0, log_id=LOG, offset=4, seconds=60)
    second = state.hold_committed(TOPIC, 0, log_id=LOG, offset=6, seconds=60)
    state.release_committed(TOPIC, 0, resets=first.resets)
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=10, resets=2).offset == 4
    state.release_committed(TOPIC, 0, resets=second.resets)
    known = state.committed(TOPIC, 0)
    assert known is not None
    assert (known.offset, known.resets) == (4, 3)
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=10, resets=3).offset == 10


def test_a_hold_ends_with_its_time(state: State) -> None:
    state.hold_committed(TOPIC, 0, log_id=LOG, offset=4, seconds=0)
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=10, resets=1).offset == 10


def test_nothing_is_set_back_while_offsets_are_kept(state: State, path: Path) -> None:
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=10)
    state.publish_committed(TOPIC, 1, log_id=LOG, offset=7)
    other = SqliteState(path, clock=SystemClock())
    held: list[int] = []

    def hold() -> None:
        held.append(other.hold_committed(TOPIC, 0, log_id=LOG, offset=4, seconds=60).offset)

    thread = threading.Thread(target=hold)
    with state.keeping_committed(0) as known:
        thread.start()
        thread.join(0.2)
        assert not held
        assert {topic: each.offset for topic, each in known.items()} == {TOPIC: 10}
    thread.join()
    assert held == [4]
    other.close()


def test_what_goes_wrong_while_offsets_are_kept_is_no_error_of_the_state(state: State) -> None:
    with pytest.raises(OSError, match="the disk"), state.keeping_committed(0):
        raise OSError("the disk")
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=1).offset == 1


def test_bytes_add_up(state: State) -> None:
    state.add_bytes(0, {TOPIC: 5, UUID(int=9): 1})
    state.add_bytes(0, {TOPIC: 6})
    assert state.bytes_appended(TOPIC, 0) == 11
    assert state.bytes_appended(UUID(int=9), 0) == 1


def test_everything_is_there_after_reopening(state: State, path: Path) -> None:
    record = state.create_topic(ORDERS, b"content")
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=9)
    state.close()
    again = SqliteState(path, clock=SystemClock())
    assert again.topic(ORDERS) == record
    known = again.committed(TOPIC, 0)
    assert known is not None
    assert known.offset == 9
    again.close()


def test_a_closed_state_says_so(state: State) -> None:
    state.close()
    with pytest.raises(Unavailable, match="closed"):
        state.topics()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"\x00" * 4096])
def test_a_file_that_cannot_be_read_is_an_error_with_a_way_out(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(Corruption) as raised:
        SqliteState(path, clock=SystemClock())
    assert str(path) in raised.value.message
    assert "copy" in str(raised.value.hint)
    assert path.read_bytes() == content


def test_damage_inside_the_file_is_told_and_nothing_is_made_anew(state: State, path: Path) -> None:
    for number in range(200):
        state.create_topic(TableName.parse(f"t{number}"), b"x" * 2000)
    state.close()
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xff" * (len(content) - 8192 - 4096)
    path.write_bytes(content)
    with pytest.raises(Corruption, match="cannot be read"):
        SqliteState(path, clock=SystemClock()).topics()


def test_somebody_elses_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    with pytest.raises(Corruption, match="not one of Calve's"):
        SqliteState(path, clock=SystemClock())


def test_a_newer_format_is_refused_with_both_numbers(state: State, path: Path) -> None:
    state.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Conflict, match="format 99, this Calve knows 3"):
        SqliteState(path, clock=SystemClock())


def test_the_state_lies_in_the_data_directory_by_default(make_settings: MakeSettings) -> None:
    settings = make_settings()
    open_state(settings).close()
    assert (settings.data / "_calve" / "state.db").exists()
    for path in (settings.data, settings.data / "_calve"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("dsn", ["postgresql://host/db", "etcd://host:2379"])
def test_a_store_that_comes_later_is_refused_clearly(make_settings: MakeSettings, dsn: str) -> None:
    with pytest.raises(InvalidSettings, match="cannot keep its state in"):
        open_state(make_settings(state__dsn=dsn))


@pytest.mark.parametrize("dsn", ["mysql://host", "sqlite:///:memory:", "nonsense"])
def test_a_store_that_nobody_knows_is_refused(make_settings: MakeSettings, dsn: str) -> None:
    with pytest.raises(InvalidSettings, match="names no store"):
        open_state(make_settings(state__dsn=dsn))


def test_of_many_that_replace_one_record_each_wins_once(path: Path) -> None:
    state = SqliteState(path, clock=SystemClock())
    state.create_topic(ORDERS, b"0")

    def count_up(times: int) -> None:
        mine = SqliteState(path, clock=SystemClock())
        done = 0
        while done < times:
            record = mine.topic(ORDERS)
            assert record is not None
            done += mine.replace_topic(record, b"%d" % (int(record.content) + 1)) is not None
        mine.close()

    threads = [threading.Thread(target=count_up, args=(20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = state.topic(ORDERS)
    assert record is not None
    assert record.content == b"80"
    state.close()


def test_processes_that_make_the_file_at_once_make_one(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from calve.clock import SystemClock; "
        "from calve.state.sqlite import SqliteState; from calve.model import TableName; "
        "s = SqliteState(Path(sys.argv[1]), clock=SystemClock()); "
        "print(s.create_topic(TableName.parse('t'), b'') is not None)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = [process.communicate()[0].strip() for process in processes]
    assert sorted(answers) == ["False", "False", "False", "True"]
