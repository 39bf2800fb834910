"""A topic that stopped is told of by whatever lists topics, and hides none of the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator

import httpx
import pytest
from pyarrow import flight

from calve.client import Client
from calve.lake import Lake
from calve.service.serving import Serving
from calve.settings import Settings
from tests.commands import Run, run_command
from tests.conftest import MakeSettings

Calve = Callable[..., Run]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Of a lake in which the log of one topic is lost, and another one is sound."""
    settings = make_settings(ingest__http_port=0, ingest__flight_port=0)
    with Lake(settings) as lake:
        lake.produce("lost", [{"id": 1}])
    assert settings.wal.path is not None
    shutil.rmtree(settings.wal.path)
    with Lake(settings) as lake:
        lake.produce("sound", [{"id": 1}, {"id": 2}])
    return settings


@pytest.fixture
def served(settings: Settings) -> Iterator[Serving]:
    with Lake(settings) as lake, lake.serve() as serving:
        yield serving


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Settings
) -> Calve:
    def run(*words: str) -> Run:
        line = ["calve", *words, "--data", str(settings.data)]
        return run_command(line, monkeypatch, capsys)

    return run


def check_list(command: Calve) -> None:
    listed = command("topic", "list", "--json")
    lost, sound = listed.json()
    assert (lost["offsets"], sound["problem"]) == (None, None)
    assert "--new-log" in lost["problem"]["hint"]
    assert sound["offsets"]["durable"] == 2
    shown = command("topic", "list")
    assert [line.split()[:4] for line in shown.out.splitlines()[1:]] == [
        ["lost", "rows", "-", "-"],
        ["sound", "rows", "0", "2"],
    ]
    assert "lost: " in shown.err


def test_in_the_lake_itself(command: Calve) -> None:
    check_list(command)
    found = command("status")
    assert found.code == 6
    assert "FAIL  topic lost stops" in found.out
    assert [line.split()[:3] for line in found.out.splitlines()[-2:]] == [
        ["sound", "0", "2"],
        ["lost", "-", "-"],
    ]


def test_through_the_service(command: Calve, served: Serving) -> None:
    check_list(command)
    described = command("topic", "describe", "lost")
    assert (described.code, "problem" in described.out) == (0, True)
    assert command("topic", "delete", "lost", "--yes").code == 0
    assert [each["name"] for each in command("topic", "list", "--json").json()] == ["sound"]


def test_status_of_a_service_elsewhere(
    command: Calve, served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = served.addresses.flight
    told = command("status", "--server", url, "--json")
    assert told.code == 6
    found = told.json()
    assert found["server"] == url
    assert {each["topic"]: each["durable"] for each in found["topics"]} == {
        "sound": 2,
        "lost": None,
    }
    assert found["findings"][0]["gravity"] == "failed"
    assert found["log"]["bytes"] > 0
    monkeypatch.setenv("CALVE_SERVER", url)
    assert f"at {url}" in command("status").out
    assert command("topic", "delete", "lost", "--yes").code == 0
    assert command("status").code == 0


def test_status_of_a_service_that_does_not_answer(command: Calve) -> None:
    told = command("status", "--server", "grpc://127.0.0.1:1")
    assert told.code == 6
    assert "calve up" in told.err


def test_over_flight_and_http(served: Serving) -> None:
    with flight.connect(served.addresses.flight) as client:
        listed = {info.descriptor.path[-1]: info for info in client.list_flights()}
    assert listed[b"sound"].total_records == 2
    assert listed[b"lost"].endpoints == []
    assert json.loads(listed[b"lost"].app_metadata)["problem"]["status"] == 409
    with httpx.Client(base_url=served.addresses.http) as http:
        topics = {each["name"]: each["problem"] for each in http.get("/v1/topics").json()["topics"]}
        assert topics["sound"] is None
        assert "is in log" in topics["lost"]
        status = http.get("/v1/status").json()
        assert (status["stopped"], status["problems"][0]["topic"]) == (None, "lost")
        assert http.get("/v1/topics/lost").status_code == 409
        assert http.get("/v1/topics/sound").status_code == 200


def test_a_client_sees_all(served: Serving) -> None:
    with Client(served.addresses.flight) as client:
        assert client.topics() == ["lost", "sound"]
        assert [bool(each["problem"]) for each in client.describe_topics()] == [True, False]
