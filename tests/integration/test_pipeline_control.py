"""The pipeline watched and directed: by command in the lake and through a service, and over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import calve
from calve.errors import NotFound
from calve.lake import Lake
from calve.model import TableName
from calve.state import PIPELINE_LEASE, Progress, State, TopicPartition
from calve.topics import Topic, TopicSpec
from tests.commands import Run, run_command
from tests.services import settings_of

ROWS = [{"id": number} for number in range(10)]


@dataclass
class Place:
    """A lake with a topic of ten rows, and a way to direct its pipeline by command."""

    lake: Lake
    http: str
    command: Callable[..., Run]

    @property
    def state(self) -> State:
        return self.lake.intake.state

    def topic(self, name: str = "events") -> Topic:
        return self.lake.intake.topics.topic(TableName.parse(name))

    def commit(self, offset: int, name: str = "events") -> None:
        """What the pipeline does after a commit."""
        topic = self.topic(name)
        log_id = topic.partitions[0].log_id
        self.state.publish_committed(topic.id, 0, log_id=log_id, offset=offset)

    def status(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = self.command("pipeline", "status", *words, "--json").json()
        return found


@pytest.fixture(params=["lake", "service"])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Place]:
    data = tmp_path / "lake"
    monkeypatch.chdir(tmp_path)
    settings = settings_of(data, ingest__http_port=0, ingest__flight_port=0)
    with calve.open(settings) as lake, lake.serve() as serving:
        server = ["--server", serving.addresses.flight] if request.param == "service" else []

        def command(*words: str) -> Run:
            line = ["calve", *words, "--data", str(data), *(server if "pipeline" in words else [])]
            return run_command(line, monkeypatch, capsys)

        lake.produce("events", ROWS)
        yield Place(lake, serving.addresses.http, command)


def test_what_waits_is_read_from_the_log_also_while_no_pipeline_runs(place: Place) -> None:
    found = place.status()
    (events,) = found["partitions"]
    assert (found["is_running"], found["is_paused"], found["owner"]) == (False, False, None)
    assert (events["topic"], events["partition"], events["condition"]) == ("events", 0, "waiting")
    assert (events["committed"], events["durable"], events["lag_rows"]) == (0, 10, 10)
    assert 10 <= events["lag_bytes"] < 10_000
    assert 0 <= events["lag_seconds"] < 60
    place.commit(7)
    assert place.status()["partitions"][0]["lag_rows"] == 3
    place.commit(10)
    (events,) = place.status("events")["partitions"]
    assert (events["condition"], events["lag_rows"], events["lag_bytes"]) == ("done", 0, 0)
    assert events["lag_seconds"] is None


def test_how_attempts_went_is_told_the_worst_first(place: Place) -> None:
    place.lake.produce("orders", ROWS * 10)
    place.state.take_lease(PIPELINE_LEASE, "process 7 on here", 60)
    now = datetime.now(UTC)
    failing = Progress(
        topic_id=place.topic().id,
        partition=0,
        flush_interval_ms=20_000,
        committed_at=now - timedelta(seconds=90),
        error="the catalog does not answer",
        hint="look at it",
        failures=3,
        next_try_at=now + timedelta(seconds=30),
    )
    place.state.publish_progress([failing])
    found = place.status()
    assert (found["is_running"], found["owner"]) == (True, "process 7 on here")
    assert [each["topic"] for each in found["partitions"]] == ["events", "orders"]
    events = found["partitions"][0]
    assert (events["condition"], events["failures"]) == ("failing", 3)
    assert (events["last_error"], events["hint"]) == ("the catalog does not answer", "look at it")
    assert datetime.fromisoformat(events["last_commit_at"]) == failing.committed_at
    assert datetime.fromisoformat(events["next_try_at"]) == failing.next_try_at
    shown = place.command("pipeline", "status").out
    assert "runs, by process 7 on here" in shown
    assert "20 s" in shown
    assert "90 s ago" in shown
    assert "in 30 s" in shown or "in 29 s" in shown
    assert "events: the catalog does not answer\n  look at it" in shown
    overall = place.command("status")
    assert "warn  10 rows of topic events do not get into its table: the catalog" in overall.out
    assert overall.code == 0, "rows are taken in"


def test_a_topic_and_the_whole_pipeline_are_paused_and_resumed(place: Place) -> None:
    place.lake.produce("orders", ROWS)
    paused = place.command("pipeline", "pause", "events", "--json").json()
    assert [each["condition"] for each in paused["partitions"]] == ["paused"]
    assert place.state.pipeline_orders().paused_topics == {place.topic().id}
    assert {each["topic"]: each["condition"] for each in place.status()["partitions"]} == {
        "events": "paused",
        "orders": "waiting",
    }
    assert place.command("pipeline", "pause", "--json").json()["is_paused"]
    assert "is paused" in place.command("pipeline", "status").out
    assert "the pipeline is paused" in place.command("status").out
    still = place.command("pipeline", "resume", "events")
    assert "paused still" in still.err
    place.command("pipeline", "pause", "orders")
    assert not place.command("pipeline", "resume", "--json").json()["is_paused"]
    orders = place.state.pipeline_orders()
    assert (orders.is_paused, orders.paused_topics) == (False, frozenset())


def failing(place: Place) -> None:
    """The pipeline has said that it failed, and when it tries again."""
    told = Progress(
        topic_id=place.topic().id,
        partition=0,
        error="the catalog does not answer",
        failures=3,
        next_try_at=datetime.now(UTC) + timedelta(seconds=30),
    )
    place.state.publish_progress([told])


@pytest.mark.parametrize("what", ["events", "all"])
def test_a_paused_topic_that_fails_is_shown_as_both_and_not_tried(place: Place, what: str) -> None:
    place.state.take_lease(PIPELINE_LEASE, "process 7 on here", 60)
    failing(place)
    (events,) = place.status()["partitions"]
    assert (events["is_paused"], events["next_try_at"] is None) == (False, False)
    place.command("pipeline", "pause", *([what] if what == "events" else []))
    (events,) = place.status()["partitions"]
    assert (events["condition"], events["is_paused"], events["failures"]) == ("failing", True, 3)
    assert events["next_try_at"] is None
    shown = place.command("pipeline", "status").out
    assert "paused, failing" in shown
    assert "in 30 s" not in shown
    assert "in 29 s" not in shown
    assert "events: the catalog does not answer" in shown
    overall = place.command("status").out
    assert "10 rows of topic events, which is paused, do not get into its table" in overall
    resume = "calve pipeline resume" if what == "all" else "calve pipeline resume events"
    assert f"`{resume}` has it tried again" in overall


def test_nothing_is_tried_while_no_pipeline_runs(place: Place) -> None:
    failing(place)
    (events,) = place.status()["partitions"]
    assert (events["condition"], events["next_try_at"]) == ("failing", None)
    assert "tries it again when it runs" in place.command("status").out


def test_rows_before_an_offset_are_skipped(place: Place) -> None:
    place.commit(3)
    skipped = place.command("pipeline", "skip", "events", "--to", "8", "--json").json()
    assert skipped == {"topic": "events", "partition": 0, "start": 3, "end": 8}
    assert place.state.pipeline_orders().skips == {TopicPartition(place.topic().id, 0): 8}
    assert place.status()["partitions"][0]["skip_to"] == 8
    again = place.command("pipeline", "skip", "events", "--to", "9")
    assert "from offset 3 to before 9 become dead letters\n" in again.err
    shown = place.command("pipeline", "status").out
    assert "events: the rows from offset 3 to before 9 become dead letters" in shown
    less = place.command("pipeline", "skip", "events", "--to", "5")
    assert "from offset 3 to before 9 become dead letters, as an earlier skip says" in less.err
    assert place.state.pipeline_orders().skips == {TopicPartition(place.topic().id, 0): 9}
    place.commit(9)
    assert "dead letters" not in place.command("pipeline", "status").out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("skip", "events", "--to", "3"), 3, "3, which the table of events has reached"),
        (("skip", "events", "--to", "11"), 3, "10, where its log ends"),
        (("skip", "done", "--to", "1"), 3, "nothing of done waits"),
        (("skip", "events", "--to", "5", "--partition", "1"), 3, "no partition 1"),
        (("skip", "empty", "--to", "5"), 3, "no rows yet"),
        (("skip", "event", "--to", "5"), 4, "did you mean"),
        (("skip", "events"), 2, "--to"),
        (("pause", "event"), 4, "did you mean"),
        (("resume", "event"), 4, "did you mean"),
        (("status", "event"), 4, "did you mean"),
        (("status", "a..b"), 3, "not a valid part"),
    ],
)
def test_an_order_that_cannot_be_followed_is_refused(
    place: Place, words: tuple[str, ...], code: int, told: str
) -> None:
    place.commit(3)
    place.lake.intake.topics.create(TableName.parse("empty"), TopicSpec(schema={"a": "int"}))
    place.lake.produce("done", ROWS)
    place.commit(10, "done")
    refused = place.command("pipeline", *words)
    assert refused.code == code, refused.err
    assert told in refused.err
    assert place.state.pipeline_orders().skips == {}


def test_http_shows_and_directs_the_pipeline(place: Place) -> None:
    with httpx.Client(base_url=place.http) as client:
        shown = client.get("/v1/pipeline").json()
        assert shown["partitions"][0]["lag_rows"] == 10
        assert client.get("/v1/pipeline", params={"topic": "nothing"}).status_code == 404
        assert client.get("/v1/pipeline", params={"topic": ".."}).status_code == 400
        assert client.post("/v1/pipeline/pause", json={}).json()["is_paused"]
        assert not client.post("/v1/pipeline/resume", json={}).json()["is_paused"]
        one = client.post("/v1/pipeline/pause", json={"topic": "events"}).json()
        assert one["partitions"][0]["condition"] == "paused"
        skipped = client.post("/v1/pipeline/skip", json={"topic": "events", "to": 4})
        assert skipped.json() == {"topic": "events", "partition": 0, "start": 0, "end": 4}
        wrong = client.post("/v1/pipeline/skip", json={"topic": "events", "to": 40})
        assert wrong.status_code in {400, 422}
        assert wrong.headers["content-type"] == "application/problem+json"
        assert wrong.json()["context"] == {"committed": "0", "durable": "10"}
        assert client.post("/v1/pipeline/skip", json={"topic": "events"}).status_code == 400


def test_a_lake_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["calve", "pipeline", "status", "--data", str(tmp_path / "none")]
    assert run_command(line, monkeypatch, capsys).code == NotFound.exit_code
    assert not (tmp_path / "none").exists()


def test_a_flush_that_is_held_up_names_what_to_resume_and_no_more(place: Place) -> None:
    place.state.take_lease(PIPELINE_LEASE, "somebody", 60)
    flush = ("topic", "flush", "events", "--timeout", "0.1")
    place.state.pause_pipeline(place.topic().id)
    told = place.command(*flush)
    assert told.code == 6
    assert "the topic is paused: `calve pipeline resume events`" in told.err
    place.state.pause_pipeline()
    assert "the pipeline is paused: `calve pipeline resume` has" in place.command(*flush).err


def test_beside_ingest_the_command_that_runs_the_pipeline_alone_is_named(place: Place) -> None:
    told = place.command("topic", "flush", "events", "--timeout", "0.12345")
    assert "`calve up --only pipeline` runs it" in told.err
    assert "not flushed after 0.1 s" in told.err
    assert "`calve up --only pipeline` runs it" in place.command("status").out
