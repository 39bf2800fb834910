"""The state: records by compare-and-set, committed offsets that never go back, damage that is told."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from calve.clock import SystemClock
from calve.errors import Conflict, Corruption, InvalidSettings
from calve.model import TableName
from calve.state import State, open_state
from calve.state.sqlite import SqliteState
from tests.conftest import MakeSettings

ORDERS = TableName.parse("orders")
LOG, OTHER_LOG, TOPIC = UUID(int=1), UUID(int=2), UUID(int=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state.db"


@pytest.fixture
def state(path: Path) -> Iterator[State]:
    state = SqliteState(path, clock=SystemClock())
    yield state
    state.close()


def test_what_goes_wrong_while_offsets_are_kept_is_no_error_of_the_state(state: State) -> None:
    with pytest.raises(OSError, match="the disk"), state.keeping_committed(0):
        raise OSError("the disk")
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=1).offset == 1


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"\x00" * 4096])
def test_a_file_that_cannot_be_read_is_an_error_with_a_way_out(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(Corruption) as raised:
        SqliteState(path, clock=SystemClock())
    assert str(path) in raised.value.message
    assert "copy" in str(raised.value.hint)
    assert path.read_bytes() == content


def test_damage_inside_the_file_is_told_and_nothing_is_made_anew(state: State, path: Path) -> None:
    for number in range(200):
        state.create_topic(TableName.parse(f"t{number}"), b"x" * 2000)
    state.close()
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xff" * (len(content) - 8192 - 4096)
    path.write_bytes(content)
    with pytest.raises(Corruption, match="cannot be read"):
        SqliteState(path, clock=SystemClock()).topics()


def test_somebody_elses_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    with pytest.raises(Corruption, match="not one of Calve's"):
        SqliteState(path, clock=SystemClock())


def test_a_newer_format_is_refused_with_both_numbers(state: State, path: Path) -> None:
    state.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Conflict, match="format 99, this Calve knows 6"):
        SqliteState(path, clock=SystemClock())


def test_the_state_lies_in_the_data_directory_by_default(make_settings: MakeSettings) -> None:
    settings = make_settings()
    open_state(settings).close()
    assert (settings.data / "_calve" / "state.db").exists()
    for path in (settings.data, settings.data / "_calve"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("dsn", ["mysql://host", "sqlite:///:memory:", "nonsense"])
def test_a_store_that_nobody_knows_is_refused(make_settings: MakeSettings, dsn: str) -> None:
    with pytest.raises(InvalidSettings, match="names no store"):
        open_state(make_settings(state__dsn=dsn))
