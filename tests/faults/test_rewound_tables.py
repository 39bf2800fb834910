"""A table that was set back, edited or exchanged takes no more ranges, and the error says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.table import Table

from calve.changes import insert_rows
from calve.errors import CalveError, Conflict, Corruption, NotFound
from calve.settings import load_settings
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.expiry import expire_snapshots
from calve.tables.positions import Position, position_property
from calve.tables.references import create_tag
from calve.tables.snapshots import rollback
from calve.tables.staging import Edit
from tests.fakes import feed as feeding
from tests.fakes.defects import begin_anew
from tests.fakes.feed import LOG, feed, make_table, parcel, position

SNAPSHOTS = 3


def opened(data: Path) -> LakeCatalog:
    return LakeCatalog(load_settings(flags={"data": str(data)}, environ={}).settings)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A lake whose table has the offsets up to 30, from three commits."""
    with opened(tmp_path / "lake") as catalog:
        table = make_table(catalog)
        for start in range(0, 10 * SNAPSHOTS, 10):
            table = feed(table, start, start + 10).table
    return tmp_path / "lake"


def edit_properties(table: Table, **properties: str) -> None:
    named = {f"calve.committed.{name.lstrip('p')}": value for name, value in properties.items()}
    table.transaction().set_properties(named).commit_transaction()


def edited(table: Table, **changes: object) -> str:
    """The position with other values, as a hand would write it."""
    now = position(table)
    values = {"log": now.log, "offset": now.offset, "checksum": now.checksum}
    values |= {"snapshot_id": now.snapshot_id} | changes
    return position_property(0, Position(**values))["calve.committed.0"]  # type: ignore[arg-type]


def refusal(table: Table, start: int, end: int, last_seen: Position | None = None) -> CalveError:
    """The error; the table and the range's files are as they were."""
    before = table.catalog.load_table(table.name()).metadata_location
    sent = parcel(table, feeding.log_range(start, end))
    with pytest.raises((Corruption, Conflict, NotFound)) as refused:
        sent.send(table, last_seen=last_seen)
    assert table.catalog.load_table(table.name()).metadata_location == before
    assert all(path.exists() for path in sent.paths())
    assert refused.value.hint
    return refused.value


def test_a_catalog_restored_from_an_older_copy(data: Path, tmp_path: Path) -> None:
    database = data / "_calve" / "catalog.db"
    with opened(data) as catalog:
        catalog.load_table("t")
    copy = tmp_path / "copy"
    shutil.copytree(database.parent, copy)
    with opened(data) as catalog:
        last_seen = feed(catalog.load_table("t"), 30, 40).position
    shutil.rmtree(database.parent)
    shutil.copytree(copy, database.parent)
    with opened(data) as catalog:
        table = catalog.load_table("t")
        assert position(table).offset == 30
        # Who goes on from where he was finds a gap; who remembers knows why.
        assert "does not follow 30" in refusal(table, 40, 50).message
        error = refusal(table, 30, 40, last_seen=last_seen)
        assert isinstance(error, Corruption)
        assert "has 30 as committed offset, and had 40 before" in error.message
        assert "--replay" in str(error.hint)


def test_a_table_rolled_back_by_somebody_else(data: Path) -> None:
    with opened(data) as catalog:
        table = catalog.load_table("t")
        rollback(table, table.metadata.snapshots[1].snapshot_id)
        error = refusal(catalog.load_table("t"), 30, 40)
        assert isinstance(error, Corruption)
        assert "brought it to 20" in error.message
        # Also when something was written on top, and when what was rolled back has expired.
        insert_rows(catalog, "t", [{"value": "by hand"}])
        assert isinstance(refusal(catalog.load_table("t"), 30, 40), Corruption)
        lost = position(catalog.load_table("t")).snapshot_id
        catalog.load_table("t").maintenance.expire_snapshots().by_id(lost).commit()
        assert isinstance(refusal(catalog.load_table("t"), 30, 40), Corruption)
        # What is there already is still found to be; nothing is added or deleted for it.
        assert isinstance(refusal(catalog.load_table("t"), 0, 10), Corruption)


def test_a_table_rolled_back_to_before_its_first_range(tmp_path: Path) -> None:
    with opened(tmp_path / "lake") as catalog:
        make_table(catalog)
        insert_rows(catalog, "t", [{"value": "by hand"}])
        first = catalog.load_table("t").metadata.snapshots[0].snapshot_id
        feed(catalog.load_table("t"), 0, 10)
        rollback(catalog.load_table("t"), first)
        error = refusal(catalog.load_table("t"), 10, 20)
        assert "does not lead to its newest one" in error.message


@pytest.mark.parametrize("offset", [0, 10, 29, 31, 1000])
def test_an_offset_edited_by_hand(data: Path, offset: int) -> None:
    with opened(data) as catalog:
        table = catalog.load_table("t")
        edit_properties(table, p0=edited(table, offset=offset))
        error = refusal(catalog.load_table("t"), offset, offset + 10)
        assert isinstance(error, Corruption)
        assert "brought it to 30" in error.message


def test_a_property_set_back_to_an_earlier_value(data: Path) -> None:
    with opened(data) as catalog:
        table = catalog.load_table("t")
        second = table.metadata.snapshots[1].snapshot_id
        earlier = Position(LOG, 20, feeding.checksum(20), second)
        edit_properties(table, p0=position_property(0, earlier)["calve.committed.0"])
        assert isinstance(refusal(catalog.load_table("t"), 20, 30), Corruption)


