"""The lease of the pipeline: waited for, kept, lost and given back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.clock import SystemClock
from calve.errors import Unavailable
from calve.service.lease import LeaseKeeper
from calve.state import PIPELINE_LEASE
from calve.state.sqlite import SqliteState

SECONDS = 0.25


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    state = SqliteState(tmp_path / "state.db", clock=SystemClock())
    yield state
    state.close()


def keeper(
    state: SqliteState, owner: str, ending: threading.Event, *, able: threading.Event | None = None
) -> LeaseKeeper:
    is_able = (lambda: True) if able is None else able.is_set
    return LeaseKeeper(state, owner, ending, is_able=is_able, seconds=SECONDS)


def test_a_lease_is_kept_for_longer_than_it_lasts_and_given_back(state: SqliteState) -> None:
    ending = threading.Event()
    with keeper(state, "a", ending) as lease:
        assert lease.await_turn()
        assert not ending.wait(3 * SECONDS)
        held = state.lease(PIPELINE_LEASE)
        assert held is not None
        assert held.owner == "a"
        lease.require()
    assert state.lease(PIPELINE_LEASE) is None
    lease.close()


def test_whoever_waits_says_so_once_and_has_its_turn(
    state: SqliteState, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    state.take_lease(PIPELINE_LEASE, "process 7", 3 * SECONDS)
    with keeper(state, "b", threading.Event()) as lease:
        assert lease.await_turn()
    told = [each.message for each in caplog.records if "another pipeline" in each.message]
    assert len(told) == 1
    assert "process 7" in told[0]


def test_whoever_is_asked_to_end_waits_no_longer(state: SqliteState) -> None:
    state.take_lease(PIPELINE_LEASE, "a", 60)
    ending = threading.Event()
    ending.set()
    with keeper(state, "b", ending) as lease:
        assert not lease.await_turn()
    held = state.lease(PIPELINE_LEASE)
    assert held is not None
    assert held.owner == "a"


def test_a_lease_that_somebody_else_has_taken_ends_the_work(state: SqliteState) -> None:
    ending = threading.Event()
    with keeper(state, "a", ending) as lease:
        assert lease.await_turn()
        state.release_lease(PIPELINE_LEASE, "a")
        assert state.take_lease(PIPELINE_LEASE, "b", 60)
        assert ending.wait(10)
        with pytest.raises(Unavailable, match="another pipeline has taken over"):
            lease.require()
    held = state.lease(PIPELINE_LEASE)
    assert held is not None
    assert held.owner == "b"


def test_an_owner_that_cannot_work_any_more_lets_go(state: SqliteState) -> None:
    ending, able = threading.Event(), threading.Event()
    able.set()
    with keeper(state, "a", ending, able=able) as lease:
        assert lease.await_turn()
        able.clear()
        assert ending.wait(10)
        with pytest.raises(Unavailable, match="Spark has ended"):
            lease.require()
    assert state.lease(PIPELINE_LEASE) is None
