"""The audit log: every administrative action, before and after; shared, rotated, never lost."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from calve.audit import Actor, Trail, actions, at_door, records
from calve.errors import CalveError, InvalidRequest, NotFound, Unavailable
from calve.ingest.dead_letters.box import DeadLetters
from calve.ingest.intake import Intake
from calve.lake import Lake
from calve.manager import IcebergManager
from calve.model import TableName
from calve.settings import MASK
from calve.subscriptions.register import Subscriptions
from calve.topics.control import PipelineControl
from calve.topics.topic import TopicSpec
from tests.conftest import MakeSettings

MIB = 1024 * 1024
# Methods that read, take rows in or let go of something, and are no administrator's.
OTHERS = {
    IcebergManager: {
        "list_tables", "describe_table", "insert_data", "query_table", "query_snapshot",
        "query_as_of", "sql", "list_snapshots", "get_current_snapshot", "plan_scan",
        "plan_rollback", "verify_topic", "list_branches", "list_tags", "close",
    },
    Intake: {
        "submit", "require_fits", "repeated", "offsets", "offsets_of", "log_ends", "read", "flush", "sync",
        "request_flush", "topic", "stats", "trim", "close",
    },
    PipelineControl: {"status"},
    Subscriptions: {"open", "list", "describe"},
    DeadLetters: {"of", "list", "list_some", "show", "original"},
    Lake: {
        "writer", "sql", "produce", "flush", "read", "subscribe", "follow", "dead_letters",
        "serve", "spark", "close",
    },
}  # fmt: skip
RECORDED = {
    IcebergManager: actions.TABLES,
    Intake: actions.TOPICS,
    PipelineControl: actions.PIPELINE,
    Subscriptions: actions.SUBSCRIPTIONS,
    DeadLetters: actions.DEAD_LETTERS,
    Lake: actions.FOLLOWERS,
}


def trail_in(directory: Path, bytes_max: int = MIB) -> Trail:
    return Trail(directory, bytes_max=bytes_max)


def seen(directory: Path) -> list[tuple[str, str, str, str | None]]:
    return [(each.step, each.action, each.subject, each.result) for each in records(directory)]


def audit_of(lake: Lake) -> list[tuple[str, str, str, str | None]]:
    return seen(lake.settings.data / "_calve" / "audit")


@pytest.mark.parametrize("kind", RECORDED)
def test_every_public_method_is_either_recorded_or_known_to_be_no_administrators(
    kind: type,
) -> None:
    public = {
        name
        for name, value in vars(kind).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod))
    }
    assert public == set(RECORDED[kind]) | OTHERS[kind]
    assert not set(RECORDED[kind]) & OTHERS[kind]
    for name in RECORDED[kind]:
        assert inspect.unwrap(getattr(kind, name)) is not getattr(kind, name)


def test_an_action_is_written_down_before_it_is_done_and_when_it_has_ended(tmp_path: Path) -> None:
    trail = trail_in(tmp_path / "audit")
    with trail.recording("topic.delete", "orders", {"force": True}):
        (begun,) = records(tmp_path / "audit")
        assert (begun.step, begun.result) == ("begin", None)
    begun, ended = records(tmp_path / "audit")
    assert (begun.id, begun.who, begun.details) == (ended.id, ended.who, {"force": True})
    assert (ended.step, ended.result, ended.error) == ("end", "done", None)
    assert (ended.who.kind, ended.who.pid) == ("user", os.getpid())
    assert ended.who.name
    assert ended.who.program
    assert ended.time.endswith("Z")
    assert begun.time <= ended.time


def test_an_action_that_fails_says_why(tmp_path: Path) -> None:
    trail = trail_in(tmp_path)
    with pytest.raises(NotFound), trail.recording("topic.delete", "orders"):
        raise NotFound("there is no topic orders")
    assert [(each.result, each.error) for each in records(tmp_path)] == [
        (None, None),
        ("failed", "NotFound: there is no topic orders"),
    ]


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "lake" / "_calve" / "audit"
    with trail_in(directory).recording("topic.delete", "orders"):
        pass
    for made in (directory, directory.parent, directory.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700, made
    assert stat.S_IMODE((directory / "audit.jsonl").stat().st_mode) == 0o600


def _act(directory: str, number: int) -> None:
    trail = trail_in(Path(directory), bytes_max=20_000)
    for each in range(50):
        with trail.recording("topic.alter", f"p{number}-{each}", {"filler": "x" * 100}):
            pass


def test_several_processes_write_whole_lines_into_files_that_are_rotated(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    workers = [spawn.Process(target=_act, args=(str(tmp_path), number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    found = list(records(tmp_path))
    lines = [line for path in tmp_path.iterdir() for line in path.read_bytes().splitlines()]
    assert len(found) == len(lines) == 4 * 50 * 2
    wanted = {f"p{number}-{each}" for number in range(4) for each in range(50)}
    assert {each.subject for each in found if each.step == "end"} == wanted
    full = list(tmp_path.glob("audit-*.jsonl"))
    assert len(full) > 3
    assert all(20_000 <= path.stat().st_size < 21_000 for path in full)


def _die_inside(directory: str) -> None:
    with trail_in(Path(directory)).recording("table.drop", "users"):
        os._exit(9)


def test_a_crash_leaves_the_begin_and_half_a_line_is_passed_over(tmp_path: Path) -> None:
    worker = multiprocessing.get_context("fork").Process(target=_die_inside, args=(str(tmp_path),))
    worker.start()
    worker.join(60)
    assert seen(tmp_path) == [("begin", "table.drop", "users", None)]
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"time": "2026')
    with trail_in(tmp_path).recording("table.create", "users"):
        pass
    assert [each[:2] for each in seen(tmp_path)] == [
        ("begin", "table.drop"),
        ("begin", "table.create"),
        ("end", "table.create"),
    ]


def test_without_a_record_nothing_is_done(lake: Lake) -> None:
    """Whoever fills or breaks the place of the records must not act unseen."""
    place = lake.settings.data / "_calve" / "audit"
    place.write_text("in the way")
    for act in (
        lambda: lake.tables.create_table("users", {"id": "long"}),
        lambda: lake.intake.create_topic(TableName.parse("orders"), TopicSpec()),
        lambda: lake.produce("events", [{"id": 1}]),
        lake.pipeline.pause,
    ):
        with pytest.raises(Unavailable, match=r"audit log .* cannot be written"):
            act()
    assert lake.tables.list_tables() == []
    assert lake.intake.topics.list() == []
    place.unlink()
    assert lake.produce("events", [{"id": 1}]).end == 1


def test_an_action_whose_end_cannot_be_written_is_done_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "audit"
    with trail_in(directory).recording("table.drop", "users"):
        directory.rename(tmp_path / "away")
        directory.write_text("in the way")
    assert "not recorded" in caplog.text
    assert seen(tmp_path / "away") == [("begin", "table.drop", "users", None)]


def test_what_the_host_does_is_recorded_once_each(lake: Lake) -> None:
    lake.tables.create_table("users", {"id": "long"})
    lake.tables.add_column("users", "email", "string")
    lake.tables.drop_table("users", dry_run=True)
    lake.tables.drop_table("users")
    lake.produce("events", [{"id": 1}])
    lake.produce("events", [{"id": 2}])
    lake.pipeline.pause()
    with lake.subscribe("events", "billing", follow=False):
        pass
    lake.subscriptions.seek("events", "billing", "latest")
    lake.subscriptions.delete("events", "billing")
    lake.intake.delete_topic(TableName.parse("events"))
    with pytest.raises(CalveError):
        lake.dead_letters("events").discard(all=True)
    ended = [
        (action, subject, result)
        for step, action, subject, result in audit_of(lake)
        if step == "end"
    ]
    assert ended == [
        ("table.create", "users", "done"),
        ("table.add_column", "users", "done"),
        ("table.drop", "users", "done"),
        ("topic.create", "events", "done"),
        ("pipeline.pause", "*", "done"),
        ("subscription.seek", "events", "done"),
        ("subscription.delete", "events", "done"),
        ("topic.delete", "events", "done"),
        ("dead_letter.discard", "events", "failed"),
    ]  # fmt: skip


def test_what_no_encoding_can_write_is_recorded_as_it_can_be(lake: Lake) -> None:
    with pytest.raises(InvalidRequest):
        lake.tables.create_table("users\udcff", {"id": "long"}, properties={"a\udcff": "b\udcff"})
    begun, ended = list(records(lake.settings.data / "_calve" / "audit"))[-2:]
    assert (begun.subject, ended.result) == ("users\\udcff", "failed")
    assert begun.details["properties"] == {"a\\udcff": "b\\udcff"}


def test_details_hold_no_secret_and_no_data(lake: Lake) -> None:
    lake.tables.create_table(
        "users", {"id": "long"}, properties={"my.password": "canary-1", "at": "http://u:canary-2@h"}
    )
    lake.tables.upsert_data("users", [{"id": 7_777_777}], ["id"])
    text = (lake.settings.data / "_calve" / "audit" / "audit.jsonl").read_text()
    assert "canary" not in text
    assert "7777777" not in text
    assert json.loads(text.splitlines()[0])["details"]["properties"]["my.password"] == MASK


def test_a_lake_in_memory_keeps_no_record(make_settings: MakeSettings) -> None:
    settings = make_settings(catalog__type="memory", storage__dsn="memory://")
    with Lake(settings) as lake:
        lake.tables.create_table("users", {"id": "long"})
    assert not (settings.data / "_calve" / "audit").exists()


def test_what_is_done_at_a_door_is_done_by_whoever_is_there(tmp_path: Path) -> None:
    trail = trail_in(tmp_path)
    actor = Actor(kind="token", name="ci", address="10.0.0.9", door="http", token="ab12")
    with at_door(lambda: actor) as door:
        with trail.recording("topic.delete", "orders"):
            pass
        assert door.is_recorded
    with at_door(lambda: actor) as door:
        trail.refused("topic.delete", "orders", InvalidRequest("not yours"))
        assert not door.is_recorded
    begun, ended, refused = records(tmp_path)
    assert begun.who == ended.who == refused.who == actor
    assert (refused.step, refused.result) == ("refused", "refused")
    assert refused.error == "InvalidRequest: not yours"
