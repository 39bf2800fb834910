"""A table that went back with a replay, and then from one log to the next: offsets have had two rows.

The snapshots of before have the earlier ones. No rollback brings them back in the place of rows of the log of now.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from calve.errors import Conflict, Corruption
from calve.ingest import Intake
from calve.maintenance.verify import verify_topic
from calve.manager import IcebergManager
from calve.model import TableName
from calve.tables import beginnings
from calve.tables.commit import TableCommit
from calve.tables.positions import committed_position
from calve.tables.staging import Edit
from calve.topics import TopicSpec
from tests.commands import run_command
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, let_side_lane_end, site

ORDERS = TableName.parse("orders")
BOUND = TopicSpec(bind_table=True)
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
BEGUN = "calve.begun.0"
EITHER = pytest.mark.parametrize("replay", [False, True], ids=["", "with --replay"])


class Lives:
    """A table that has had three rows, went back to the first, and is fed by another log since."""

    def __init__(self, made: Site) -> None:
        self.made = made
        self.settings = made.settings
        self.earlier: list[int] = []

    def fill(self, *ids: int) -> list[int]:
        """Rows, each with a snapshot of its own; all snapshots."""
        for number in ids:
            self.made.send("orders", [{"id": number}])
            self.drain()
        return [each.snapshot_id for each in self.table.metadata.snapshots]

    def replay_from_the_first(self) -> None:
        self.earlier = self.fill(1, 2, 3)
        self.roll_back(self.earlier[0], replay=True)

    def roll_back(self, snapshot_id: int, **how: Any) -> None:
        log = self.made.intake.log.directory if how.get("replay") else None
        with IcebergManager(self.settings) as manager:
            manager.rollback("orders", snapshot_id, force=True, log=log, **how)

    def refusal(self, snapshot_id: int, *, replay: bool = False) -> Conflict:
        """With which a rollback and its plan are refused, without a change of the table."""
        before = self.table.metadata_location
        log = self.made.intake.log.directory if replay else None
        how: dict[str, Any] = {"force": True, "replay": replay, "log": log}
        with IcebergManager(self.settings) as manager:
            with pytest.raises(Conflict, match="in another log than that of now") as planned:
                manager.plan_rollback("orders", snapshot_id, **how)
            with pytest.raises(Conflict) as refused:
                manager.rollback("orders", snapshot_id, **how)
        assert planned.value.message == refused.value.message
        assert self.table.metadata_location == before
        return refused.value

    def bind_again(self) -> None:
        self.made.intake.delete_topic(ORDERS)
        self.made.intake.create_topic(ORDERS, BOUND)

    def drain(self) -> None:
        assert self.made.pipeline(settings=self.settings).drain(10)

    def require(self, *ids: int) -> None:
        self.drain()
        let_side_lane_end()
        assert [row["id"] for row in self.made.rows("orders")] == list(ids)
        found = verify_topic(
            self.made.catalog, ORDERS, own_log=self.settings.wal.path, settings=self.settings
        )
        assert found.is_sound, found
        assert not found.partitions[0].returned

    @property
    def table(self) -> Table:
        return self.made.table("orders")


@pytest.fixture
def lives(make_settings: MakeSettings) -> Iterator[Lives]:
    with site(make_settings(**AT_ONCE)) as made:
        made.create("orders", schema={"id": "long"})
        lives = Lives(made)
        lives.replay_from_the_first()
        yield lives


@pytest.fixture
def bound_again(lives: Lives) -> Lives:
    lives.bind_again()
    return lives


@EITHER
@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("way", ["bound again", "new log"])
def test_a_rollback_does_not_pass_over_rows_of_the_log_of_now(
    lives: Lives,
    make_settings: MakeSettings,
    tmp_path: Path,
    way: str,
    is_committed: bool,
    replay: bool,
) -> None:
    if way == "bound again":
        lives.bind_again()
    else:
        lives.made.intake.close()
        lives.settings = make_settings(**AT_ONCE, wal__path=str(tmp_path / "other"))
        lives.made.intake = Intake(lives.settings)
        assert lives.made.intake.adopt_new_log(ORDERS) == 1
    try:
        if is_committed:
            lives.fill(100)
        refused = lives.refusal(lives.earlier[2], replay=replay)
        assert "had come to offset 3 of partition 0" in refused.message
        assert "which began at offset 1" in refused.message
        if not is_committed:
            lives.fill(100)
        lives.fill(101, 102, 103)
        lives.require(1, 100, 101, 102, 103)
    finally:
        lives.made.intake.close()


def test_what_the_refusal_says_brings_the_rows_back(
    bound_again: Lives, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bound_again.fill(100)
    hint = str(bound_again.refusal(bound_again.earlier[2]).hint)
    bound_again.made.intake.close()
    monkeypatch.chdir(bound_again.settings.data)
    for command in (each for each in hint.split("`") if each.startswith("calve ")):
        place = "--lake" if "produce" in command else "--data"
        words = [*shlex.split(command), place, str(bound_again.settings.data)]
        ran = run_command(words, monkeypatch, capsys)
        assert ran.code == 0, ran.err
    bound_again.drain()
    assert sorted(row["id"] for row in bound_again.made.rows("orders")) == [1, 2, 3, 100]
    assert bound_again.made.offsets("orders") == [0, 1, 2, 3]


def test_the_table_remembers_it_when_the_snapshot_that_tells_has_expired(
    bound_again: Lives,
) -> None:
    with IcebergManager(bound_again.settings) as manager:
        for name, kept in zip(("first", "third"), bound_again.earlier[::2], strict=True):
            manager.create_tag("orders", name, snapshot_id=kept)
        bound_again.fill(100)
        manager.expire_snapshots("orders", 0)
    table = bound_again.table
    assert len(table.metadata.snapshots) == 3
    assert not any("handover" in str(each.summary) for each in table.metadata.snapshots)
    bound_again.refusal(bound_again.earlier[2])
    bound_again.roll_back(bound_again.earlier[0])
    bound_again.fill(101)
    bound_again.require(1, 101)


def test_a_snapshot_of_the_log_of_now_is_known_for_it_when_those_that_tell_have_expired(
    bound_again: Lives,
) -> None:
    bound_again.fill(100)
    kept, _ = (commit_to_branch(bound_again.table, "main") for _ in range(2))
    with IcebergManager(bound_again.settings) as manager:
        manager.create_tag("orders", "kept", snapshot_id=kept)
        manager.expire_snapshots("orders", 0)
    assert len(bound_again.table.metadata.snapshots) == 2
    bound_again.roll_back(kept)
    bound_again.fill(101)
    bound_again.require(1, 100, 101)


def test_a_snapshot_that_had_not_come_beyond_is_gone_back_to(bound_again: Lives) -> None:
    """And those on top of it are the log's of now, also where they came further."""
    bound_again.fill(100)
    bound_again.roll_back(bound_again.earlier[0])
    kept = bound_again.fill(101)[-1]
    bound_again.fill(102)
    bound_again.roll_back(kept)
    bound_again.fill(103)
    bound_again.require(1, 101, 103)


