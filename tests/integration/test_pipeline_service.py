"""`calve up` with its pipeline: rows get into tables, and whatever dies, ingest goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

import calve
from calve import Client
from calve.lake import Lake
from calve.state import PIPELINE_LEASE, open_state
from calve.topics import TopicRegistry
from tests.conftest import MakeSettings
from tests.services import Up, is_alive, post_rows, settings_of, up, wait_until

pytestmark = pytest.mark.timeout(300)
SPARK_SECONDS = 120.0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def ids(data: Path, topic: str = "events") -> list[int]:
    """What the topic's table holds."""
    with Lake(settings_of(data), create=False) as lake:
        rows = lake.sql(f"select id from {topic} order by id", fresh=False)
        return [row["id"] for row in rows]


def dead_letters(data: Path) -> list[int]:
    """The offsets that were set aside."""
    with Lake(settings_of(data), create=False) as lake:
        rows = lake.sql("select _calve_offset from events__dead_letters")
        return [row["_calve_offset"] for row in rows]


def pipeline_runs(data: Path) -> bool:
    state = open_state(settings_of(data))
    try:
        return state.lease(PIPELINE_LEASE) is not None
    finally:
        state.close()


def family(pid: int) -> list[int]:
    """A process, its JVM and its Python workers."""
    found = psutil.Process(pid)
    return [pid, *(each.pid for each in found.children(recursive=True))]


def jvm_of(pipeline: int) -> int:
    (java,) = [each.pid for each in psutil.Process(pipeline).children() if each.name() == "java"]
    return java


def pipeline_of(service: Up) -> int:
    pid = service.pipeline_pid
    assert pid is not None
    return pid


def set_aside(http: str, topic: str, body: bytes) -> None:
    request = Request(
        f"{http}/v1/topics/{topic}/rows?on_error=dead_letter",
        body,
        {"Content-Type": "application/x-ndjson"},
    )
    urlopen(request, timeout=30).read()


def test_rows_get_into_tables_and_a_pipeline_or_jvm_that_is_killed_comes_back(data: Path) -> None:
    with up(data, only=None) as service:
        at = service.addresses()
        assert post_rows(at["http"], "events", [{"id": 1}])["end"] == 1
        with Client(at["flight"]) as client:
            client.produce("events", [{"id": 2}]).result(10)
            set_aside(at["http"], "events", b'{"id": "none"}\n')
            client.flush("events", SPARK_SECONDS, to_table=True)
            assert ids(data) == [1, 2]
            assert client.pipeline.status()["is_running"]

            pipeline = pipeline_of(service)
            before = family(pipeline)
            assert len(before) > 1, "there is a JVM"
            ingest = service.ingest_pid
            os.kill(pipeline, signal.SIGKILL)
            client.produce("events", [{"id": 3}]).result(10)
            wait_until(lambda: not any(map(is_alive, before)))
            wait_until(lambda: service.pipeline_pid not in {None, pipeline}, SPARK_SECONDS)
            client.flush("events", SPARK_SECONDS, to_table=True)
            assert ids(data) == [1, 2, 3]
            assert service.ingest_pid == ingest

            pipeline = pipeline_of(service)
            os.kill(jvm_of(pipeline), signal.SIGKILL)
            client.produce("events", [{"id": 4}]).result(10)
            wait_until(lambda: service.pipeline_pid not in {None, pipeline}, SPARK_SECONDS)
            client.flush("events", SPARK_SECONDS, to_table=True)
            assert ids(data) == [1, 2, 3, 4]

            client.produce("events", [{"id": 5}]).result(10)
        last = family(pipeline_of(service))
        service.signal(signal.SIGTERM)
        code, words = service.ended()
    assert (code, "stopped" in words) == (0, True), words
    assert words.count("the pipeline is ready") == 1
    assert words.count("pipeline is back") == 2
    assert words.count("the pipeline ends, and is started again: Spark") == 1
    assert "Traceback" not in words
    assert ids(data) == [1, 2, 3, 4, 5], "it has drained"
    assert dead_letters(data) == [2]
    assert not any(map(is_alive, last))
    assert not pipeline_runs(data)


