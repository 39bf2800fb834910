"""Subscriptions through a service: the same promises, over Arrow Flight."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from calve.client import Client
from calve.client.subscription import ClientSubscription
from calve.errors import Conflict, Fenced, InvalidRequest, NotFound
from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.model import TableName
from calve.settings import Settings
from calve.state import SubscriptionName
from calve.subscriptions import Batch
from tests.conftest import MakeSettings
from tests.integration.flight_calls import act, refused

ORDERS = TableName.parse("orders")
BILLING = SubscriptionName(ORDERS, "billing")


class Site:
    """A service that can be stopped, and started at the same address."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open = ExitStack()
        self.start()

    def start(self) -> None:
        self.intake = self._open.enter_context(Intake(self._settings))
        self.server = self._open.enter_context(FlightServer(self.intake))
        port = int(self.server.url.rpartition(":")[2])
        ingest = msgspec.structs.replace(self._settings.ingest, flight_port=port)
        self._settings = msgspec.structs.replace(self._settings, ingest=ingest)

    def stop(self) -> None:
        self._open.close()

    def append(self, count: int, **more: Any) -> None:
        known = self.intake.topics.find(ORDERS)
        start = self.intake.offsets(ORDERS).durable if known else 0
        rows = [{"id": start + n, **more} for n in range(count)]
        self.intake.submit(ORDERS, pa.RecordBatch.from_pylist(rows)).wait()

    def positions(self) -> dict[int, int]:
        return self.intake.state.positions(BILLING)


@pytest.fixture
def site(make_settings: MakeSettings) -> Iterator[Site]:
    made = Site(
        make_settings(ingest__flight_port=0, wal__free_bytes_min=0, reader__poll_interval_ms=200)
    )
    yield made
    made.stop()


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with Client(site.server.url) as client:
        yield client


def offsets(batch: Batch | None) -> list[int]:
    assert batch is not None
    found: list[int] = batch.to_arrow()["_calve_offset"].to_pylist()
    assert batch.to_arrow()["id"].to_pylist() == found
    return found


def up_to(subscription: ClientSubscription, end: int) -> list[int]:
    """The offsets of everything that comes until an offset, each acknowledged."""
    found: list[int] = []
    while not found or found[-1] + 1 < end:
        batch = subscription.poll(10)
        found += offsets(batch)
        assert batch is not None
        assert subscription.ack(batch)
    return found


def test_history_and_new_rows_come_and_what_is_acknowledged_does_not_come_again(
    site: Site, client: Client
) -> None:
    site.append(3)
    with client.subscribe("orders", "billing") as billing:
        batch = next(billing)
        assert offsets(batch) == [0, 1, 2]
        assert billing.ack(batch, 2)
        assert site.positions() == {0: 2}
        site.append(2)
        assert offsets(billing.poll(5)) == [3, 4]
        assert billing.lag == 3
        assert billing.poll(0) is None
    with client.subscribe("orders", "billing", start="latest", follow=False) as billing:
        assert [offsets(batch) for batch in billing] == [[2, 3, 4]]
        assert billing.is_done


def test_a_topic_is_read_without_a_subscription_and_rows_are_chosen(
    site: Site, client: Client
) -> None:
    site.append(4, city="Oslo")
    chosen = {"where": "id > 1", "columns": ["id"], "follow": False}
    with client.subscribe("orders", start=1, **chosen) as rows:  # type: ignore[arg-type]
        (batch,) = rows
        assert offsets(batch) == [2, 3]
        assert "city" not in batch.to_arrow().schema.names
        with pytest.raises(InvalidRequest, match="without a subscription"):
            rows.ack(batch)
    with client.subscribe("orders", start="latest") as rows:
        site.append(1, city="Rome")
        assert offsets(rows.poll(5)) == [4]
    assert client.subscriptions.list() == []


