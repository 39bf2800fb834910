"""The audit log as a topic: every record once, whoever made it and whatever died meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from calve import Client
from calve.audit import records
from calve.audit.trail import Record
from calve.errors import InvalidSettings
from calve.lake import Lake
from calve.settings import load_settings
from tests.services import Up, environment, settings_of, up, wait_until

SPARK_SECONDS = 120.0
TOPIC = "ops.security.audit"
WANTED = ("--set", f"audit.topic={TOPIC}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def run(data: Path, *arguments: str) -> None:
    """A command on the host."""
    program = "from calve.cli.main import calve; calve()"
    command = [sys.executable, "-c", program, *arguments, "--data", str(data)]
    subprocess.run(command, check=True, capture_output=True, env=environment(), cwd=data.parent)


def files(data: Path) -> list[Record]:
    return list(records(data / "_calve" / "audit"))


def topic(service: Up) -> list[dict[str, Any]]:
    """What it holds, oldest first."""
    url = f"{service.addresses()['http']}/v1/topics/{TOPIC}/rows"
    found = httpx.get(url, params={"offset": 0, "limit": 1000}, timeout=30)
    return [row["value"] for row in found.json()["rows"]] if found.is_success else []


def names(found: list[Record]) -> list[tuple[str, str]]:
    return [(each.id, each.step) for each in found]


def all_are_there(data: Path, rows: Callable[[], list[dict[str, Any]]]) -> None:
    """Each record once, in the order of the files."""
    made = ("topic.create", TOPIC, "end")
    wait_until(lambda: made in {(e.action, e.subject, e.step) for e in files(data)})
    wait_until(lambda: len(rows()) >= len(files(data)))
    assert [(row["id"], row["step"]) for row in rows()] == names(files(data))


def test_what_is_done_over_the_service_and_on_the_host_is_in_the_topic(data: Path) -> None:
    run(data, "topic", "create", "before", "--messages")  # no service is up
    with up(data, *WANTED) as service:
        http = service.addresses()["http"]
        made = {"name": "during", "columns": [{"name": "id", "type": "long"}]}
        httpx.post(f"{http}/v1/topics", json=made, timeout=30).raise_for_status()
        run(data, "token", "create", "ci", "--tenant", "acme", "--scope", "produce")
        all_are_there(data, lambda: topic(service))
        rows = topic(service)
    ended = {(row["action"], row["subject"]): row for row in rows if row["step"] == "end"}
    assert {("topic.create", "before"), ("topic.create", "during"), ("topic.create", TOPIC)} <= {
        (action, subject.removeprefix("default.default.")) for action, subject in ended
    }
    over_http = next(row for row in rows if row["who"]["door"] == "http")
    assert over_http["who"]["address"] == "127.0.0.1"
    assert over_http["time"].startswith("20")


def test_a_service_that_is_killed_again_and_again_appends_each_record_once(data: Path) -> None:
    for number in range(4):
        with up(data, *WANTED, "--set", "audit.file_bytes_max=2000") as service:
            http = service.addresses()["http"]
            for each in range(5):
                body = {"name": f"t{number}_{each}", "columns": [{"name": "id", "type": "long"}]}
                httpx.post(f"{http}/v1/topics", json=body, timeout=30).raise_for_status()
            os.kill(service.ingest_pid, signal.SIGKILL)
    with up(data, *WANTED) as service:
        all_are_there(data, lambda: topic(service))
        assert len(list((data / "_calve" / "audit").glob("audit-*.jsonl"))) > 3


def test_a_topic_that_was_deleted_comes_back_with_all_that_the_files_hold(data: Path) -> None:
    run(data, "topic", "create", "orders", "--messages")
    with up(data, *WANTED) as service:
        all_are_there(data, lambda: topic(service))
        before = topic(service)
        http = service.addresses()["http"]
        httpx.delete(f"{http}/v1/topics/{TOPIC}", timeout=30).raise_for_status()
        all_are_there(data, lambda: topic(service))
        assert topic(service)[: len(before)] == before
        assert len(topic(service)) > len(before)


@pytest.mark.timeout(300)
def test_it_lands_in_a_table(data: Path) -> None:
    run(data, "topic", "create", "orders", "--messages")
    with up(data, *WANTED, only=None) as service:
        all_are_there(data, lambda: topic(service))
        with Client(service.addresses()["flight"]) as client:
            client.flush(TOPIC, SPARK_SECONDS, to_table=True)
    with Lake(settings_of(data), create=False) as lake:
        question = f"select id, step, who.name as name from {TOPIC}"
        rows = list(lake.sql(question, fresh=False))
    assert {(row["id"], row["step"]) for row in rows} == set(names(files(data)))
    assert {row["name"] for row in rows} == {files(data)[0].who.name}


def test_a_name_that_is_none_is_refused_with_the_settings() -> None:
    with pytest.raises(InvalidSettings, match=r"audit\.topic: .* is not a table name"):
        load_settings(flags={"audit.topic": "a.b"}, environ={})