def test_nothing_outlives_a_supervisor_that_was_killed(data: Path) -> None:
    with up(data, only=None) as service:
        at = service.addresses()
        wait_until(lambda: pipeline_runs(data), SPARK_SECONDS)
        post_rows(at["http"], "events", [{"id": 1}])
        everything = [*family(pipeline_of(service)), service.ingest_pid]
        service.signal(signal.SIGKILL)
        service.process.wait()
        wait_until(lambda: not any(map(is_alive, everything)), 60)
    assert not pipeline_runs(data), "and the lease was given back"


def test_of_two_pipelines_one_works_and_the_other_waits_for_its_end(data: Path) -> None:
    with Lake(settings_of(data)) as lake:
        lake.produce("events", [{"id": 1}])
    soon = ("--set", "pipeline.flush_interval_ms=100")
    with up(data, *soon, only="pipeline") as first, up(data, *soon, only="pipeline") as second:
        assert (first.addresses(), second.addresses()) == ({}, {})
        wait_until(lambda: committed(data) == 1, SPARK_SECONDS)
        with Lake(settings_of(data)) as lake:
            lake.produce("events", [{"id": 2}])
        wait_until(lambda: committed(data) == 2, SPARK_SECONDS)
        owner = owner_of(data)
        working, waiting = (first, second) if str(first.process.pid) in owner else (second, first)
        working.signal(signal.SIGTERM)
        assert working.ended()[0] == 0
        wait_until(lambda: str(waiting.process.pid) in owner_of(data), SPARK_SECONDS)
        with Lake(settings_of(data)) as lake:
            lake.produce("events", [{"id": 3}])
        wait_until(lambda: committed(data) == 3, SPARK_SECONDS)
        waiting.signal(signal.SIGINT)
        code, words = waiting.ended()
    assert code == 0
    assert "another pipeline works on this lake" in words
    assert ids(data) == [1, 2, 3]


def owner_of(data: Path) -> str:
    state = open_state(settings_of(data))
    try:
        held = state.lease(PIPELINE_LEASE)
        return held.owner if held else ""
    finally:
        state.close()


def committed(data: Path) -> int:
    state = open_state(settings_of(data))
    try:
        (record,) = state.topics()
        topic = TopicRegistry(state).topic(record.name)
        known = state.committed(topic.id, 0)
        return known.offset if known else 0
    finally:
        state.close()


def test_without_java_rows_are_taken_in_all_the_same(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(data.parent / "no-java"))
    with up(data, only="pipeline") as alone:
        code, words = alone.ended()
    assert code == 3
    assert words.startswith("error: JAVA_HOME is")
    with up(data, only=None) as service:
        at = service.addresses()
        told: list[str] = []
        assert service.process.stderr is not None
        told.append(service.process.stderr.readline())
        assert "rows stay in the log, the pipeline does not run: JAVA_HOME is" in told[0]
        assert "install Java" in told[0]
        assert post_rows(at["http"], "events", [{"id": 1}])["end"] == 1
        wait_until(lambda: service.pipeline_pid is None)
        service.signal(signal.SIGTERM)
        assert service.ended()[0] == 0


@pytest.mark.usefixtures("spark_running")
def test_an_embedded_service_brings_rows_to_tables_if_asked_to(make_settings: MakeSettings) -> None:
    settings = make_settings(
        ingest__http_port=0, ingest__flight_port=0, pipeline__flush_interval_ms=600_000
    )
    with calve.open(settings) as lake:
        with lake.serve(pipeline=True) as serving:
            post_rows(serving.addresses.http, "events", [{"id": 1}])
            lake.produce("events", [{"id": 2}])
            assert lake.flush("events", SPARK_SECONDS).committed == 2
            wait_until(lambda: lake.pipeline.status().is_running)
            lake.produce("events", [{"id": 3}])
        assert not lake.pipeline.status().is_running
        rows = lake.sql("select id from events order by id", fresh=False)
        assert [row["id"] for row in rows] == [1, 2, 3]
    with calve.open(settings) as again, again.serve():
        assert not again.pipeline.status().is_running, "only if asked to"
