"""Subscriptions whose progress is kept on a server, which is restarted under them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from calve.errors import Unavailable
from calve.lake import Lake
from calve.settings import Settings
from calve.subscriptions import Batch, Subscription
from tests.conftest import MakeSettings
from tests.servers.restartable import Restartable


@pytest.fixture(params=["postgres", "etcd"])
def store(request: pytest.FixtureRequest) -> Iterator[Restartable]:
    with Restartable(request.param) as made:
        yield made


def quick(store: Restartable) -> dict[str, Any]:
    return {
        "state__dsn": store.dsn,
        "wal__free_bytes_min": 0,
        "retry__max_attempts": 2,
        "retry__initial_delay_ms": 10,
        "retry__max_delay_ms": 50,
    }


def next_of(subscription: Subscription) -> Batch:
    """Calls again what the state was away for, as the documentation says."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            batch = subscription.poll(1)
        except Unavailable:
            continue
        if batch is not None:
            return batch
    raise AssertionError("no rows came")


def acknowledged(subscription: Subscription, batch: Batch) -> bool:
    deadline = time.monotonic() + 30
    while True:
        try:
            return subscription.ack(batch)
        except Unavailable:
            assert time.monotonic() < deadline


@pytest.mark.timeout(120)
def test_a_store_that_is_restarted_loses_no_progress_and_no_owner(
    store: Restartable, make_settings: MakeSettings
) -> None:
    with Lake(make_settings(**quick(store))) as lake, ExitStack() as consumers:
        lake.produce("orders", [{"id": n} for n in range(3)])
        one, other = (
            consumers.enter_context(lake.subscribe("orders", "billing", lease_seconds=2))
            for _ in range(2)
        )
        first = next_of(one)
        store.stop()
        with pytest.raises(Unavailable):
            one.ack(first)
        store.start()
        assert acknowledged(one, first)
        lake.produce("orders", [{"id": 3}])
        second = next_of(one)
        assert second.first_offset == 3
        assert acknowledged(one, second)
        assert one.lag == 0
        assert other.poll(0.1) is None
        one.close()
        lake.produce("orders", [{"id": 4}])
        assert next_of(other).first_offset == 4


def restarted_under_load(store: Restartable, settings: Settings, restarts: int) -> str:
    """Rows are produced, read and acknowledged all the time; nothing is left out or goes back."""
    done = threading.Event()
    seen: list[Batch] = []

    def produce() -> int:
        sequence = 0
        while not done.is_set():
            try:
                lake.produce("orders", [{"id": sequence}], producer="load", sequence=sequence)
            except Unavailable:
                continue  # the same again
            sequence += 1
            time.sleep(0.005)
        return sequence

    with Lake(settings) as lake, ThreadPoolExecutor(1) as pool:
        lake.produce("orders", [{"id": 0}])
        with lake.subscribe("orders", "billing", lease_seconds=5) as subscription:
            producing = pool.submit(produce)
            try:
                for _ in range(restarts):
                    for _ in range(20):
                        seen.append(next_of(subscription))
                        assert acknowledged(subscription, seen[-1])
                    store.stop()
                    store.start()
            finally:
                done.set()
            sent = producing.result() + 1
            while seen[-1].next_offset < sent:
                seen.append(next_of(subscription))
                assert acknowledged(subscription, seen[-1])
            assert subscription.lag == 0
    # One consumer that never lost it: each row once, in order.
    assert [batch.first_offset for batch in seen[1:]] == [batch.next_offset for batch in seen[:-1]]
    assert seen[0].first_offset == 0
    return (
        f"\n{restarts} restarts of {store.kind}: {sent} rows, {len(seen)} batches, each "
        "acknowledged; none left out, none twice"
    )


@pytest.mark.timeout(120)
def test_a_store_is_restarted_under_load(store: Restartable, make_settings: MakeSettings) -> None:
    restarted_under_load(store, make_settings(**quick(store)), 2)


@pytest.mark.torture
@pytest.mark.timeout(1_200)
def test_a_store_is_restarted_under_load_again_and_again(
    store: Restartable, make_settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    told = restarted_under_load(store, make_settings(**quick(store)), 40)
    with capsys.disabled():
        print(told)