def test_what_cannot_be_is_refused_at_once(site: Site, client: Client) -> None:
    with pytest.raises(NotFound, match="orders"):
        client.subscribe("orders", "billing")
    site.append(1)
    with pytest.raises(InvalidRequest, match="not a name"):
        client.subscribe("orders", "a/b")
    with pytest.raises(InvalidRequest, match="no offset 9 yet"):
        client.subscribe("orders", "billing", 9)
    with pytest.raises(InvalidRequest, match="nothing"):
        client.subscribe("orders", "billing", where="nothing = 1")
    with pytest.raises(NotFound, match="no subscription"):
        client.subscriptions.describe("orders", "nobody")


def test_one_consumer_at_a_time_has_it_wherever_they_are(site: Site, client: Client) -> None:
    site.append(2)
    with client.subscribe("orders", "billing") as one, client.subscribe("orders", "billing") as two:
        batch = one.poll(5)
        assert offsets(batch) == [0, 1]
        assert two.poll(0.4) is None
        assert batch is not None
        assert one.ack(batch, 1)
        one.close()
        assert offsets(two.poll(5)) == [1]
        with pytest.raises(InvalidRequest, match="closed"):
            one.ack(batch)


def test_one_that_lost_it_is_told(site: Site, client: Client) -> None:
    site.append(2)
    with client.subscribe("orders", "billing", lease_seconds=1) as billing:
        batch = next(billing)
        held = site.intake.state.subscription(BILLING)
        assert held is not None
        assert held.owner is not None
        claim = site.intake.state.claim_subscription(BILLING, held.owner, 60)
        assert claim is not None
        site.intake.state.release_subscription(claim)
        assert site.intake.state.claim_subscription(BILLING, "another", 60) is not None
        with pytest.raises(Fenced, match="another owner"):
            billing.ack(batch)
        with pytest.raises(Fenced, match="another owner"):
            billing.poll(5)
    assert site.positions() == {0: 0}


def test_rows_come_again_after_a_nack_and_from_elsewhere_after_a_move(
    site: Site, client: Client
) -> None:
    site.append(4)
    with client.subscribe("orders", "billing", lease_seconds=1) as billing:
        batch = next(billing)
        assert billing.ack(batch, 1)
        billing.nack(batch)
        assert not billing.ack(batch)
        again = billing.poll(5)
        assert offsets(again) == [1, 2, 3]
        billing.seek(2)
        assert again is not None
        assert not billing.ack(again)
        assert offsets(billing.poll(5)) == [2, 3]
        moved = client.subscriptions.seek("orders", "billing", {0: 3})
        assert (moved.positions, moved.lag) == ({0: 3}, 1)
        last = billing.poll(5)
        assert offsets(last) == [3]
        assert last is not None
        assert billing.ack(last)
        assert [each.lag for each in client.subscriptions.list("orders")] == [0]
        assert client.subscriptions.reset("orders", "billing").lag == 4
        assert offsets(billing.poll(5)) == [0, 1, 2, 3]
        client.subscriptions.delete("orders", "billing")
        with pytest.raises(NotFound):
            billing.poll(5)


def test_new_columns_come_in_the_middle_of_a_stream(site: Site, client: Client) -> None:
    site.append(2)
    with client.subscribe("orders", "billing") as billing:
        first = billing.poll(5)
        assert offsets(first) == [0, 1]
        site.append(2, city="Oslo")
        second = billing.poll(10)
        assert offsets(second) == [2, 3]
        assert first is not None
        assert second is not None
        assert "city" not in first.to_arrow().schema.names
        assert second.to_arrow()["city"].to_pylist() == ["Oslo"] * 2
        assert billing.ack(first)
        assert site.positions() == {0: 2}
        assert billing.ack(second)


