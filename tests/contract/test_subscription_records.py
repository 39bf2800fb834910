"""Every store of the state does the same with subscriptions: progress, owners, generations; followers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest

from calve.errors import Conflict, Fenced, InvalidRequest, NotFound
from calve.model import TableName
from calve.state import State, SubscriptionClaim, SubscriptionName
from tests.contract.states import StateStore
from tests.servers.etcd import Etcd

ORDERS = TableName.parse("shop.sales.orders")
BILLING = SubscriptionName.parse(ORDERS, "billing")
TOPIC = UUID(int=3)


# A program that has a claim; what it does with it comes behind.
ACKNOWLEDGING = (
    "import sys; from calve.settings import load_settings; from calve.state import *; "
    "from calve.model import TableName; "
    "flags = {'data': sys.argv[1], 'state.dsn': sys.argv[2]}; "
    "state = open_state(load_settings(flags=flags, environ={}).settings); "
    "name = SubscriptionName(TableName.parse('shop.sales.orders'), 'billing'); "
    "claim = SubscriptionClaim(name, 'a', int(sys.argv[3]), int(sys.argv[4])); "
)


def given(store: StateStore, claim: SubscriptionClaim) -> list[str]:
    return [str(store.directory), store.dsn, str(claim.token), str(claim.generation)]


def claimed(state: State, owner: str = "a", seconds: float = 60) -> SubscriptionClaim:
    claim = state.claim_subscription(BILLING, owner, seconds)
    assert claim is not None
    return claim


@pytest.fixture
def billing(state: State) -> State:
    assert state.create_subscription(BILLING, TOPIC, {0: 5, 1: 0}) is not None
    return state


def test_a_subscription_is_made_once_listed_described_and_deleted(state: State) -> None:
    made = state.create_subscription(BILLING, TOPIC, {0: 5, 1: 0})
    assert made is not None
    assert (made.name, made.topic_id, made.owner) == (BILLING, TOPIC, None)
    assert state.create_subscription(BILLING, TOPIC, {0: 9}) is None
    other = SubscriptionName.parse(TableName.parse("orders"), "billing")
    assert state.create_subscription(other, UUID(int=4), {0: 1}) is not None
    assert state.subscription(BILLING) == made
    assert state.positions(BILLING) == {0: 5, 1: 0}
    assert {each.name for each in state.subscriptions()} == {BILLING, other}
    assert state.subscriptions(ORDERS) == [made]
    assert state.delete_subscription(BILLING)
    assert not state.delete_subscription(BILLING)
    assert state.subscription(BILLING) is None
    assert state.positions(BILLING) == {}
    assert state.positions(other) == {0: 1}


def test_progress_goes_forward_only(billing: State) -> None:
    claim = claimed(billing)
    assert billing.acknowledge(claim, 0, 9) == 9
    assert billing.acknowledge(claim, 0, 7) == 9
    assert billing.acknowledge(claim, 2, 0) == 0
    assert billing.positions(BILLING) == {0: 9, 1: 0, 2: 0}
    with pytest.raises(InvalidRequest):
        billing.acknowledge(claim, 0, -1)
    with pytest.raises(InvalidRequest, match="out of range"):
        billing.acknowledge(claim, 0, 2**63)


def test_one_owner_at_a_time_and_a_late_one_is_fenced(billing: State) -> None:
    first = claimed(billing, "a", 1)
    assert billing.claim_subscription(BILLING, "b", 60) is None
    assert claimed(billing, "a", 1) == first, "taking it again renews it"
    found = billing.subscription(BILLING)
    assert found is not None
    assert found.owner == "a"
    deadline = time.monotonic() + 10
    while (second := billing.claim_subscription(BILLING, "b", 60)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert second.token > first.token
    for late in (
        lambda: billing.acknowledge(first, 0, 9),
        lambda: billing.renew_subscription(first, 60),
    ):
        with pytest.raises(Fenced):
            late()
    billing.release_subscription(first)
    assert billing.claim_subscription(BILLING, "c", 60) is None, "only its owner gives it back"
    assert billing.acknowledge(second, 0, 6) == 6
    billing.release_subscription(second)
    third = claimed(billing, "c")
    assert third.token > second.token
    with pytest.raises(Fenced):
        billing.acknowledge(second, 0, 8)


def test_a_consumer_that_comes_back_succeeds_itself_and_nobody_else(billing: State) -> None:
    first = claimed(billing, "a")
    second = billing.claim_subscription(BILLING, "a again", 60, succeeds=first.token)
    assert second is not None
    assert second.token > first.token
    assert second.succeeded == first.token
    with pytest.raises(Fenced):
        billing.acknowledge(first, 0, 9)
    billing.release_subscription(first)
    assert billing.renew_subscription(second, 60) == second
    assert billing.claim_subscription(BILLING, "a", 60, succeeds=first.token) is None, "too late"
    billing.release_subscription(second)
    third = claimed(billing, "b")
    assert third.succeeded is None
    assert billing.claim_subscription(BILLING, "a", 60, succeeds=second.token) is None


def test_whoever_was_paused_goes_on_if_nobody_took_over(billing: State) -> None:
    claim = claimed(billing, "a", 1)
    deadline = time.monotonic() + 10
    while (found := billing.subscription(BILLING)) and found.owner:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert billing.acknowledge(claim, 0, 8) == 8
    assert billing.renew_subscription(claim, 60) == claim
    assert billing.claim_subscription(BILLING, "b", 60) is None


def test_a_moved_subscription_takes_no_word_of_before(billing: State) -> None:
    before = claimed(billing)
    billing.acknowledge(before, 0, 9)
    moved = billing.move_subscription(BILLING, {0: 2})
    assert moved.generation > before.generation
    assert moved.owner == "a"
    with pytest.raises(Conflict, match="was moved"):
        billing.acknowledge(before, 0, 20)
    assert billing.positions(BILLING) == {0: 2, 1: 0}
    now = billing.renew_subscription(before, 60)
    assert (now.token, now.generation) == (before.token, moved.generation)
    assert billing.acknowledge(now, 0, 3) == 3


def test_a_deleted_subscription_takes_no_word_also_when_it_is_made_again(billing: State) -> None:
    before = claimed(billing)
    billing.delete_subscription(BILLING)
    with pytest.raises(NotFound):
        billing.acknowledge(before, 0, 9)
    with pytest.raises(NotFound):
        billing.claim_subscription(BILLING, "a", 60)
    billing.create_subscription(BILLING, TOPIC, {0: 0})
    again = claimed(billing)
    assert again.token > before.token
    with pytest.raises(Fenced):
        billing.acknowledge(before, 0, 9)
    assert billing.positions(BILLING) == {0: 0}


def test_of_threads_that_claim_at_once_one_has_it(store: StateStore, billing: State) -> None:
    together = threading.Barrier(4)

    def claim(number: int) -> SubscriptionClaim | None:
        mine = store.open()
        together.wait()
        found = mine.claim_subscription(BILLING, str(number), 60)
        mine.close()
        return found

    with ThreadPoolExecutor(4) as pool:
        claims = [each for each in pool.map(claim, range(4)) if each is not None]
    assert len(claims) == 1
    assert billing.acknowledge(claims[0], 0, 6) == 6


def test_acknowledgements_race_with_moves_and_none_of_before_counts(
    store: StateStore, billing: State
) -> None:
    """Each move is far back, so that a word of before would be ahead of all that may be there."""
    claim = claimed(billing)
    done = threading.Event()
    broken: list[int] = []

    def consume() -> None:
        mine, offset, current = store.open(), 0, claim
        while not done.is_set():
            try:
                offset = mine.acknowledge(current, 0, offset + 1)
            except Conflict:
                current = mine.renew_subscription(current, 60)
                offset = mine.positions(BILLING)[0]
        mine.close()

    thread = threading.Thread(target=consume)
    thread.start()
    for start in range(20_000, 0, -1000):
        billing.move_subscription(BILLING, {0: start})
        found = billing.positions(BILLING)[0]
        if not start <= found < start + 1000:
            broken.append(found)
    done.set()
    thread.join()
    assert not broken


def test_processes_that_acknowledge_at_once_lose_nothing(store: StateStore, billing: State) -> None:
    code = (
        ACKNOWLEDGING + "[state.acknowledge(claim, 0, at) for at in range(int(sys.argv[5]), 60, 2)]"
    )
    command = [sys.executable, "-c", code, *given(store, claimed(billing))]
    processes = [subprocess.Popen([*command, str(number)]) for number in (0, 1)]
    assert [each.wait() for each in processes] == [0, 0]
    assert billing.positions(BILLING)[0] == 59


def test_a_consumer_that_is_killed_leaves_what_it_was_told(
    store: StateStore, billing: State
) -> None:
    code = (
        ACKNOWLEDGING
        + "[print(state.acknowledge(claim, 0, at), flush=True) for at in range(10**6)]"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *given(store, claimed(billing))],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(20)]
    process.kill()
    lines += process.stdout.readlines()
    process.wait()
    told = max(int(line) for line in lines if line.endswith("\n"))
    # It may have died before it could say what was done.
    assert 0 <= billing.positions(BILLING)[0] - told <= 1
    assert billing.acknowledge(claimed(billing), 0, told + 2) == told + 2


@pytest.mark.parametrize("name", ["", "a/b", "..", "-a", "a" * 64, "ä", "a b", "a\n", "\0"])
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a name for a subscription"):
        SubscriptionName.parse(ORDERS, name)


def test_a_follower_is_alive_for_as_long_as_it_said(state: State) -> None:
    state.follow(ORDERS, "short", 7, 1)
    state.follow(ORDERS, "long", 5, 60)
    state.follow(TableName.parse("orders"), "elsewhere", 9, 60)
    state.follow(ORDERS, "new", None, 60)
    assert {each.name: each.snapshot_id for each in state.followers(ORDERS)} == {
        "short": 7,
        "long": 5,
        "new": None,
    }
    long = state.follower(ORDERS, "long")
    assert long is not None
    assert long.until is not None
    assert timedelta(seconds=59) < long.until - long.at <= timedelta(seconds=61)
    deadline = time.monotonic() + 10
    while (short := state.follower(ORDERS, "short")) is None or short.until is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert short.snapshot_id == 7
    assert [each.name for each in state.followers(ORDERS) if each.until] == ["long", "new"]
    state.unfollow(ORDERS, "long")
    assert [each.name for each in state.followers(ORDERS)] == ["new", "short"]
    assert state.follower(ORDERS, "long") is None


def test_the_keys_in_etcd_are_where_others_look_for_them(etcd_server: Etcd) -> None:
    from calve.clock import SystemClock
    from calve.settings import RetrySettings
    from calve.state.etcd import EtcdState

    state = EtcdState(f"{etcd_server.url}/keys", retry=RetrySettings(), clock=SystemClock())
    state.create_subscription(BILLING, TOPIC, {0: 5})
    root = "/keys/persistent_storage/iceberg/subscriptions"
    assert set(etcd_server.keys(root)) == {
        f"{root}/billing/shop.sales/orders",
        f"{root}/billing/shop.sales/orders/0",
    }
    assert etcd_server.keys(f"{root}/billing/shop.sales/orders/0") == {
        f"{root}/billing/shop.sales/orders/0": b'{"log_offset":5}'
    }
    state.close()
