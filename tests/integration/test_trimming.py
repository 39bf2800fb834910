"""What the log lets go of, and that nobody who sends rows waits for the state meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest

from calve.errors import Overloaded
from calve.ingest import Intake
from calve.model import TableName
from calve.state import CommittedOffset, State
from tests.conftest import MakeSettings

ORDERS = TableName.parse("orders")
ROW = pa.record_batch({"text": ["x" * 10_000]})
SMALL = {"wal__hot_window_seconds": 0, "wal__segment_bytes_max": 20_000}


class WatchedState:
    """A state that notes what the keeper asks, and does something while it is being asked."""

    def __init__(self, state: State, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._state = state
        self._meanwhile = meanwhile
        self.asked: list[str] = []

    def all_committed(self, partition: int) -> dict[UUID, CommittedOffset]:
        self.asked.append("all_committed")
        found = self._state.all_committed(partition)
        self._meanwhile()
        return found

    @contextmanager
    def keeping_committed(self, partition: int) -> Iterator[dict[UUID, CommittedOffset]]:
        self.asked.append("keeping_committed")
        with self._state.keeping_committed(partition) as found:
            self._meanwhile()
            yield found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def filled(intake: Intake, count: int = 6) -> None:
    for _ in range(count):
        intake.submit(ORDERS, ROW).wait()


def publish(intake: Intake, offset: int) -> None:
    topic = intake.topics.topic(ORDERS)
    log_id = topic.partitions[0].log_id
    intake.state.publish_committed(topic.id, 0, log_id=log_id, offset=offset)


def watched(intake: Intake, meanwhile: Callable[[], object] = lambda: None) -> WatchedState:
    state = WatchedState(intake.state, meanwhile)
    intake._keeper._state = cast("State", state)
    return state


def test_rows_are_taken_in_while_the_state_is_asked_what_may_go(
    make_settings: MakeSettings, elsewhere: ThreadPoolExecutor
) -> None:
    with Intake(make_settings(**SMALL)) as intake:
        filled(intake)
        publish(intake, 4)

        def append() -> None:
            elsewhere.submit(lambda: intake.submit(ORDERS, ROW).wait()).result(10)

        state = watched(intake, append)
        assert intake.trim() > 0
        assert state.asked == ["all_committed", "keeping_committed"]
        assert 0 < intake.offsets(ORDERS).first <= 4


def test_nothing_is_asked_while_nothing_is_old_enough_to_go(make_settings: MakeSettings) -> None:
    with Intake(make_settings(**{**SMALL, "wal__hot_window_seconds": 3600})) as intake:
        filled(intake)
        publish(intake, 6)
        state = watched(intake)
        assert intake.trim() == 0
        assert state.asked == []


def test_one_read_tells_that_the_tables_are_behind(make_settings: MakeSettings) -> None:
    with Intake(make_settings(**SMALL)) as intake:
        filled(intake)
        state = watched(intake)
        assert intake.trim() == 0
        assert state.asked == ["all_committed"]


def test_what_is_set_back_after_the_first_look_stays(make_settings: MakeSettings) -> None:
    with Intake(make_settings(**SMALL)) as intake:
        filled(intake)
        publish(intake, 6)
        topic = intake.topics.topic(ORDERS)
        log_id = topic.partitions[0].log_id

        def set_back() -> None:
            if state.asked == ["all_committed"]:
                intake.state.reset_committed(topic.id, 0, log_id=log_id, offset=0)

        state = watched(intake, set_back)
        assert intake.trim() == 0
        assert intake.offsets(ORDERS).first == 0


def test_a_log_that_is_filled_while_it_is_trimmed_waits_for_nobody(
    make_settings: MakeSettings, elsewhere: ThreadPoolExecutor
) -> None:
    with Intake(make_settings(**SMALL, wal__disk_bytes_max=100_000)) as intake:
        filled(intake)
        publish(intake, 6)

        def fill() -> None:
            if state.asked[-1] == "keeping_committed":
                with pytest.raises(Overloaded):
                    elsewhere.submit(filled, intake, 20).result(10)

        state = watched(intake, fill)
        assert intake.trim() > 0
        filled(intake, 1)