def test_a_consumer_goes_on_when_the_service_was_restarted(site: Site, client: Client) -> None:
    site.append(3)
    with client.subscribe("orders", "billing", lease_seconds=1) as billing:
        batch = next(billing)
        assert billing.ack(batch, 1)
        site.stop()
        site.start()
        site.append(2)
        later = billing.poll(20)
        assert offsets(later) == [3, 4]  # not what this consumer has already
        assert billing.ack(batch)
        assert site.positions() == {0: 3}
        assert later is not None
        assert billing.ack(later)
    assert site.positions() == {0: 5}


def test_a_stalled_consumer_keeps_nobody_waiting(site: Site, client: Client) -> None:
    site.append(1)
    text = "x" * 10_000
    with ExitStack() as open_ones:
        stalled = open_ones.enter_context(client.subscribe("orders", "stalled"))
        assert offsets(stalled.poll(5)) == [0]
        live = [
            open_ones.enter_context(client.subscribe("orders", f"live{n}", "latest"))
            for n in range(5)
        ]
        for _ in range(40):
            site.append(100, text=text)
        delays = []
        for each in live:
            started = time.monotonic()
            assert up_to(each, 4_001) == list(range(1, 4_001))
            delays.append(time.monotonic() - started)
        assert max(delays) < 20
        tail = site.intake.subscriptions._fanout._tails[ORDERS][0]
        assert tail.size_bytes <= 16 << 20
        assert up_to(stalled, 4_001) == list(range(1, 4_001))


def test_other_flight_clients_stream_and_acknowledge_too(site: Site) -> None:
    site.append(3)
    ticket = {"kind": "stream", "topic": "orders", "subscription": "billing", "follow": False}
    with flight.FlightClient(site.server.url) as client:
        reader = client.do_get(flight.Ticket(json.dumps(ticket).encode()))
        chunks = []
        while (chunk := next_chunk(reader)) is not None:
            chunks.append((chunk.data, json.loads(chunk.app_metadata.to_pybytes())))
        rows = [(data, told) for data, told in chunks if data.num_rows]
        assert [data["id"].to_pylist() for data, _ in rows] == [[0, 1, 2]]
        told = rows[0][1]
        assert (told["partition"], told["first"], told["next"]) == (0, 0, 3)
        assert chunks[-1][1]["is_over"] == "end"
        name = {"topic": "orders", "subscription": "billing"}
        # The stream has ended, and nobody else has come since.
        assert act(client, "subscription.ack", **name, place=told["place"]) == {"counts": True}
        assert site.positions() == {0: 3}
        token, generation, _ = told["place"].split("-")
        beyond = f"{token}-{generation}-0:99"
        error = refused(lambda: act(client, "subscription.ack", **name, place=beyond))
        assert isinstance(error, InvalidRequest)
        error = refused(lambda: act(client, "subscription.ack", **name, place="x"))
        assert "id of an event" in error.message
        act(client, "subscription.seek", **name, to="1")
        assert act(client, "subscription.ack", **name, place=told["place"]) == {"counts": False}


def next_chunk(reader: Any) -> Any:
    try:
        return reader.read_chunk()
    except StopIteration:
        return None


def test_a_consumer_that_went_away_lets_others_have_it(site: Site, client: Client) -> None:
    site.append(1)
    with Client(site.server.url) as other:
        gone = other.subscribe("orders", "billing")
        assert offsets(gone.poll(5)) == [0]
        gone._stream._reader.cancel()  # as when its process has died
    with client.subscribe("orders", "billing") as billing:
        assert offsets(billing.poll(10)) == [0]


@contextmanager
def closing_soon(subscription: ClientSubscription) -> Iterator[None]:
    timer = threading.Timer(0.2, subscription.close)
    timer.start()
    yield
    timer.join()


def test_another_thread_ends_one_that_waits(site: Site, client: Client) -> None:
    site.append(1)
    with client.subscribe("orders", "billing", "latest") as billing, closing_soon(billing):
        assert list(billing) == []
    site.intake.delete_topic(ORDERS)
    site.append(1)
    with pytest.raises(Conflict, match="made again"):
        client.subscribe("orders", "billing")
