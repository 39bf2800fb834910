"""The pipeline is away: rows are taken in until the disk's bound, and come to their tables in order
when it is back. Told to end, it drains within its bound and leaves everything whole."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from calve import Client
from calve.maintenance.verify import verify_topic
from calve.pipeline.pipeline import Pipeline
from calve.settings import Settings
from calve.state import PIPELINE_LEASE, State, open_state
from calve.tables.catalog import LakeCatalog
from calve.tables.positions import committed_position, summarised_range
from calve.topics import TopicRegistry
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import run_here
from tests.integration.serving import Serving, serving
from tests.services import settings_of, up, wait_until

BOUNDED = {
    "wal__disk_bytes_max": 1_500_000,
    "wal__segment_bytes_max": 100_000,
    "wal__hot_window_seconds": 0,
    "wal__free_bytes_min": 0,
    "ingest__http_port": 0,
    "pipeline__flush_interval_ms": 1,
    **QUICK_RETRIES,
}
_TEXT = "x" * 20_000


@pytest.fixture
def service(make_settings: MakeSettings) -> Iterator[Serving]:
    with serving(make_settings(**BOUNDED)) as service:
        yield service


def send(service: Serving, number: int) -> httpx.Response:
    return service.send("events", json.dumps({"id": number, "text": _TEXT}).encode())


def is_taken(service: Serving, number: int) -> bool:
    return send(service, number).status_code == 200


def send_until_refused(service: Serving, first: int) -> tuple[int, httpx.Response]:
    """The id that was not taken in, and the refusal."""
    for number in range(first, first + 1_000):
        answer = send(service, number)
        if answer.status_code != 200:
            return number, answer
    raise AssertionError("the log has no bound")


def ids_in_order(catalog: LakeCatalog) -> list[int]:
    rows = catalog.load_table("events").scan(selected_fields=("id", "_calve_offset")).to_arrow()
    return [row["id"] for row in rows.sort_by("_calve_offset").to_pylist()]


def reached(catalog: LakeCatalog) -> list[tuple[int, int]]:
    """The ranges that the table's snapshots brought, oldest first."""
    snapshots = catalog.load_table("events").metadata.snapshots
    summaries = [each.summary.additional_properties for each in snapshots if each.summary]
    return [found for each in summaries if (found := summarised_range(each, 0))]


def pipeline_of(settings: Settings, state: State, catalog: LakeCatalog) -> Pipeline:
    here: Any = run_here
    return Pipeline(settings, here, state, catalog, run_pieces=here)


def test_rows_are_taken_in_while_the_pipeline_is_away_and_come_in_order_when_it_is_back(
    service: Serving, make_settings: MakeSettings
) -> None:
    settings = make_settings(**BOUNDED)
    refused, answer = send_until_refused(service, 0)
    assert refused > 20
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert "disk_bytes_max" in answer.text
    assert send(service, refused).status_code == 429, "and again, and nothing is lost"
    state, stop = open_state(settings), threading.Event()
    with LakeCatalog(settings) as catalog:
        pipeline = pipeline_of(settings, state, catalog)
        thread = threading.Thread(target=pipeline.run, args=(stop,))
        thread.start()
        try:
            # Nobody has to do anything: the same producer gets in when there is room.
            wait_until(partial(is_taken, service, refused))
            last = refused + 100
            for number in range(refused + 1, last + 1):
                wait_until(partial(is_taken, service, number))
            wait_until(lambda: len(ids_in_order(catalog)) == last + 1)
        finally:
            stop.set()
            thread.join()
            pipeline.close()
            state.close()
        assert ids_in_order(catalog) == list(range(last + 1))
        ranges = reached(catalog)
        assert len(ranges) > 1
        assert all(one[1] == other[0] for one, other in pairwise(ranges))
        assert verify_topic(catalog, "events", own_log=settings.wal.path).is_sound


@pytest.mark.timeout(300)
def test_a_pipeline_that_is_told_to_end_drains_within_its_bound_and_leaves_all_whole(
    tmp_path: Path,
) -> None:
    """There is more to bring than the bound allows: a cycle takes no more than two small files."""
    data = tmp_path / "lake"
    settings = settings_of(data)
    flags = ("pipeline.drain_ms=500", "pipeline.flush_interval_ms=100", "spark.master=local[2]")
    sets = [word for flag in flags for word in ("--set", flag)]
    with up(data) as ingest, Client(ingest.addresses()["flight"]) as client:
        small = {"write.target-file-size-bytes": "100000"}
        client.create_topic("events", schema={"id": "long", "blob": "binary"}, properties=small)
        for number in range(100):
            client.produce("events", [{"id": number, "blob": os.urandom(80_000)}]).result(30)
        with up(data, *sets, only="pipeline") as pipeline:
            pipeline.addresses()
            wait_until(lambda: has_rows(settings), 120)
            begun = time.monotonic()
            pipeline.signal(signal.SIGTERM)
            code, words = pipeline.ended()
            seconds = time.monotonic() - begun
    assert code == 0, words
    assert seconds < 20, "the bound, a cycle that was under way, and the end of a JVM"
    require_whole(settings, 100)


def has_rows(settings: Settings) -> bool:
    with LakeCatalog(settings) as catalog:
        table = catalog.find_table("events")
        return table is not None and committed_position(table, 0) is not None


def require_whole(settings: Settings, end: int) -> None:
    """Table and state say the same, the lease is free, and the rest comes with the next one."""
    state = open_state(settings)
    try:
        assert state.lease(PIPELINE_LEASE) is None
        (record,) = state.topics()
        known = state.committed(TopicRegistry(state).topic(record.name).id, 0)
        with LakeCatalog(settings) as catalog:
            position = committed_position(catalog.load_table("events"), 0)
            assert known is not None
            assert position is not None
            assert 0 < known.offset == position.offset < end
            assert verify_topic(catalog, "events", own_log=settings.wal.path).is_sound
            again = pipeline_of(settings, state, catalog)
            assert again.drain(60)
            again.close()
            assert ids_in_order(catalog) == list(range(end))
    finally:
        state.close()
