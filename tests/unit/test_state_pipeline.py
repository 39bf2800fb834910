"""The state between the pipeline and its watchers: leases, requests, orders, progress; and old files."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from calve.clock import SystemClock
from calve.errors import Corruption
from calve.model import TableName
from calve.state import Progress, TopicPartition
from calve.state.sqlite import SqliteState
from calve.topics.registry import TopicRegistry

GOLDEN = Path(__file__).parents[1] / "golden" / "state"
TOPIC, OTHER, LOG = UUID(int=1), UUID(int=2), UUID(int=3)
HERE = TopicPartition(TOPIC, 0)


class SteppingClock:
    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return 0.0

    def step(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


@pytest.fixture
def state(tmp_path: Path, clock: SteppingClock) -> Iterator[SqliteState]:
    state = SqliteState(tmp_path / "state.db", clock=clock)
    yield state
    state.close()


def test_one_owner_at_a_time_has_a_lease(state: SqliteState, clock: SteppingClock) -> None:
    assert state.take_lease("pipeline", "a", 10)
    assert not state.take_lease("pipeline", "b", 10)
    assert state.take_lease("other", "b", 10)
    held = state.lease("pipeline")
    assert held is not None
    assert (held.owner, held.until) == ("a", clock.now() + timedelta(seconds=10))


def test_a_lease_that_is_renewed_stays_and_one_that_is_not_ends(
    state: SqliteState, clock: SteppingClock
) -> None:
    state.take_lease("pipeline", "a", 10)
    clock.step(8)
    assert state.take_lease("pipeline", "a", 10)
    clock.step(8)
    assert not state.take_lease("pipeline", "b", 10)
    clock.step(2)
    assert state.lease("pipeline") is None
    assert state.take_lease("pipeline", "b", 10)
    assert not state.take_lease("pipeline", "a", 10)


@pytest.mark.parametrize(("jump_seconds", "is_kept"), [(-3600, False), (3600, False), (-1, True)])
def test_no_jump_of_the_clock_keeps_a_lease_for_ever(
    state: SqliteState, clock: SteppingClock, jump_seconds: float, is_kept: bool
) -> None:
    state.take_lease("pipeline", "a", 10)
    clock.step(jump_seconds)
    assert state.take_lease("pipeline", "b", 10) != is_kept


def test_progress_is_as_it_was_published_last(state: SqliteState, clock: SteppingClock) -> None:
    assert state.progress() == (None, {})
    failing = Progress(
        topic_id=TOPIC,
        partition=0,
        rows_waiting=5,
        bytes_waiting=500,
        waiting_since=clock.now(),
        flush_interval_ms=5000,
        error="the catalog does not answer",
        failures=2,
        next_try_at=clock.now() + timedelta(seconds=4),
    )
    idle = Progress(topic_id=OTHER, partition=0, committed_at=clock.now())
    state.publish_progress([failing, idle])
    assert state.progress() == (clock.now(), {HERE: failing, idle.at: idle})
    clock.step(5)
    well = Progress(topic_id=TOPIC, partition=0, committed_at=clock.now())
    state.publish_progress([well])
    assert state.progress() == (clock.now(), {HERE: well, idle.at: idle})
    clock.step(5)
    state.publish_progress([])
    assert state.progress().at == clock.now()


def test_progress_that_cannot_be_read_is_told(state: SqliteState, tmp_path: Path) -> None:
    state.publish_progress([Progress(topic_id=TOPIC, partition=0)])
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("UPDATE progress SET content = '{'")
    connection.close()
    with pytest.raises(Corruption, match="cannot be read"):
        state.progress()


def test_a_file_of_version_1_keeps_everything_and_gets_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    shutil.copy(GOLDEN / "version-1.db", path)
    before = _contents(path)
    for _ in range(2):
        state = SqliteState(path, clock=SystemClock())
        topic = TopicRegistry(state).topic(TableName.parse("orders"))
        known = state.committed(topic.id, 0)
        assert known is not None
        assert (known.log_id, known.offset) == (UUID(int=1), 42)
        assert state.bytes_appended(topic.id, 0) == 1000
        assert state.ended_streams() == {UUID(int=7)}
        state.request_flush(topic.id, 0, 50)
        assert state.flush_requests() == {TopicPartition(topic.id, 0): 50}
        state.close()
    assert before.items() <= _contents(path).items()


def _contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema")]
    found = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    connection.close()
    return found
