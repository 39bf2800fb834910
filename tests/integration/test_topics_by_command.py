"""`calve topic …` and `calve status`: the same in the lake itself and through its service."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import calve
from calve.lake import Lake
from calve.model import TableName
from calve.service.announcement import Announcement
from tests.commands import Run, run_command
from tests.services import settings_of

Calve = Callable[..., Run]
SCHEMA = {
    "columns": [
        {"name": "id", "type": "long", "required": True},
        {"name": "at", "type": "timestamptz"},
        {"name": "tags", "type": "list<string>"},
    ],
    "partition_by": ["day(at)"],
    "sort_by": ["id desc"],
    "properties": {"owner": "me"},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture(params=["lake", "service"])
def where(request: pytest.FixtureRequest, data: Path) -> Iterator[str]:
    """Whether commands find a service that has the lake."""
    if request.param == "lake":
        yield "in the lake at"
        return
    settings = settings_of(data, ingest__http_port=0, ingest__flight_port=0)
    with calve.open(settings) as lake, lake.serve():
        yield "through the service at"


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: Path
) -> Calve:
    monkeypatch.chdir(data.parent)

    def run(*words: str) -> Run:
        return run_command(["calve", *words, "--data", str(data)], monkeypatch, capsys)

    return run


def schema_file(data: Path, **changes: Any) -> str:
    path = data.parent / "schema.json"
    path.write_text(json.dumps(SCHEMA | changes))
    return str(path)


def test_a_topic_is_made_listed_described_changed_and_deleted(
    command: Calve, data: Path, where: str
) -> None:
    made = command(
        *("topic", "create", "orders", "--schema", schema_file(data), "--retention", "30d"),
        *("--flush-rows", "100", "--flush-interval-ms", "50"),
    )
    assert made.code == 0, made.err
    assert where in made.err
    assert "day(at)" in made.out
    assert "30d" in made.out
    assert "rows_max 100, interval_ms 50" in made.out
    described = command("topic", "describe", "orders", "--json").json()
    assert described["name"] == "orders"
    assert described["partition_by"] == ["day(at)"]
    assert described["sort_by"] == ["id desc"]
    assert described["properties"] == {"owner": "me"}
    assert described["retention_seconds"] == 30 * 86_400
    assert [c["type"] for c in described["columns"]] == ["long", "timestamptz", "list<string>"]
    assert described["columns"][0]["required"]
    assert described["offsets"] == {"first": 0, "durable": 0, "committed": 0}

    changed = command(
        *("topic", "alter", "orders", "--on-unknown-column", "dead-letter", "--retention"),
        *("forever", "--add-column", "email string", "--rename-column", "tags=labels", "--json"),
        *("--flush-rows", "default", "--freshness-ms", "900", "--flush-bytes", "5000"),
    ).json()
    assert changed["flush"] == {
        "rows_max": None, "bytes_max": 5000, "interval_ms": 50, "freshness_ms": 900,
    }  # fmt: skip
    assert changed["on_unknown_column"] == "dead_letter"
    assert changed["retention_seconds"] is None
    assert [c["name"] for c in changed["columns"]] == ["id", "at", "labels", "email"]
    assert [t["name"] for t in command("topic", "list", "--json").json()] == ["orders"]
    assert "orders" in command("topic", "list").out

    assert command("topic", "delete", "orders").code == 2, "nobody to ask"
    assert command("topic", "delete", "orders", "--dry-run").code == 0
    assert command("topic", "describe", "orders").code == 0
    assert command("topic", "delete", "orders", "--yes").code == 0
    assert command("topic", "describe", "orders").code == 4
    assert command("topic", "list", "--json").json() == []


def test_the_same_request_finds_the_topic_and_another_one_is_a_conflict(
    command: Calve, data: Path, where: str
) -> None:
    file = schema_file(data)
    first = command("topic", "create", "orders", "--schema", file, "--json").json()
    again = command("topic", "create", "orders", "--schema", file, "--json").json()
    assert first["id"] == again["id"]
    other = command("topic", "create", "orders", "--schema", file, "--on-bad-row", "dead-letter")
    assert other.code == 5
    assert "calve topic alter" in other.err


def test_a_topic_can_feed_a_table_that_is_there(command: Calve, data: Path, where: str) -> None:
    file = schema_file(data)
    assert command("topic", "create", "orders", "--table").code == 4
    assert command("table", "create", "orders", "--schema", file).code == 0
    assert command("topic", "create", "orders", "--schema", file).code == 5
    bound = command("topic", "create", "orders", "--table", "--json")
    assert bound.json()["is_bound"]
    assert [c["name"] for c in bound.json()["columns"]] == ["id", "at", "tags"]


def test_topics_of_messages_have_columns_of_their_own(
    command: Calve, data: Path, where: str
) -> None:
    made = command("topic", "create", "acme.web.clicks", "--messages", "--json").json()
    assert made["kind"] == "messages"
    assert "payload" in [c["name"] for c in made["columns"]]
    assert command("topic", "describe", "acme.web.clicks").code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create", "orders"), 2),
        (("create", "orders", "--messages", "--table"), 2),
        (("create", "Orders", "--messages"), 3),
        (("create", "../orders", "--messages"), 3),
        (("create", "orders", "--messages", "--retention", "soon"), 2),
        (("create", "orders", "--messages", "--flush-rows", "0"), 2),
        (("create", "orders", "--messages", "--flush-rows", "few"), 2),
        (("create", "orders", "--messages", "--retention", "0d"), 2),
        (("create", "orders", "--schema", "missing.json"), 4),
        (("create", "orders", "--messages", "--property", "calve.x=1"), 3),
        (("alter", "orders", "--add-column", "email"), 2),
        (("alter", "orders", "--rename-column", "email"), 2),
        (("describe", "orders"), 4),
        (("delete", "orders", "--yes"), 4),
        (("flush", "orders"), 4),
    ],
)
def test_a_mistake_ends_with_its_code_and_no_traceback(
    command: Calve, data: Path, where: str, words: tuple[str, ...], code: int
) -> None:
    run = command("topic", *words)
    assert run.code == code, run.err
    assert not run.out


def test_flush_waits_for_the_table_and_says_how_far_it_is(
    command: Calve, data: Path, where: str
) -> None:
    rows = data.parent / "rows.ndjson"
    rows.write_text('{"id": 1}\n{"id": 2}\n')
    assert command("topic", "create", "orders", "--schema", schema_file(data)).code == 0
    assert command("topic", "flush", "orders", "--json").json()["committed"] == 0


@pytest.mark.parametrize("verb", ["list", "describe", "alter", "delete", "flush"])
def test_a_lake_that_is_not_there_is_not_made_by_asking(
    command: Calve, data: Path, verb: str
) -> None:
    name = [] if verb == "list" else ["orders"]
    run = command("topic", verb, *name)
    assert run.code == 4
    assert "no lake" in run.err
    assert not data.exists()


def test_a_lost_log_is_given_up_on_purpose_only(command: Calve, data: Path) -> None:
    settings = settings_of(data)
    with Lake(settings) as lake:
        lake.produce("orders", [{"id": 1}])
    assert settings.wal.path is not None
    settings.wal.path.rename(data.parent / "lost")
    with Lake(settings) as lake:
        lake.produce("others", [{"id": 1}])
    told = command("status")
    assert told.code == 6
    assert told.out.startswith("FAIL  topic orders stops")
    assert "--new-log" in told.out
    assert command("topic", "alter", "orders", "--new-log").code == 2, "nobody to ask"
    assert command("topic", "alter", "orders", "--new-log", "--yes").code == 0
    assert command("status").code == 0
    with Lake(settings) as lake:
        assert lake.produce("orders", [{"id": 2}]).first == 0


def test_status_without_a_service_shows_topics_and_what_helps(command: Calve, data: Path) -> None:
    assert command("status").code == 4, "there is no lake"
    settings = settings_of(data)
    with Lake(settings) as lake:
        lake.produce("orders", [{"id": 1}, {"id": 2}])
        lake.produce("users", [{"id": 1}])
        topic = lake.intake.topics.topic(TableName.parse("orders"))
        state, log_id = lake.intake.state, lake.intake.log.log_id
        state.publish_committed(topic.id, 0, log_id=log_id, offset=1)
    found = command("status", "--json").json()
    assert found["service"] is None
    assert {
        t["topic"]: (t["first"], t["durable"], t["committed"], t["lag"]) for t in found["topics"]
    } == {
        "orders": (0, 2, 1, 1),
        "users": (0, 1, 0, 1),
    }
    assert found["log"]["bytes_max"] == 64 << 30
    shown = command("status")
    assert "calve up" in shown.out
    assert "2 rows are in the log" in shown.out


def test_status_tells_of_a_running_service_and_of_its_bounds(command: Calve, data: Path) -> None:
    settings = settings_of(data, ingest__http_port=0, ingest__flight_port=0)
    with calve.open(settings) as lake, lake.serve() as serving:
        lake.produce("orders", [{"id": 1}])
        found = command("status", "--json").json()
        assert found["service"]["addresses"]["http"] == serving.addresses.http
        assert serving.addresses.http in command("status").out
        full = command("status", "--set", f"wal.free_bytes_min={1 << 60}")
        assert full.code == 6
        assert full.out.startswith("FAIL  rows are refused")
        small = command("status", "--set", "wal.disk_bytes_max=1000")
        assert small.out.startswith("FAIL  the log has")


def test_a_stale_announcement_is_not_taken_for_a_service(command: Calve, data: Path) -> None:
    settings = settings_of(data)
    with Lake(settings) as lake:
        lake.produce("orders", [{"id": 1}])
    (data / "_calve" / "service.json").write_text(
        '{"pid": 1, "since": "2026-01-01T00:00:00Z", "partition": 0, '
        '"addresses": {"flight": "grpc://127.0.0.1:1", "http": "http://127.0.0.1:1"}}'
    )
    assert command("status", "--json").json()["service"] is None
    assert "in the lake at" in command("topic", "list").err
    with Announcement(settings):
        assert not (data / "_calve" / "service.json").exists()
        assert "in the lake at" in command("topic", "list").err, "one that only starts"
    with Announcement(settings):
        pass


def test_the_environment_names_a_service_like_the_option(
    command: Calve, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(data, ingest__http_port=0, ingest__flight_port=0)
    elsewhere = str(data.parent / "elsewhere")
    with calve.open(settings) as lake, lake.serve() as serving:
        lake.produce("orders", [{"id": 1}])
        asked = command("topic", "list", "--server", serving.addresses.flight, "--data", elsewhere)
        assert "orders" in asked.out
        monkeypatch.setenv("CALVE_SERVER", serving.addresses.flight)
        assert command("topic", "list", "--data", elsewhere).out == asked.out
    gone = command("topic", "list", "--server", serving.addresses.flight)
    assert gone.code == 6
    assert "calve up" in gone.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_flush_that_waits_ends_at_once_when_it_is_interrupted(
    data: Path, number: signal.Signals
) -> None:
    settings = settings_of(data, ingest__http_port=0, ingest__flight_port=0)
    run = "from calve.cli.main import calve; calve()"
    words = ["topic", "flush", "orders", "--timeout", "25", "--data", str(data)]
    with calve.open(settings) as lake, lake.serve():
        lake.produce("orders", [{"id": 1}])
        flush = subprocess.Popen(
            [sys.executable, "-c", run, *words], stderr=subprocess.PIPE, text=True
        )
        try:
            while not lake.intake.state.flush_requests():
                assert flush.poll() is None
                time.sleep(0.01)
            begun = time.monotonic()
            flush.send_signal(number)
            _, words_told = flush.communicate(timeout=30)
        finally:
            flush.kill()
            flush.wait()
        assert flush.returncode == 130
        assert "Traceback" not in words_told
        assert time.monotonic() - begun < 3  # within one, on a machine that is not busy
