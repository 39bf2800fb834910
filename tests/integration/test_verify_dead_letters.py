"""The audit over both tables of a topic: each offset is in one of them, once, or removed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.table import Table

import calve
from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.maintenance.verification import PartitionReport, Verification
from calve.model import TableName
from calve.tables.commit import TableCommit
from calve.tables.data_files import write_data_files
from calve.tables.dead_letters import ensure_dead_letter_table, named_dead_letters
from calve.tables.expiry import expire_snapshots
from calve.tables.staging import Edit
from tests.commands import run_command
from tests.fakes.dead_letters import Letter, commit_main, commit_pending, letter_rows, set_aside
from tests.fakes.defects import forget
from tests.fakes.topic_table import data_files, make_topic_table, small_chunks, topic_rows

EVENTS = TableName.parse("events")
BAD = Letter()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with calve.open(tmp_path / "lake") as lake:
        make_topic_table(lake.catalog, "events")
        yield lake


def verified(lake: Lake) -> Verification:
    return lake.tables.verify_topic("events")


def only(found: Verification) -> PartitionReport:
    (report,) = found.partitions
    return report


def ranges(found: Verification, what: str) -> str:
    return ",".join(map(str, getattr(only(found), what)))


def test_an_offset_is_in_one_table_or_the_other(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {1: BAD, 4: BAD}, rows=[0, 2, 3])
    set_aside(lake.catalog, EVENTS, {}, rows=[5])
    found = verified(lake)
    assert found.is_sound
    assert (found.rows, found.dead_letters, found.pending_dead_letters) == (4, 2, 0)
    assert (only(found).rows, only(found).dead_letters, only(found).committed) == (4, 2, 6)


def test_an_offset_in_neither_table_is_missing(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {1: BAD}, rows=[0, 3], end=5)
    found = verified(lake)
    assert not found.is_sound
    assert ranges(found, "missing") == "2-3,4-5"


def test_an_offset_in_both_tables_is_doubled(lake: Lake) -> None:
    with small_chunks():
        set_aside(lake.catalog, EVENTS, {200: BAD}, rows=list(range(200)))
        dead = ensure_dead_letter_table(lake.catalog, EVENTS)
        rows = letter_rows(dead, EVENTS, {7: BAD, 199: BAD})
        files = write_data_files(dead, rows.to_batches(), operation_id="x")
        TableCommit(dead).append(Edit(added=files))
        found = verified(lake)
    assert not found.is_sound
    assert ranges(found, "doubled") == "7-8,199-200"


def test_a_dead_letter_that_is_there_twice_is_doubled(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: BAD}, rows=[1])
    dead = ensure_dead_letter_table(lake.catalog, EVENTS)
    rows = letter_rows(dead, EVENTS, {0: BAD})
    TableCommit(dead).append(
        Edit(added=write_data_files(dead, rows.to_batches(), operation_id="x"))
    )
    assert ranges(verified(lake), "doubled") == "0-1"


def test_dead_letters_that_are_not_committed_yet_count_as_set_aside(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: BAD}, rows=[1])
    commit_main(lake.catalog, EVENTS, [2], {3: BAD, 4: BAD})
    found = verified(lake)
    assert found.is_sound
    assert (found.dead_letters, found.pending_dead_letters) == (3, 2)
    commit_pending(lake.catalog, EVENTS)
    assert verified(lake).pending_dead_letters == 0
    assert verified(lake).dead_letters == 3


def test_pending_files_are_needed_and_no_orphans(lake: Lake) -> None:
    commit_main(lake.catalog, EVENTS, [0], {1: BAD})
    removed = lake.tables.remove_orphans("events__dead_letters", older_than_days=0)
    assert removed.files == ()
    assert lake.tables.verify_topic("events", orphans=True).orphans == ()
    commit_pending(lake.catalog, EVENTS)
    assert lake.tables.remove_orphans("events__dead_letters", older_than_days=0).files == ()
    assert verified(lake).is_sound


def test_a_pending_file_that_is_gone_is_a_defect(lake: Lake) -> None:
    commit_main(lake.catalog, EVENTS, [0], {1: BAD})
    pending = named_dead_letters(lake.catalog.load_table("events").properties, 0)
    assert pending is not None
    for file in pending.files:
        Path(file.removeprefix("file://")).unlink()
    found = verified(lake)
    assert not found.is_sound
    assert ranges(found, "missing") == "1-2"
    assert "cannot be read" in found.problems[0]


def test_a_dropped_table_of_dead_letters_is_a_defect(lake: Lake) -> None:
    commit_main(lake.catalog, EVENTS, [0], {1: BAD})
    lake.catalog.drop_table("events__dead_letters")
    found = verified(lake)
    assert not found.is_sound
    assert "somebody has dropped it" in found.problems[0]


def test_dead_letters_that_vanished_are_missing(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: BAD}, rows=[1])
    set_aside(lake.catalog, EVENTS, {2: BAD}, rows=[3])
    dead = lake.catalog.load_table(EVENTS.dead_letters)
    lost = next(task.file for task in dead.scan("_calve_offset = 2").plan_files())
    forget(dead, [lost.file_path])
    found = verified(lake)
    assert ranges(found, "missing") == "2-3"


def test_what_was_removed_from_the_dead_letters_by_hand_is_no_defect(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {n: Letter(reason=f"r{n % 2}") for n in range(1, 9)}, rows=[0])
    lake.tables.delete_data("events__dead_letters", "reason = 'r1'", flush=False)
    found = verified(lake)
    assert found.is_sound
    assert (found.dead_letters, ranges(found, "removed")) == (4, "1-2,3-4,5-6,7-8")
    lake.tables.update_data("events__dead_letters", {"reason": "looked at"}, flush=False)
    assert verified(lake).is_sound
    assert verified(lake).dead_letters == 4


def test_removals_of_dead_letters_outlive_their_snapshots(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {1: BAD, 2: BAD}, rows=[0])
    lake.dead_letters("events").discard(offsets="1")
    table = lake.catalog.load_table(EVENTS.dead_letters)
    expire_snapshots(table, datetime.now(UTC) + timedelta(days=1))
    assert verified(lake).is_sound


def test_a_rollback_of_the_dead_letters_is_recorded_and_cannot_replay(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: BAD}, rows=[1])
    before = lake.tables.get_current_snapshot("events__dead_letters")
    assert before is not None
    set_aside(lake.catalog, EVENTS, {2: BAD}, rows=[3])
    with pytest.raises(InvalidRequest, match="dead letters"):
        lake.tables.rollback("events__dead_letters", snapshot_id=before.id, replay=True)
    lake.tables.rollback("events__dead_letters", snapshot_id=before.id)
    found = verified(lake)
    assert found.is_sound
    assert (found.dead_letters, ranges(found, "removed")) == (1, "2-3")


def test_dead_letters_of_two_partitions_are_told_apart(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {1: BAD}, rows=[0])
    set_aside(lake.catalog, EVENTS, {0: BAD}, rows=[1], partition=1)
    found = verified(lake)
    assert found.is_sound
    assert [(each.rows, each.dead_letters) for each in found.partitions] == [(1, 1), (1, 1)]


def test_dead_letters_committed_after_the_audit_began_are_left_out(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: BAD}, rows=[1])
    old = lake.catalog.load_table("events")
    set_aside(lake.catalog, EVENTS, {2: BAD}, rows=[3])
    load = lake.catalog.load_table

    def outdated(name: TableName | str) -> Table:
        return old if str(name) == "events" else load(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake.catalog, "load_table", outdated)
        found = verified(lake)
    assert found.is_sound
    assert found.dead_letters == 1


def test_dead_letters_beyond_what_was_committed_are_a_defect(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: BAD}, rows=[1])
    dead = ensure_dead_letter_table(lake.catalog, EVENTS)
    rows = letter_rows(dead, EVENTS, {9: BAD})
    TableCommit(dead).append(
        Edit(added=write_data_files(dead, rows.to_batches(), operation_id="x"))
    )
    assert ranges(verified(lake), "beyond") == "9-10"


def test_the_table_of_dead_letters_is_verified_with_its_topic(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: BAD}, rows=[1])
    with pytest.raises(InvalidRequest, match="dead letters"):
        lake.tables.verify_topic("events__dead_letters")


def test_rows_of_the_main_table_that_vanished_are_missing_beside_dead_letters(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: BAD}, rows=[1])
    table = lake.catalog.load_table("events")
    TableCommit(table).append(Edit(added=data_files(table, topic_rows([0]))))
    assert ranges(verified(lake), "doubled") == "0-1"


def test_the_command_says_how_many_dead_letters_there_are(
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_aside(lake.catalog, EVENTS, {0: BAD, 1: BAD}, rows=[2])
    commit_main(lake.catalog, EVENTS, [3], {4: BAD})
    words = ["calve", "topic", "verify", "events", "--data", str(tmp_path / "lake")]
    done = run_command(words, monkeypatch, capsys)
    assert done.code == 0
    assert "DEAD LETTERS" in done.out
    assert "2 rows and 3 dead letters" in done.err
    assert "not in their table yet: 1 dead letter" in done.err
