"""Subscriptions of a lake: durable progress, one consumer at a time, at least once."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from calve.errors import Conflict, Fenced, InvalidRequest, NotFound, Unavailable
from calve.state import SubscriptionName
from calve.subscriptions import Batch, Subscription
from calve.subscriptions.register import Subscriptions
from calve.subscriptions.served import ServedSubscriptions
from calve.subscriptions.start import parse_start
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.topic_site import TopicSite, batch_offsets, offsets_of, topic_site

FLAGS = {
    "wal__free_bytes_min": 0,
    "wal__hot_window_seconds": 0,
    "pipeline__flush_interval_ms": 1,
    "reader__poll_interval_ms": 50,
    **QUICK_RETRIES,
}
# A consumer that reads one batch, says so, and goes on living until it is killed.
CONSUMER = """
import sys, time, calve
with calve.open(sys.argv[1]) as lake, lake.subscribe("orders", "billing", lease_seconds=0.5) as s:
    batch = next(s)
    s.ack(batch, batch.first_offset + 1)
    print(batch.first_offset, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def site(make_settings: MakeSettings) -> Iterator[TopicSite]:
    with topic_site(make_settings(**FLAGS)) as made:
        yield made


@pytest.fixture
def two(make_settings: MakeSettings) -> Iterator[TopicSite]:
    with topic_site(make_settings(**FLAGS), partitions=2) as made:
        yield made


def poll_on(subscription: Subscription) -> None:
    """Whatever comes, until something is wrong."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        subscription.poll(0.1)


def name_of(site: TopicSite) -> SubscriptionName:
    return SubscriptionName(site.name, "billing")


def fence(site: TopicSite) -> None:
    """Have somebody else take it, as if its time had been over."""
    name = name_of(site)
    owner = site.state.subscription(name)
    assert owner is not None
    assert owner.owner is not None
    held = site.state.claim_subscription(name, owner.owner, 60)
    assert held is not None
    site.state.release_subscription(held)
    assert site.state.claim_subscription(name, "another", 60) is not None


def first(found: Batch | None) -> list[int]:
    assert found is not None
    return batch_offsets(found)


def test_what_is_acknowledged_does_not_come_again_and_the_rest_does(site: TopicSite) -> None:
    site.append(3)
    site.commit()
    site.append(2)
    with site.subscribe() as billing:
        batch = next(billing)
        assert batch_offsets(batch) == [0, 1, 2]
        assert billing.ack(batch)
        assert first(billing.poll(5)) == [3, 4]
        assert billing.lag == 2
    with site.subscribe(start="latest") as billing:  # where it begins was said before
        batch = next(billing)
        assert batch_offsets(batch) == [3, 4]
        assert billing.ack(batch, 4)
    with site.subscribe(follow=False) as billing:
        assert [batch_offsets(batch) for batch in billing] == [[4]]
        assert billing.is_done
    with site.subscribe("audit", follow=False) as audit:
        assert [offset for batch in audit for offset in batch_offsets(batch)] == [0, 1, 2, 3, 4]


def test_partitions_have_progress_of_their_own(two: TopicSite) -> None:
    two.append(3)
    two.append(2, partition=1)
    with two.subscribe() as billing:
        batches = {batch.partition: batch for batch in (next(billing), next(billing))}
        assert billing.ack(batches[1])
    status = two.lake.subscriptions.describe("orders", "billing")
    assert (status.positions, status.ends, status.lag) == ({0: 0, 1: 2}, {0: 3, 1: 2}, 3)
    two.commit()
    two.trim()
    two.compact()
    with two.subscribe() as billing:
        assert first(billing.poll(5)) == [0, 1, 2]
        assert billing.poll(0.05) is None


def test_it_begins_where_it_was_asked_to_and_at_latest_waits(site: TopicSite) -> None:
    site.append(5)
    with site.subscribe("new", start="latest") as new, site.subscribe("some", start=3) as some:
        assert new.poll(0.05) is None
        assert first(some.poll(5)) == [3, 4]
        site.append(1)
        assert first(new.poll(5)) == [5]
    with site.subscribe("ever", start=datetime(2020, 1, 1, tzinfo=UTC)) as ever:
        assert first(ever.poll(5))[0] == 0


def test_rows_come_again_after_a_nack_and_what_was_out_no_longer_counts(site: TopicSite) -> None:
    for _ in range(3):
        site.append(2)
    with site.subscribe() as billing:
        a = billing.poll(5)
        assert a is not None
        assert billing.ack(a, 1)
        site.append(1)
        b = billing.poll(5)
        assert b is not None
        billing.nack(b)
        assert not billing.ack(b)
        assert not billing.ack(a)
        billing.nack(a)  # which has come to nothing already
        again = billing.poll(5)
        assert again is not None
        assert again.first_offset == 1
        assert billing.ack(again)
        assert site.state.positions(name_of(site))[0] == again.next_offset


def test_a_seek_is_for_good_and_what_was_out_no_longer_counts(site: TopicSite) -> None:
    site.append(6)
    with site.subscribe() as billing:
        batch = next(billing)
        billing.seek(4)
        assert not billing.ack(batch)
        assert first(billing.poll(5)) == [4, 5]
        billing.reset()
        assert first(billing.poll(5)) == [0, 1, 2, 3, 4, 5]
        billing.seek("latest")
        assert billing.poll(0.05) is None
        with pytest.raises(InvalidRequest, match="no offset 7 yet"):
            billing.seek(7)
        assert billing.lag == 0
    with site.subscribe() as billing:
        assert billing.poll(0.05) is None


def test_an_operator_moves_it_under_its_consumer_who_goes_on_from_there(site: TopicSite) -> None:
    site.append(6)
    with site.subscribe(lease_seconds=0.5) as billing:
        batch = next(billing)
        moved = site.lake.subscriptions.seek("orders", "billing", 5)
        assert (moved.positions, moved.lag) == ({0: 5}, 1)
        assert not billing.ack(batch)
        assert first(billing.poll(5)) == [5]
        site.lake.subscriptions.reset("orders", "billing")
        assert first(billing.poll(5)) == [0, 1, 2, 3, 4, 5]  # also one that waits is told
        site.lake.subscriptions.delete("orders", "billing")
        with pytest.raises(NotFound, match="no subscription billing"):
            billing.ack(batch, 1) or billing.poll(5)


def test_one_consumer_at_a_time_has_it_and_the_next_one_waits(site: TopicSite) -> None:
    site.append(2)
    with site.subscribe() as one, site.subscribe(lease_seconds=0.5) as other:
        batch = next(one)
        assert one.is_owner
        assert other.poll(0.05) is None
        assert not other.is_owner
        with pytest.raises(Conflict, match="another consumer"):
            other.seek("latest")
        assert one.ack(batch, 1)
        threading.Timer(0.1, one.close).start()
        assert first(other.poll(5)) == [1]
        assert other.is_owner


def test_a_consumer_that_lost_it_is_told_at_its_next_acknowledgement(site: TopicSite) -> None:
    site.append(2)
    with site.subscribe() as billing:
        batch = next(billing)
        fence(site)
        with pytest.raises(Fenced, match="another owner"):
            billing.ack(batch)
        with pytest.raises(Fenced, match="another owner"):
            billing.poll(0)
        assert not billing.is_owner
    assert site.state.positions(name_of(site)) == {0: 0}
    kept = site.state.subscription(name_of(site))
    assert kept is not None
    assert kept.owner == "another"


def test_a_consumer_that_lost_it_is_told_at_its_next_poll(site: TopicSite) -> None:
    site.append(1)
    with site.subscribe(start="latest", lease_seconds=0.5) as billing:
        assert billing.poll(0.01) is None
        fence(site)
        site.append(1)
        time.sleep(0.2)  # it looks every 0.1 s
        with pytest.raises(Fenced, match="another owner"):
            billing.poll(5)


def test_it_is_kept_while_rows_are_worked_on_for_longer_than_the_lease(site: TopicSite) -> None:
    site.append(1)
    with site.subscribe(lease_seconds=0.3) as billing, site.subscribe(lease_seconds=0.3) as other:
        batch = next(billing)
        assert other.poll(0.8) is None
        assert billing.is_owner
        assert billing.ack(batch)


def away(*_: object) -> None:
    raise Unavailable("the state is away")


def test_nothing_is_handed_out_while_it_is_not_known_whose_it_is(
    site: TopicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.append(1)
    with site.subscribe(lease_seconds=0.3) as billing:
        batch = next(billing)
        monkeypatch.setattr(billing._state, "renew_subscription", away)
        site.append(1)
        time.sleep(0.4)
        with pytest.raises(Unavailable):
            billing.poll(0)
        assert not billing.is_owner
        monkeypatch.undo()
        assert first(billing.poll(5)) == [1]
        assert billing.ack(batch)


def test_rows_that_took_longer_than_the_lease_wait_until_it_is_known_whose_it_is(
    site: TopicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.append(1)
    with site.subscribe(lease_seconds=0.3) as billing:
        assert billing.poll(0.2) is not None
        site.append(1)
        read = billing._reading.poll

        def slow(timeout_seconds: float | None = None) -> Batch | None:
            found = read(timeout_seconds)
            monkeypatch.setattr(billing._state, "renew_subscription", away)
            time.sleep(0.4)
            return found

        monkeypatch.setattr(billing._reading, "poll", slow)
        with pytest.raises(Unavailable):
            billing.poll(5)
        monkeypatch.undo()
        assert first(billing.poll(5)) == [1]


def test_rows_on_their_way_when_others_are_to_come_again_come_after_them(
    site: TopicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.append(2)
    with site.subscribe() as billing:
        batch = next(billing)
        site.append(2)
        read = billing._reading.poll

        def beside_another_thread(timeout_seconds: float | None = None) -> Batch | None:
            found = read(timeout_seconds)
            monkeypatch.undo()
            billing.nack(batch)
            return found

        monkeypatch.setattr(billing._reading, "poll", beside_another_thread)
        assert first(billing.poll(5)) == [0, 1, 2, 3]


def test_another_takes_over_from_one_that_was_killed(site: TopicSite) -> None:
    site.append(4)
    consumer = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, str(site.settings.data)], stdout=subprocess.PIPE
    )
    try:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"0\n"
        with site.subscribe(lease_seconds=0.5) as billing:
            assert billing.poll(0.7) is None
            consumer.kill()
            assert first(billing.poll(5)) == [1, 2, 3]
    finally:
        consumer.kill()
        consumer.communicate()


def test_offsets_without_rows_are_passed_over_once_those_before_are_done(site: TopicSite) -> None:
    site.append(6)
    with site.subscribe(where="id = 2", lease_seconds=0.5) as billing:
        batch = next(billing)
        site.append(4)
        assert billing.poll(0.05) is None
        assert billing.lag == 10
        assert billing.ack(batch)
        assert billing.lag == 4
        assert billing.poll(0.05) is None
        assert billing.lag == 0


def test_subscriptions_are_listed_and_those_of_a_topic_made_again_begin_anew(
    site: TopicSite,
) -> None:
    site.append(2)
    with site.subscribe() as billing:
        billing.ack(next(billing))
    with site.subscribe("audit"):
        pass
    register = site.lake.subscriptions
    assert [(each.name, each.lag) for each in register.list("orders")] == [
        ("audit", 2),
        ("billing", 0),
    ]
    intake = site.intakes[0]
    intake.delete_topic(site.name)
    assert [each.ends for each in register.list()] == [{}, {}]
    with pytest.raises(NotFound, match="orders"):
        site.subscribe()
    site.append(1)
    with pytest.raises(Conflict, match="made again") as refused:
        site.subscribe()
    assert "calve subscription reset orders billing" in str(refused.value)
    assert register.describe("orders", "billing").document()["lag"] is None
    assert register.reset("orders", "billing").lag == 1
    with site.subscribe() as billing:
        assert len(first(billing.poll(5))) == 1


@pytest.mark.parametrize("name", ["", "a/b", "-x", "x" * 64])
def test_a_name_that_is_none_and_a_topic_that_is_not_there_are_refused(
    site: TopicSite, name: str
) -> None:
    with pytest.raises(InvalidRequest, match="not a name for a subscription"):
        site.subscribe(name)
    with pytest.raises(NotFound, match="orders"):
        site.subscribe("billing")
    with pytest.raises(NotFound, match="no subscription"):
        site.lake.subscriptions.seek("orders", "billing", 0)
    assert site.lake.subscriptions.list() == []


def test_what_was_not_handed_out_cannot_be_acknowledged(site: TopicSite) -> None:
    site.append(3)
    with site.subscribe() as billing, site.read() as reader:
        with pytest.raises(InvalidRequest, match="not handed out"):
            billing.ack(next(reader))
        batch = next(billing)
        with pytest.raises(InvalidRequest, match="offset 4 is not in the batch"):
            billing.ack(batch, 4)
    with pytest.raises(InvalidRequest, match="lease_seconds"):
        site.subscribe(lease_seconds=0)
    assert billing.poll() is None
    assert billing.is_done


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_rollback_is_told_though_rows_were_asked_for_again(
    make_settings: MakeSettings, is_shared: bool
) -> None:
    """Of rows that were acknowledged: what is asked for again has not been passed."""
    flags = {**FLAGS, "reader__poll_interval_ms": 500}
    with topic_site(make_settings(**flags)) as site, ExitStack() as opened:
        for _ in range(2):
            site.append(5)
            site.commit()
        first = site.lake.tables.list_snapshots("orders")[0]
        register: Subscriptions = site.lake.subscriptions
        if is_shared:
            served = ServedSubscriptions(site.settings, lambda: site.lake.catalog)
            opened.callback(served.close)
            register = served
        with register.open("orders", "billing") as subscription:
            done = 0
            while done < 10:
                batch = next(subscription)
                assert subscription.ack(batch)
                done = batch.next_offset
            site.append(2)
            batch = next(subscription)
            site.lake.tables.rollback("orders", first.id)
            subscription.nack(batch)
            with pytest.raises(Conflict, match="from offset 5 on"):
                poll_on(subscription)


def test_a_rollback_names_the_command_that_reads_again_what_comes_again(
    make_settings: MakeSettings,
) -> None:
    with topic_site(make_settings(**FLAGS), partitions=2) as site:
        for _ in range(2):
            site.append(5)
            site.append(3, partition=1)
            site.commit()
        first = site.lake.tables.list_snapshots("orders")[1]
        with site.subscribe() as subscription:
            while sum(subscription.status().positions.values()) < 16:
                subscription.ack(next(subscription))
            site.lake.tables.rollback("orders", first.id)
            time.sleep(0.06)
            with pytest.raises(Conflict, match="was rolled back") as told:
                poll_on(subscription)
        assert told.value.hint is not None
        words = re.findall(
            r"calve subscription seek orders billing --to ([\d:,]+)", told.value.hint
        )
        start = parse_start(words[0])
        assert isinstance(start, dict)
        changed = int(told.value.context["partition"])
        whole = {0: 10, 1: 6}
        assert start == whole | {changed: int(told.value.context["lowest"])}
        assert start[changed] < whole[changed]
        moved = site.lake.subscriptions.seek("orders", "billing", start)
        assert moved.positions == start
        with site.subscribe(follow=False) as again:
            assert offsets_of(again).get(changed, []) == []  # nothing has come again yet


def test_a_seek_that_meets_a_rollback_moves_nothing(site: TopicSite) -> None:
    for _ in range(2):
        site.append(5)
        site.commit()
    first = site.lake.tables.list_snapshots("orders")[0]
    with site.subscribe() as subscription:
        found = [next(subscription), next(subscription)]
        assert subscription.ack(found[0])
        site.lake.tables.rollback("orders", first.id)
        time.sleep(0.06)
        for _ in range(2):
            with pytest.raises(Conflict, match="from offset 5 on"):
                subscription.poll(1)
        assert site.state.positions(name_of(site)) == {0: 5}
        site.append(1)
        subscription.seek({0: 2})
        assert site.state.positions(name_of(site)) == {0: 2}
        assert [batch_offsets(next(subscription)) for _ in range(2)] == [[2, 3, 4], [10]]


def test_rows_that_another_thread_asks_for_again_are_not_left_out(site: TopicSite) -> None:
    site.append(5)
    with site.subscribe() as subscription:
        batch = next(subscription)
        waiting = ThreadPoolExecutor(1)
        for _ in range(20):
            coming = waiting.submit(next, subscription)
            time.sleep(0.005)
            subscription.nack(batch)
            batch = coming.result(10)
            assert batch.first_offset == 0
        waiting.shutdown()
