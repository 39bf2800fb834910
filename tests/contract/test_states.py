"""Every store of the state does the same: topics, offsets, leases, requests, orders, progress."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from uuid import UUID, uuid4

import pytest

from calve.errors import Conflict, Unavailable
from calve.model import TableName
from calve.state import PipelineOrders, Progress, State, TopicPartition
from tests.contract.states import StateStore

ORDERS = TableName.parse("orders")
LOG, OTHER_LOG, TOPIC, OTHER = UUID(int=1), UUID(int=2), UUID(int=3), UUID(int=4)
HERE = TopicPartition(TOPIC, 0)


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


def test_a_table_that_was_set_back_keeps_its_log_until_it_is_back_or_somebody_decides(
    state: State,
) -> None:
    def may_go() -> int:
        left = state.all_committed(0)[TOPIC].offset
        assert state.reached(TOPIC, 0) == left
        return left

    def note(offset: int, *, resets: int = 0) -> bool:
        return state.note_rewound(TOPIC, 0, log_id=LOG, offset=offset, resets=resets)

    assert not note(4)
    assert state.reached(TOPIC, 0) == 0
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=10)
    assert not note(10)
    assert not note(4, resets=1)
    assert may_go() == 10
    assert note(4)
    assert note(4)
    known = state.committed(TOPIC, 0)
    assert known is not None
    assert known.offset == 10
    assert may_go() == 4
    with state.keeping_committed(0) as kept:
        assert kept[TOPIC].offset == 4
    # A table that is still behind ends nothing; one that is there again does.
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=4)
    assert may_go() == 4
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=10)
    assert may_go() == 10
    assert note(4)
    assert state.hold_committed(TOPIC, 0, log_id=LOG, offset=6, seconds=0.0).offset == 6
    assert may_go() == 6
    assert not note(4)


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


def test_nothing_is_set_back_while_offsets_are_kept(state: State, store: StateStore) -> None:
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=10)
    state.publish_committed(TOPIC, 1, log_id=LOG, offset=7)
    other = store.open()
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


def test_bytes_add_up(state: State) -> None:
    state.add_bytes(0, {TOPIC: 5, UUID(int=9): 1})
    state.add_bytes(0, {TOPIC: 6})
    assert state.bytes_appended(TOPIC, 0) == 11
    assert state.bytes_appended(UUID(int=9), 0) == 1


def test_everything_is_there_after_reopening(state: State, store: StateStore) -> None:
    record = state.create_topic(ORDERS, b"content")
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=9)
    state.close()
    again = store.open()
    assert again.topic(ORDERS) == record
    known = again.committed(TOPIC, 0)
    assert known is not None
    assert known.offset == 9
    again.close()


def test_a_closed_state_says_so(state: State) -> None:
    state.close()
    with pytest.raises(Unavailable, match="closed"):
        state.topics()


def test_of_many_that_replace_one_record_each_wins_once(store: StateStore) -> None:
    state = store.open()
    state.create_topic(ORDERS, b"0")

    def count_up(times: int) -> None:
        mine = store.open()
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


def test_processes_that_make_a_state_at_once_make_one(store: StateStore) -> None:
    code = (
        "import sys; from calve.settings import load_settings; from calve.state import open_state; "
        "from calve.model import TableName; "
        "flags = {'data': sys.argv[1], 'state.dsn': sys.argv[2]}; "
        "state = open_state(load_settings(flags=flags, environ={}).settings); "
        "print(state.create_topic(TableName.parse('t'), b'') is not None)"
    )
    command = [sys.executable, "-c", code, str(store.directory), store.dsn]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate()[0].strip() for process in processes]
    assert sorted(answers) == ["False", "False", "True"]


def test_a_lease_is_released_by_its_owner_alone(state: State) -> None:
    state.take_lease("pipeline", "a", 10)
    state.release_lease("pipeline", "b")
    assert not state.take_lease("pipeline", "b", 10)
    state.release_lease("pipeline", "a")
    assert state.take_lease("pipeline", "b", 10)


def test_the_highest_offset_of_flush_requests_stays_until_the_table_is_there(
    state: State,
) -> None:
    for offset in (5, 9, 7):
        state.request_flush(TOPIC, 0, offset)
    state.request_flush(TOPIC, 1, 3)
    assert state.flush_requests() == {HERE: 9, TopicPartition(TOPIC, 1): 3}
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=8)
    assert state.flush_requests()[HERE] == 9
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=9)
    assert state.flush_requests() == {TopicPartition(TOPIC, 1): 3}


def test_what_is_in_the_table_needs_no_flush_and_no_skip(state: State) -> None:
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=9)
    state.request_flush(TOPIC, 0, 9)
    state.request_skip(TOPIC, 0, 4)
    assert state.flush_requests() == {}
    assert state.pipeline_orders() == PipelineOrders()


def test_a_new_log_makes_requests_about_the_old_one_void(state: State) -> None:
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=20)
    state.request_flush(TOPIC, 0, 90)
    state.request_skip(TOPIC, 0, 90)
    state.reset_committed(TOPIC, 0, log_id=LOG, offset=9)
    assert state.flush_requests() == {HERE: 90}, "the same log, from an earlier offset"
    state.reset_committed(TOPIC, 0, log_id=UUID(int=9), offset=9)
    assert state.flush_requests() == {}
    assert state.pipeline_orders().skips == {}


def test_topics_are_paused_alone_or_all_together(state: State) -> None:
    state.pause_pipeline(TOPIC)
    state.pause_pipeline(TOPIC)
    assert state.pipeline_orders() == PipelineOrders(paused_topics=frozenset({TOPIC}))
    assert state.pipeline_orders().holds_back(TOPIC)
    assert not state.pipeline_orders().holds_back(OTHER)
    state.pause_pipeline()
    assert state.pipeline_orders().holds_back(OTHER)
    state.resume_pipeline(TOPIC)
    assert state.pipeline_orders() == PipelineOrders(is_paused=True)
    state.pause_pipeline(OTHER)
    state.resume_pipeline()
    assert state.pipeline_orders() == PipelineOrders()


def test_a_skip_holds_until_the_table_has_passed_it(state: State) -> None:
    assert state.request_skip(TOPIC, 0, 20) == 20
    assert state.request_skip(TOPIC, 0, 10) == 20
    assert state.pipeline_orders().skips == {HERE: 20}
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=19)
    assert state.pipeline_orders().skips == {HERE: 20}
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=20)
    assert state.pipeline_orders().skips == {}


def test_a_deleted_topic_leaves_no_orders(state: State) -> None:
    record = state.create_topic(TableName.parse("orders"), b"")
    assert record is not None
    state.request_flush(TOPIC, 0, 5)
    state.request_skip(TOPIC, 0, 5)
    state.pause_pipeline(TOPIC)
    state.publish_progress([Progress(topic_id=TOPIC, partition=0)])
    assert state.delete_topic(record, TOPIC, [])
    assert state.flush_requests() == {}
    assert state.pipeline_orders() == PipelineOrders()
    assert state.progress().partitions == {}


def test_a_token_is_kept_under_its_id_until_it_is_deleted(state: State) -> None:
    assert state.token("a1") is None
    assert state.create_token("a1", b"one")
    assert not state.create_token("a1", b"two")
    assert state.create_token("b2", bytes(range(256)))
    assert state.token("a1") == b"one"
    assert state.tokens() == {"a1": b"one", "b2": bytes(range(256))}
    assert state.delete_token("a1")
    assert not state.delete_token("a1")
    assert state.token("a1") is None
    assert state.create_token("a1", b"again")


def test_a_signing_key_is_made_once_for_all_who_use_the_state(store: StateStore) -> None:
    with closing(store.open()) as one, closing(store.open()) as other:
        key = one.signing_key("tickets")
        assert len(key) == 32
        assert other.signing_key("tickets") == key
        assert one.signing_key("other") != key
