"""`calve subscribe` and `calve subscription`, as a user calls them, in the lake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.lake import Lake
from calve.settings import Settings
from tests.commands import Run, run_command
from tests.conftest import MakeSettings
from tests.integration.streaming import left_by_the_dead

Shell = Callable[..., Run]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    made = make_settings(wal__free_bytes_min=0)
    with Lake(made) as lake:
        lake.produce("orders", [{"id": n, "city": "Oslo" if n % 2 else "Rome"} for n in range(3)])
        lake.produce("orders", [{"id": 3, "city": "Oslo"}])
    return made


@pytest.fixture
def shell(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Shell:
    def run(*words: str) -> Run:
        lake = ["--data", str(settings.data), "--set", "wal.free_bytes_min=0"]
        return run_command(["calve", *words, *lake], monkeypatch, capfd)

    return run


def lines(run: Run) -> list[dict[str, object]]:
    assert run.code == 0, run.err
    return [json.loads(line) for line in run.out.splitlines()]


def offsets(run: Run) -> list[object]:
    return [line["offset"] for line in lines(run)]


def test_a_named_subscription_goes_on_behind_what_was_printed(shell: Shell) -> None:
    call = ("subscribe", "orders", "--name", "billing", "--from", "earliest", "--json")
    first = lines(shell(*call, "--max", "2"))
    assert [set(line) for line in first] == [{"partition", "offset", "ingested_at", "value"}] * 2
    assert first[1]["value"] == {"id": 1, "city": "Oslo"}
    assert str(first[1]["ingested_at"]).endswith("Z")
    assert offsets(shell(*call, "--max", "1")) == [2]
    assert offsets(shell(*call, "--no-follow")) == [3]
    assert offsets(shell(*call, "--no-follow")) == []


def test_without_a_name_nothing_is_kept_and_rows_are_chosen(shell: Shell) -> None:
    call = ("subscribe", "orders", "--no-follow", "--json")
    assert offsets(shell(*call)) == offsets(shell(*call)) == [0, 1, 2, 3]
    assert offsets(shell(*call, "--from", "0:2")) == [2, 3]
    assert offsets(shell(*call, "--from", "2020-01-01T00:00:00Z", "--where", "id >= 3")) == [3]
    (last,) = lines(shell(*call, "--from", "3", "--columns", "city"))
    assert last["value"] == {"city": "Oslo"}
    shown = shell("subscribe", "orders", "--max", "1")
    assert shown.out.startswith("0:0  ")
    assert shown.out.endswith('  {"id":0,"city":"Rome"}\n')
    assert shell("subscription", "list", "--json").json() == []


def test_subscriptions_are_listed_described_moved_and_forgotten(shell: Shell) -> None:
    shell("subscribe", "orders", "--name", "billing", "--max", "3")
    (listed,) = shell("subscription", "list", "orders", "--json").json()
    assert (listed["topic"], listed["name"], listed["lag"]) == ("orders", "billing", 1)
    assert listed["owner"] is None
    described = shell("subscription", "describe", "orders", "billing")
    assert described.out.split() == ["PARTITION", "POSITION", "END", "0", "3", "4"]
    assert "1 row behind" in described.err
    moved = shell("subscription", "seek", "orders", "billing", "--to", "1", "--json").json()
    assert moved["partitions"] == [{"partition": 0, "position": 1, "end": 4}]
    assert shell("subscription", "reset", "orders", "billing").code == 2  # nobody to ask
    assert (
        "would begin again" in shell("subscription", "reset", "orders", "billing", "--dry-run").err
    )
    assert shell("subscription", "reset", "orders", "billing", "--yes", "--json").json()["lag"] == 4
    assert "would be" in shell("subscription", "delete", "orders", "billing", "--dry-run").err
    assert shell("subscription", "delete", "orders", "billing", "--yes").code == 0
    gone = shell("subscription", "describe", "orders", "billing")
    assert gone.code == 4
    assert "calve subscription list orders" in gone.err
    shell("subscribe", "orders", "--name", "billing", "--max", "1")
    assert "did you mean 'billing'?" in shell("subscription", "reset", "orders", "biling").err
    assert shell("subscription", "list", "order").code == 4


def test_the_same_goes_through_a_service(settings: Settings, shell: Shell) -> None:
    ingest = msgspec.structs.replace(settings.ingest, flight_port=0)
    with (
        Intake(msgspec.structs.replace(settings, ingest=ingest)) as intake,
        FlightServer(intake) as server,
    ):
        through = ("--server", server.url, "--json")
        call = ("subscribe", "orders", "--name", "billing", *through)
        first = shell(*call, "--max", "3")
        assert f"through the service at {server.url}" in first.err
        assert offsets(first) == [0, 1, 2]
        left_by_the_dead(intake.state, 1)
        waited = shell(*call, "--no-follow")
        assert "one that was killed has billing now; waiting until it ends" in waited.err
        assert offsets(waited) == [3]
        assert offsets(shell("subscribe", "orders", "--from", "2", "--max", "2", *through)) == [
            2,
            3,
        ]
        (listed,) = shell("subscription", "list", *through).json()
        assert (listed["name"], listed["lag"]) == ("billing", 0)
        name = ("orders", "billing")
        assert shell("subscription", "seek", *name, "--to", "1", *through).json()["lag"] == 3
        assert shell("subscription", "describe", *name, *through).json()["lag"] == 3
        assert shell("subscription", "reset", *name, "--yes", *through).json()["lag"] == 4
        assert shell("subscription", "delete", *name, "--yes", *through).code == 0
        assert shell("subscription", "describe", *name, *through).code == 4
        assert shell("subscribe", "nothing", *through).code == 4


def test_mistakes_are_told_with_the_way_out(shell: Shell, tmp_path: Path) -> None:
    wrong = shell("subscribe", "orders", "--from", "yesterday")
    assert wrong.code == 3
    assert "earliest, latest, an offset" in wrong.err
    assert shell("subscribe", "orders", "--from", "9", "--no-follow").code == 3
    assert shell("subscribe", "nothing", "--name", "billing").code == 4
    assert shell("subscribe", "orders", "--name", "a/b").code == 3
    assert shell("subscription", "seek", "orders", "billing", "--to", "0").code == 4


def test_one_that_is_interrupted_lets_others_have_it_at_once(
    settings: Settings, shell: Shell
) -> None:
    words = ["subscribe", "orders", "--name", "billing", "--json", "--data", str(settings.data)]
    run = "import sys; from calve.cli.main import calve; calve()"
    consumer = subprocess.Popen(
        [sys.executable, "-c", run, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "CALVE_WAL__FREE_BYTES_MIN": "0"},
    )
    try:
        assert consumer.stdout is not None
        assert [json.loads(consumer.stdout.readline())["offset"] for _ in range(4)] == [0, 1, 2, 3]
        (listed,) = shell("subscription", "list", "--json").json()
        assert f":{consumer.pid}:" in listed["owner"]
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(10) == 130
    finally:
        consumer.kill()
        consumer.communicate()
    (listed,) = shell("subscription", "list", "--json").json()
    assert (listed["owner"], listed["lag"]) == (None, 0)
