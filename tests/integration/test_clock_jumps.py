"""A clock that jumps, forward and back: rows come to their tables, and nobody is cut off."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from calve.client import Client
from calve.clock import SystemClock
from calve.pipeline.pipeline import Pipeline
from calve.service.serving import Serving
from calve.topics.lag import pipeline_status
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.clocks import HandClock
from tests.fakes.pipelines import Site, site
from tests.services import wait_until

DAY = timedelta(days=1).total_seconds()
HEAD = (
    b"POST /v1/topics/events/rows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n"
    b"Content-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"
)


@pytest.mark.parametrize("first_seconds", [DAY, -DAY], ids=["forward", "back"])
def test_rows_are_due_by_age_after_the_clock_jumped_and_was_set_right(
    make_settings: MakeSettings, first_seconds: float
) -> None:
    """A log's times never go back: they lie ahead until the jump has passed."""
    clock = HandClock(SystemClock().now())
    with site(make_settings(wal__free_bytes_min=0, **QUICK_RETRIES), clock=clock) as made:
        pipeline = made.pipeline(clock=clock)
        made.send("orders", [{"id": 0}])
        pipeline.run_cycle()
        clock.jump(first_seconds)
        made.send("orders", [{"id": 1}])
        pipeline.run_cycle()
        clock.jump(-first_seconds)
        end = made.send("orders", [{"id": 2}])
        for _ in range(11):  # the interval of a trickle has doubled
            pipeline.run_cycle()
            clock.pass_seconds(1)
        pipeline.run_cycle()
        assert made.committed("orders") == end
        end = made.send("orders", [{"id": end}])
        pipeline.run_cycle()
        clock.pass_seconds(4)
        pipeline.run_cycle()
        assert lag_seconds(made, clock) == pytest.approx(4, abs=0.1)
        clock.pass_seconds(60)
        pipeline.run_cycle()
        assert made.committed("orders") == end
        pipeline.close()


def lag_seconds(made: Site, clock: HandClock) -> float | None:
    with made.intake.log.reader() as reader:
        status = pipeline_status(made.state, reader, now=clock.now())
    return status.partitions[0].lag_seconds


def test_a_clock_that_jumps_cuts_nobody_off(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests under way, streams, leases and the pipeline, while the service's own clock jumps."""
    ahead = timedelta(0)

    def shifted(_: SystemClock) -> datetime:
        return datetime.now(UTC) + ahead

    monkeypatch.setattr(SystemClock, "now", shifted)
    settings = make_settings(
        ingest__http_port=0,
        ingest__flight_port=0,
        pipeline__flush_interval_ms=300,
        pipeline__freshness_ms=300,
        wal__free_bytes_min=0,
    )
    with ExitStack() as opened:
        made = opened.enter_context(site(settings))
        at = opened.enter_context(Serving(made.intake)).addresses
        client = opened.enter_context(Client(at.flight))
        client.produce("events", [{"id": 0}]).result(20)
        consumer = opened.enter_context(client.subscribe("events", "billing", lease_seconds=1))
        pipeline = opened.enter_context(closing(made.pipeline()))
        place = urlsplit(at.http)
        slow = opened.enter_context(socket.create_connection((place.hostname, place.port), 20))
        slow.sendall(HEAD)
        done_with = 0
        for hours in (100_000, -100_000, 0):
            ahead = timedelta(hours=hours)
            end = client.produce("events", [{"id": hours}]).result(20).end or 0
            while done_with < end:
                batch = consumer.poll(20)
                assert batch is not None
                assert consumer.ack(batch)
                done_with += len(batch)
            time.sleep(0.3)  # the lease is renewed every fifth of its time
            assert consumer.is_owner
            wait_until(lambda: _brings(made, pipeline, end))  # noqa: B023
        slow.sendall(b'{"id":1}')
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        assert consumer.poll(20) is not None


def _brings(made: Site, pipeline: Pipeline, end: int) -> bool:
    pipeline.run_cycle()
    return made.committed("events") == end
