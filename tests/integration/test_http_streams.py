"""Rows as server-sent events, with and without a subscription; acknowledged over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from tests.conftest import MakeSettings
from tests.integration.serving import Serving, serving
from tests.integration.streaming import BILLING, PATH, append, left_by_the_dead


class Event(NamedTuple):
    id: str
    name: str
    data: dict[str, Any]

    @property
    def offset(self) -> int:
        offset: int = self.data["offset"]
        return offset


@pytest.fixture
def service(make_settings: MakeSettings) -> Iterator[Serving]:
    settings = make_settings(
        ingest__http_port=0,
        wal__free_bytes_min=0,
        reader__poll_interval_ms=200,
        ingest__streams_max=8,
    )
    with serving(settings) as made:
        yield made


@contextmanager
def opened(service: Serving, path: str, **options: Any) -> Iterator[Iterator[Event]]:
    with service.client.stream("GET", path, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer)


def events(answer: httpx.Response) -> Iterator[Event]:
    found: dict[str, str] = {}
    for line in answer.iter_lines():
        if line and not line.startswith(":"):
            key, _, value = line.partition(": ")
            found[key] = value
        elif not line and "data" in found:
            data = json.loads(found["data"])
            yield Event(found.get("id", ""), found.get("event", "row"), data)
            found = {}


def take(stream: Iterator[Event], count: int) -> list[Event]:
    return [next(stream) for _ in range(count)]


def offsets(found: list[Event]) -> list[int]:
    assert all(each.data["value"] == {"id": each.offset} for each in found)
    return [each.offset for each in found]


def acknowledged(service: Serving, event: Event) -> httpx.Response:
    return service.client.post(f"{PATH}/ack", json={"id": event.id})


def test_history_and_new_rows_come_as_events_and_go_on_behind_the_last_one(
    service: Serving,
) -> None:
    append(service, 3)
    path = "/v1/topics/orders/stream"
    with opened(service, path) as stream:
        found = take(stream, 3)
        assert offsets(found) == [0, 1, 2]
        assert set(found[0].data) == {"partition", "offset", "ingested_at", "value"}
        append(service, 1)
        assert next(stream).offset == 3
    with opened(service, path, headers={"Last-Event-ID": found[1].id}) as stream:
        assert offsets(take(stream, 2)) == [2, 3]
    query = {"from": "1", "where": "id <> 2", "follow": "false"}
    with opened(service, path, params=query) as stream:
        assert offsets(list(stream)) == [1, 3]
    assert service.client.get("/v1/topics/orders/subscriptions").json() == {"subscriptions": []}


def test_what_is_acknowledged_does_not_come_again_and_the_rest_does(service: Serving) -> None:
    append(service, 4)
    with opened(service, f"{PATH}/stream") as stream:
        found = take(stream, 4)
        assert acknowledged(service, found[1]).json() == {"counts": True}
        shown = service.client.get(PATH).json()
        assert (shown["lag"], shown["partitions"][0]["position"]) == (2, 2)
        assert shown["owner"] is not None
    with opened(service, f"{PATH}/stream") as stream:
        assert offsets(take(stream, 2)) == [2, 3]
    # A browser that lost its connection has these rows, and says so.
    with opened(service, f"{PATH}/stream", headers={"Last-Event-ID": found[2].id}) as stream:
        (last,) = take(stream, 1)
        assert last.offset == 3
    assert acknowledged(service, last).json() == {"counts": True}  # the stream has ended already
    assert (
        service.client.get("/v1/topics/orders/subscriptions").json()["subscriptions"][0]["lag"] == 0
    )


def test_a_subscription_is_moved_and_forgotten(service: Serving) -> None:
    append(service, 4)
    with opened(service, f"{PATH}/stream") as stream:
        first = take(stream, 4)
    moved = service.client.post(f"{PATH}/seek", json={"to": "3"}).json()
    assert moved["partitions"] == [{"partition": 0, "position": 3, "end": 4}]
    assert acknowledged(service, first[3]).json() == {"counts": False}
    # The place that was before the move is no place to go on from.
    with opened(service, f"{PATH}/stream", headers={"Last-Event-ID": first[0].id}) as stream:
        assert next(stream).offset == 3
    again = service.client.post(f"{PATH}/reset").json()
    assert again["partitions"] == [{"partition": 0, "position": 0, "end": 4}]
    with opened(service, f"{PATH}/stream") as stream:
        assert offsets(take(stream, 4)) == [0, 1, 2, 3]
    listed = service.client.get("/v1/subscriptions").json()["subscriptions"]
    assert [(each["topic"], each["name"]) for each in listed] == [("orders", "billing")]
    assert service.client.delete(PATH).json()["name"] == "billing"
    for gone in (service.client.get(PATH), service.client.post(f"{PATH}/reset")):
        assert gone.status_code == 404
    assert service.client.get("/v1/topics/nothing/subscriptions").status_code == 404


def test_one_consumer_at_a_time_has_it_and_one_that_lost_it_is_told(service: Serving) -> None:
    append(service, 2)
    with opened(service, f"{PATH}/stream") as stream:
        old = take(stream, 2)
        claim = service.intake.state.subscription(BILLING)
        assert claim is not None
        assert claim.owner is not None
    with opened(service, f"{PATH}/stream") as stream:
        new = take(stream, 1)
        refused = acknowledged(service, old[1])
        assert refused.status_code == 409
        assert "another owner" in refused.json()["detail"]
        assert acknowledged(service, new[0]).json() == {"counts": True}
        beyond = new[0]._replace(id=new[0].id.rpartition("-")[0] + "-0:99")
        assert acknowledged(service, beyond).status_code == 400


def test_whoever_had_it_goes_on_at_once_after_a_service_that_was_killed(service: Serving) -> None:
    append(service, 3)
    with opened(service, f"{PATH}/stream") as stream:
        take(stream, 3)
    left = left_by_the_dead(service.intake.state, 60)
    last = f"{left.token}-{left.generation}-0:2"
    started = time.monotonic()
    with opened(service, f"{PATH}/stream", headers={"Last-Event-ID": last}) as stream:
        (found,) = take(stream, 1)
        assert found.offset == 2
        assert time.monotonic() - started < 5
        assert acknowledged(service, found._replace(id=last)).json() == {"counts": True}
        assert service.client.get(PATH).json()["partitions"][0]["position"] == 2


def test_a_subscription_that_is_deleted_ends_its_stream_with_the_reason(service: Serving) -> None:
    append(service, 1)
    with opened(service, f"{PATH}/stream") as stream:
        take(stream, 1)
        assert service.client.delete(PATH).status_code == 200
        last = next(stream)
        assert last.name == "problem"
        assert last.data["status"] == 404
        assert list(stream) == []


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/topics/nothing/stream", {}, 404),
        ("/v1/topics/nothing/subscriptions/billing/stream", {}, 404),
        ("/v1/topics/orders/stream?from=yesterday", {}, 400),
        ("/v1/topics/orders/stream?from=99", {}, 400),
        ("/v1/topics/orders/stream?follow=maybe", {}, 400),
        ("/v1/topics/orders/stream?columns=nothing", {}, 422),
        ("/v1/topics/orders/stream?where=((", {}, 400),
        ("/v1/topics/orders/stream", {"Last-Event-ID": "x"}, 400),
        ("/v1/topics/orders/stream", {"Accept": "text/csv"}, 406),
        ("/v1/topics/orders/stream", {"Origin": "http://evil.example.com"}, 403),
        ("/v1/topics/orders/stream", {"Host": "evil.example.com"}, 403),
        ("/v1/topics/orders/subscriptions/-/stream", {}, 400),
    ],
)
def test_what_cannot_be_is_refused_before_the_stream_begins(
    service: Serving, path: str, headers: dict[str, str], status: int
) -> None:
    append(service, 1)
    answer = service.client.get(path, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_streams_are_counted_and_those_that_end_make_room(service: Serving) -> None:
    append(service, 1)
    path = "/v1/topics/orders/stream"
    with ExitStack() as open_ones:
        streams = [open_ones.enter_context(opened(service, path)) for _ in range(8)]
        assert [next(each).offset for each in streams] == [0] * 8
        refused = service.client.get(path)
        assert refused.status_code == 429
        assert "streams_max" in refused.json()["detail"]
        assert service.client.head(path).status_code == 200
    deadline = time.monotonic() + 10
    while service.client.get(f"{path}?follow=false").status_code == 429:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while any(
        t.name.startswith(("calve-tail", "calve-http-stream")) for t in threading.enumerate()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_client_that_does_not_read_holds_up_nobody(service: Serving) -> None:
    append(service, 1)
    with ExitStack() as open_ones:
        stalled = open_ones.enter_context(opened(service, f"{PATH}/stream"))
        assert next(stalled).offset == 0
        live = open_ones.enter_context(opened(service, "/v1/topics/orders/stream?from=latest"))
        for _ in range(20):
            append(service, 2_000)
        assert offsets(take(live, 40_000)) == list(range(1, 40_001))
        assert offsets(take(stalled, 40_000)) == list(range(1, 40_001))


def test_a_stop_ends_streams_at_once(make_settings: MakeSettings) -> None:
    with serving(make_settings(ingest__http_port=0, wal__free_bytes_min=0)) as service:
        append(service, 1)
        with opened(service, f"{PATH}/stream") as stream:
            take(stream, 1)
            started = time.monotonic()
            service.server.stop()
            assert list(stream) == []
            assert time.monotonic() - started < 5
        held = service.intake.state.subscription(BILLING)
        assert held is not None
        assert held.owner is None