def test_a_property_removed_by_hand(data: Path) -> None:
    with opened(data) as catalog:
        table = catalog.load_table("t")
        table.transaction().remove_properties("calve.committed.0").commit_transaction()
        error = refusal(catalog.load_table("t"), 0, 10)
        assert isinstance(error, Corruption)
        assert "it has no committed offset" in error.message


def test_rows_exchanged_below_the_offset(data: Path) -> None:
    with opened(data) as catalog:
        table = catalog.load_table("t")
        last_seen = position(table)
        edit_properties(table, p0=edited(table, checksum="other"))
        error = refusal(catalog.load_table("t"), 30, 40, last_seen=last_seen)
        assert "and now others" in error.message


@pytest.mark.parametrize("is_loaded_before", [True, False])
def test_a_table_made_again(data: Path, is_loaded_before: bool) -> None:
    with opened(data) as catalog:
        before = catalog.load_table("t")
        last_seen = position(before)
        sent = parcel(before, feeding.log_range(30, 40))
        catalog.drop_table("t")
        make_table(catalog)
        if is_loaded_before:
            with pytest.raises(NotFound, match="another one made under its name") as refused:
                sent.send(before)
            assert refused.value.hint
        else:
            error = refusal(catalog.load_table("t"), 30, 40, last_seen=last_seen)
            assert "it has no committed offset, and had 30 before" in error.message
            assert "does not follow 0" in refusal(catalog.load_table("t"), 30, 40).message
        assert catalog.load_table("t").current_snapshot() is None


def test_a_table_that_was_replaced_by_an_empty_one(data: Path) -> None:
    with opened(data) as catalog:
        begin_anew(catalog.load_table("t"))
        error = refusal(catalog.load_table("t"), 30, 40)
        assert isinstance(error, Corruption)
        assert "rollback --force" in str(error.hint)


def test_a_table_that_was_replaced_by_rows_of_its_own(data: Path) -> None:
    with opened(data) as catalog:
        files = [task.file for task in catalog.load_table("t").scan().plan_files()]
        begin_anew(catalog.load_table("t"))
        TableCommit(catalog.load_table("t")).append(Edit(added=files[:1]))
        error = refusal(catalog.load_table("t"), 30, 40)
        assert isinstance(error, Corruption)
        assert "does not lead to its newest one" in error.message


def _delete_all(table: Table) -> None:
    files = [task.file for task in table.scan().plan_files()]
    TableCommit(table).attempt(Edit(removed=files))


def _roll_back_and_stamp(catalog: LakeCatalog, offset: int | None = None) -> None:
    table = catalog.load_table("t")
    kept = position(table)
    rollback(table, table.metadata.snapshots[0].snapshot_id)

    def stamp(snapshot_id: int) -> dict[str, str]:
        back = kept if offset is None else replace(kept, offset=offset, checksum="")
        return position_property(0, replace(back, snapshot_id=snapshot_id))

    TableCommit(catalog.load_table("t")).attempt(Edit(stamp=stamp))


Explained = Callable[[LakeCatalog], object]
EXPLAINED: dict[str, Explained] = {
    "expiry": lambda c: expire_snapshots(c.load_table("t"), datetime.now(UTC) + timedelta(hours=1)),
    "a change by hand": lambda c: insert_rows(c, "t", [{"value": "by hand"}]),
    "rows deleted": lambda c: _delete_all(c.load_table("t")),
    "a change by hand, then expiry": lambda c: (
        insert_rows(c, "t", [{"value": "by hand"}]),
        expire_snapshots(c.load_table("t"), datetime.now(UTC) + timedelta(hours=1)),
    ),
    "a tag on the commit, changes, then expiry": lambda c: (
        create_tag(c.load_table("t"), "kept"),
        insert_rows(c, "t", [{"value": "by hand"}]),
        insert_rows(c, "t", [{"value": "by hand"}]),
        expire_snapshots(c.load_table("t"), datetime.now(UTC) + timedelta(hours=1)),
    ),
    "a rollback that writes the position anew": _roll_back_and_stamp,
}


@pytest.mark.parametrize("what", EXPLAINED)
def test_what_happens_to_every_table_is_not_taken_for_it(data: Path, what: str) -> None:
    with opened(data) as catalog:
        last_seen = position(catalog.load_table("t"))
        EXPLAINED[what](catalog)
        assert feed(catalog.load_table("t"), 30, 40, last_seen=last_seen).is_new
        assert position(catalog.load_table("t")).offset == 40


def test_a_rollback_that_wants_its_rows_again_gets_them(data: Path) -> None:
    with opened(data) as catalog:
        last_seen = position(catalog.load_table("t"))
        _roll_back_and_stamp(catalog, offset=10)
        table = catalog.load_table("t")
        assert "does not follow 10" in refusal(table, 30, 40, last_seen=last_seen).message
        # The checksum that was not known then stands in nobody's way.
        assert not feed(table, 0, 10, last_seen=last_seen).is_new
        assert feed(table, 10, 20, last_seen=last_seen).is_new
        assert feed(table, 20, 40).is_new
        feeding.require_each_once(catalog.load_table("t"), 40)


def test_files_of_a_range_that_was_rolled_back_and_came_again_are_kept_while_needed(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "lake") as catalog:
        make_table(catalog)
        feed(catalog.load_table("t"), 0, 10)
        first = parcel(catalog.load_table("t"), feeding.log_range(10, 20))
        first.send(catalog.load_table("t"))
        create_tag(catalog.load_table("t"), "before")
        _roll_back_and_stamp(catalog, offset=10)
        feed(catalog.load_table("t"), 10, 20)
        feed(catalog.load_table("t"), 20, 30)
        assert not first.send(catalog.load_table("t")).is_new
        assert all(path.exists() for path in first.paths())
        feeding.require_each_once(catalog.load_table("t"), 30)