@EITHER
def test_a_replay_in_the_log_of_now_is_taken_back(bound_again: Lives, *, replay: bool) -> None:
    first = bound_again.fill(100)[-1]
    newest = bound_again.fill(101, 102)[-1]
    bound_again.roll_back(first, replay=True)
    bound_again.roll_back(newest, replay=replay)
    bound_again.fill(103)
    bound_again.require(1, 100, 101, 102, 103)


def test_only_the_partition_that_another_log_has_is_refused(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    second = str(tmp_path / "second")
    lake = make_settings(**AT_ONCE, pipeline__logs=second)
    with (
        site(lake) as made,
        Intake(make_settings(**AT_ONCE, wal__path=second, ingest__partition=1)) as other,
    ):
        made.create("orders", schema={"id": "long"})
        lives = Lives(made)

        def send_to_second(number: int) -> int:
            other.submit(ORDERS, pa.record_batch({"id": [number]})).wait()
            lives.drain()
            return lives.fill()[-1]

        lives.fill(1)
        kept, further = send_to_second(11), send_to_second(12)
        newest = lives.fill(2)[-1]
        lives.roll_back(kept, replay=True)
        made.intake.close()
        third = str(tmp_path / "third")
        lives.settings = make_settings(**AT_ONCE, wal__path=third, pipeline__logs=second)
        with Intake(lives.settings) as made.intake:
            assert made.intake.adopt_new_log(ORDERS) == 1
            assert "of partition 0" in lives.refusal(newest).message
            lives.roll_back(further)
            send_to_second(13)
            lives.fill(100)
            assert sorted(row["id"] for row in made.rows("orders")) == [1, 11, 12, 13, 100]
            assert BEGUN in lives.table.properties
            assert "calve.begun.1" not in lives.table.properties


def commit_to_branch(table: Table, name: str) -> int:
    return TableCommit(table, branch=name).attempt(Edit()).snapshot_id


def test_a_branch_of_earlier_rows_is_refused_however_late_it_was_written_to(lives: Lives) -> None:
    with IcebergManager(lives.settings) as manager:
        manager.create_branch("orders", "kept", snapshot_id=lives.earlier[2])
        lives.bind_again()
        lives.fill(100)
        late = commit_to_branch(lives.table, "kept")
        lives.refusal(late)
        with pytest.raises(Conflict, match="main has moved on"):
            manager.publish_branch("orders", "kept")
        # Another tool asks nobody; whoever accepts what it did is told.
        lives.table.manage_snapshots().set_current_snapshot(snapshot_id=late).commit()
        lives.refusal(late)


def test_a_branch_that_is_written_to_meanwhile_does_not_shift_where_the_log_began(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    with IcebergManager(lives.settings) as manager:
        manager.create_branch("orders", "kept", snapshot_id=lives.earlier[2])
    attempt, others = TableCommit.attempt, [1, 2]

    def late(self: TableCommit, edit: Edit) -> Any:
        if others and "handover" in str(edit.summary):
            others.pop()
            attempt(TableCommit(lives.table, branch="kept"), Edit())
        return attempt(self, edit)

    monkeypatch.setattr(TableCommit, "attempt", late)
    lives.bind_again()
    assert not others
    given = lives.table.current_snapshot()
    assert given is not None
    assert lives.table.properties[BEGUN] == f"1@{given.sequence_number}"
    lives.refusal(lives.table.refs()["kept"].snapshot_id)


def test_each_time_that_a_table_changed_hands_counts(bound_again: Lives) -> None:
    """Rows of the second log may come back, up to where the third began; those of the first not."""
    second = bound_again.fill(100, 101, 102, 103)
    bound_again.roll_back(second[-2], replay=True)
    bound_again.bind_again()
    assert [each.split("@")[0] for each in bound_again.table.properties[BEGUN].split(",")] == [
        "1",
        "4",
    ]
    bound_again.refusal(bound_again.earlier[2])
    bound_again.refusal(second[-1])
    bound_again.roll_back(second[-3])
    bound_again.roll_back(second[-2])
    bound_again.fill(104)
    bound_again.require(1, 100, 101, 102, 104)


def test_a_log_that_takes_over_with_its_first_rows_is_told_of_too(lives: Lives) -> None:
    """A table that was set back by another tool does not change hands before somebody accepts it."""
    table = lives.table
    table.manage_snapshots().set_current_snapshot(snapshot_id=lives.earlier[0]).commit()
    lives.bind_again()
    assert BEGUN not in lives.table.properties
    lives.roll_back(lives.earlier[0])
    lives.fill(100)
    assert lives.table.properties[BEGUN].startswith("1@")
    lives.refusal(lives.earlier[2])
    lives.require(1, 100)


def test_a_table_that_another_tool_has_set_back_goes_to_a_snapshot_of_the_log_of_now(
    bound_again: Lives,
) -> None:
    newest = bound_again.fill(100)[-1]
    third = bound_again.earlier[2]
    bound_again.table.manage_snapshots().set_current_snapshot(snapshot_id=third).commit()
    bound_again.refusal(third)
    bound_again.roll_back(newest)
    bound_again.fill(101)
    bound_again.require(1, 100, 101)


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_catalog_restored_from_before_the_table_changed_hands_does_not_forget_it(
    lives: Lives, *, is_accepted: bool
) -> None:
    copied = lives.table.metadata_location
    lives.bind_again()
    lives.fill(100)
    name = lives.table.name()
    lives.made.catalog.iceberg.drop_table(name)
    lives.made.catalog.iceberg.register_table(name, copied)
    if is_accepted:
        lives.roll_back(lives.table.metadata.current_snapshot_id or 0, replay=True)
    lives.refusal(lives.earlier[2])
    lives.roll_back(lives.table.metadata.current_snapshot_id or 0, replay=True)
    lives.fill(101)
    lives.require(1, 100, 101)


def test_a_table_of_format_1_goes_by_its_times(make_settings: MakeSettings) -> None:
    with site(make_settings(**AT_ONCE)) as made:
        with IcebergManager(made.settings) as manager:
            manager.create_table("orders", {"id": "long"}, properties={"format-version": "1"})
        made.intake.create_topic(ORDERS, BOUND)
        lives = Lives(made)
        lives.fill(1)
        first = lives.table.metadata.current_snapshot_id
        assert first is not None
        third = lives.fill(2, 3)[-1]
        lives.roll_back(first, replay=True)
        lives.bind_again()
        assert lives.table.format_version == 1
        lives.refusal(third)
        later = lives.fill(100)[-1]
        lives.fill(101)
        lives.refusal(third)
        lives.roll_back(later)
        lives.roll_back(first)
        lives.fill(102)
        lives.require(1, 102)


def test_what_is_remembered_is_bounded_and_refuses_no_less(
    bound_again: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginnings, "_KEPT_MAX", 2)
    second = bound_again.fill(100)[-1]
    bound_again.bind_again()
    bound_again.fill(200)
    bound_again.bind_again()
    bound_again.fill(300)
    assert [each.split("@")[0] for each in bound_again.table.properties[BEGUN].split(",")] == [
        "1",
        "3",
    ]
    bound_again.refusal(bound_again.earlier[2])
    bound_again.refusal(second)
    bound_again.require(1, 100, 200, 300)


def test_what_cannot_be_read_is_told(bound_again: Lives) -> None:
    with bound_again.table.transaction() as edited:
        edited.set_properties({BEGUN: "x"})
    with pytest.raises(Corruption, match=r"calve\.begun\.0.* is unreadable: x"):
        bound_again.roll_back(bound_again.earlier[2])


def test_a_table_that_one_log_has_fed_alone_remembers_nothing(make_settings: MakeSettings) -> None:
    with site(make_settings(**AT_ONCE)) as made:
        made.create("orders", schema={"id": "long"})
        lives = Lives(made)
        lives.replay_from_the_first()
        lives.require(1, 2, 3)
        assert BEGUN not in lives.table.properties
        assert committed_position(lives.table, 0) is not None
