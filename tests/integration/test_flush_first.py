"""Updates and deletes of a table that a topic feeds count for rows that are still in the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import calve
from calve.changes import flush_first
from calve.errors import InvalidRequest, NotFound, Unavailable
from calve.manager import IcebergManager
from calve.settings import Settings
from calve.settings.secret import SecretUrl
from calve.state import PIPELINE_LEASE
from calve.wal import Rejected
from tests.commands import run_command
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.topic_site import TopicSite, topic_site

# Nothing but a flush brings rows to the table.
PATIENT = {
    "wal__free_bytes_min": 0,
    "pipeline__flush_interval_ms": 600_000,
    "pipeline__freshness_ms": 600_000,
    "pipeline__cycle_interval_ms": 10,
    "ingest__http_port": 0,
    "ingest__flight_port": 0,
    **QUICK_RETRIES,
}


@pytest.fixture
def site(make_settings: MakeSettings) -> Iterator[TopicSite]:
    with topic_site(make_settings(**PATIENT), partitions=2) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_first, "_IDLE_SECONDS_MAX", 0.05)


@contextmanager
def running(site: TopicSite) -> Iterator[None]:
    """The pipeline at work, with its lease."""
    stop = threading.Event()
    thread = threading.Thread(target=site.pipeline.run, args=(stop,))
    assert site.state.take_lease(PIPELINE_LEASE, "test", 600)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        site.state.release_lease(PIPELINE_LEASE, "test")


def in_table(site: TopicSite, where: str | None = None) -> list[tuple[int, int]]:
    found = site.lake.tables.query_table("orders", where, ["_calve_partition", "id"])
    return sorted((row["_calve_partition"], row["id"]) for row in found)


def elsewhere(settings: Settings, tmp_path: Path, what: str) -> Settings:
    """The same catalog, seen from where the state or the log is not."""
    if what == "wal":
        wal = msgspec.structs.replace(settings.wal, path=tmp_path / "no-log")
        pipeline = msgspec.structs.replace(settings.pipeline, logs="")
        return msgspec.structs.replace(settings, wal=wal, pipeline=pipeline)
    dsn = SecretUrl(f"sqlite:///{tmp_path}/elsewhere/state.db")
    return msgspec.structs.replace(settings, state=msgspec.structs.replace(settings.state, dsn=dsn))


def test_rows_that_are_only_in_the_logs_are_changed_too(site: TopicSite) -> None:
    site.append(4, partition=0, name="old")
    site.append(4, partition=1, name="old")
    with running(site):
        # There is no table before the flush.
        assert site.lake.tables.delete_data("orders", "id = 1").deleted_rows == 2
        site.append(2, partition=1, name="old")
        site.append(1, partition=0, name="old", more="a column that comes with the flush")
        change = site.lake.tables.update_data("orders", {"name": "new"}, "id >= 3 or more > 'a'")
    assert change.updated_rows == 5
    assert in_table(site, "name = 'new'") == [(0, 3), (0, 4), (1, 3), (1, 4), (1, 5)]
    assert in_table(site, "name = 'old'") == [(0, 0), (0, 2), (1, 0), (1, 2)]
    verified = site.lake.tables.verify_topic("orders")
    assert verified.is_sound, verified
    assert [str(each.removed[0]) for each in verified.partitions] == ["1-2", "1-2"]


def test_no_row_that_was_acknowledged_before_a_delete_survives_it(site: TopicSite) -> None:
    site.append(1)
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set():
            site.append(3)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        with running(site):
            for _ in range(8):
                acknowledged = site.durable()
                # Not by what is durable when the delete looks, but by what was before it began.
                site.lake.tables.delete_data("orders", f"id < {acknowledged}")
                assert not in_table(site, f"id < {acknowledged}")
    finally:
        stop.set()
        producer.join()
    site.commit()
    assert in_table(site) == [(0, each) for each in range(acknowledged, site.durable())]


def test_dead_letters_that_are_only_in_the_log_are_changed_too(site: TopicSite) -> None:
    site.append(1)
    log = site.intakes[0].log
    log.append(log.stream(site.name), [[Rejected(b"x", "text/plain", "no row")] * 2])
    with running(site):
        change = site.lake.tables.delete_data("orders__dead_letters", "reason = 'no row'")
    assert change.deleted_rows == 2
    assert site.lake.tables.verify_topic("orders").is_sound


@pytest.mark.usefixtures("impatient")
def test_a_change_is_refused_where_nobody_brings_the_rows_in(
    site: TopicSite,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site.append(2)
    site.commit()
    site.append(1)
    tables = site.lake.tables
    with pytest.raises(
        Unavailable, match=r"would be left out: .* reached offset 2, and 3 "
    ) as found:
        tables.delete_data("orders", "id >= 1")
    assert "`calve up --only pipeline` runs it" in str(found.value.hint)
    assert "--no-flush (flush=False)" in str(found.value.hint)
    assert in_table(site) == [(0, 0), (0, 1)]
    where = ["--data", str(site.settings.data), "--where", "id >= 1"]
    refused = run_command(["calve", "table", "delete", "orders", *where], monkeypatch, capsys)
    assert refused.code == 6
    site.lake.pipeline.pause("orders")
    with running(site), pytest.raises(Unavailable) as paused:
        tables.update_data("orders", {"id": 7})
    assert "calve pipeline resume" in str(paused.value.hint)
    done = run_command(
        ["calve", "table", "delete", "orders", *where, "--no-flush"], monkeypatch, capsys
    )
    assert done.code == 0
    assert "1 row deleted" in done.err
    site.lake.pipeline.resume()
    site.commit()
    assert in_table(site) == [(0, 0), (0, 2)], "what was left out came as it was sent"
    assert tables.delete_data("orders", "id = 2").deleted_rows == 1, "nothing waits in the log"


@pytest.mark.usefixtures("impatient")
def test_a_branch_does_not_wait_for_rows_that_come_to_main(site: TopicSite) -> None:
    site.append(2)
    site.commit()
    site.lake.tables.create_branch("orders", "b")
    site.append(1)
    assert site.lake.tables.delete_data("orders", "id = 1", branch="b").deleted_rows == 1
    with pytest.raises(Unavailable):
        site.lake.tables.delete_data("orders", "id = 1", branch="main")


def test_where_state_or_log_are_elsewhere_a_change_says_that_it_cannot_know(
    site: TopicSite, tmp_path: Path
) -> None:
    site.append(2)
    site.commit()
    said: dict[str, Any] = {}
    for what, kind in (("state", InvalidRequest), ("wal", Unavailable)):
        with IcebergManager(elsewhere(site.settings, tmp_path, what)) as manager:
            with pytest.raises(kind, match="cannot be told") as found:
                manager.delete_data("orders", "id = 1")
            said[what] = str(found.value.hint)
    assert "state.dsn" in said["state"]
    assert "pipeline.logs" in said["wal"]
    assert all("--no-flush" in each for each in said.values())
    assert in_table(site) == [(0, 0), (0, 1)]
    with IcebergManager(elsewhere(site.settings, tmp_path, "state")) as manager:
        assert manager.delete_data("orders", "id = 1", flush=False).deleted_rows == 1


@pytest.mark.usefixtures("impatient")
def test_a_name_without_table_or_rows_is_as_it_was(site: TopicSite) -> None:
    with pytest.raises(NotFound):
        site.lake.tables.delete_data("nobody", "true")
    site.create(schema={"id": "long"})
    with pytest.raises(NotFound):
        site.lake.tables.delete_data("orders", "true")


@pytest.mark.usefixtures("spark_running")
def test_a_command_has_the_running_service_bring_rows_in(
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = make_settings(**PATIENT)
    with calve.open(settings) as lake, lake.serve(pipeline=True):
        lake.produce("orders", [{"id": 1}, {"id": 2}])
        lake.flush("orders")
        lake.produce("orders", [{"id": 2}, {"id": 3}])
        line = ["calve", "table", "delete", "orders", "--where", "id = 2"]
        done = run_command([*line, "--data", str(settings.data), "--json"], monkeypatch, capsys)
        assert done.code == 0, done.err
        assert done.json()["deleted_rows"] == 2
        lake.produce("orders", [{"id": 4}])
        lake.tables.update_data("orders", {"id": 5}, "id >= 3", engine="spark")
        found = lake.tables.query_table("orders", columns=["id"])
        assert sorted(row["id"] for row in found) == [1, 5, 5]
