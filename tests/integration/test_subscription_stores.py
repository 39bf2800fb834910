"""Subscriptions whose progress is kept on a server, which is restarted under them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from calve.errors import Unavailable
from calve.lake import Lake
from calve.subscriptions import Batch, Subscription
from tests.conftest import MakeSettings
from tests.servers.restartable import Restartable


@pytest.fixture(params=["postgres", "etcd"])
def store(request: pytest.FixtureRequest) -> Iterator[Restartable]:
    with Restartable(request.param) as made:
        yield made


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
    settings = make_settings(
        state__dsn=store.dsn,
        wal__free_bytes_min=0,
        retry__max_attempts=2,
        retry__initial_delay_ms=10,
        retry__max_delay_ms=50,
    )
    with Lake(settings) as lake, ExitStack() as consumers:
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
