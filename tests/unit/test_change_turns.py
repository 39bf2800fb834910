"""Changes of one table take turns in a process: fairly, never for ever, and without guarding."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from calve.changes.turns import Turns

TABLE, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture
def turns() -> Turns:
    return Turns()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_turns_come_in_the_order_of_asking_and_one_at_a_time(turns: Turns) -> None:
    order: list[int] = []
    inside = threading.Semaphore(1)

    def take(number: int) -> None:
        with turns.turn(TABLE) as others_were_first:
            assert inside.acquire(blocking=False)
            assert others_were_first
            order.append(number)
            inside.release()

    with ThreadPoolExecutor(8) as pool:
        with turns.turn(TABLE) as others_were_first:
            assert not others_were_first
            waiting = []
            for number in range(8):
                waiting.append(pool.submit(take, number))
                until(lambda: turns.waiting_count(TABLE) == len(waiting))
        for each in waiting:
            each.result(10)
    assert order == list(range(8))
    with turns.turn(TABLE) as others_were_first:
        assert not others_were_first


def test_other_tables_and_changes_inside_of_a_change_do_not_wait(turns: Turns) -> None:
    with turns.turn(TABLE), turns.turn(OTHER) as other, turns.turn(TABLE) as again:
        assert (other, again) == (False, False)
    assert turns.waiting_count(TABLE) == 0


def test_whoever_waits_too_long_goes_on_without_a_turn(turns: Turns) -> None:
    def take() -> bool:
        with turns.turn(TABLE, wait_seconds=0.01) as others_were_first:
            return others_were_first

    with turns.turn(TABLE), ThreadPoolExecutor(1) as pool:
        assert pool.submit(take).result(10)
    with turns.turn(TABLE) as others_were_first:
        assert not others_were_first


def test_an_error_inside_gives_the_turn_to_the_next(turns: Turns) -> None:
    with pytest.raises(ValueError, match="inside"), turns.turn(TABLE):
        raise ValueError("inside")
    with turns.turn(TABLE) as others_were_first:
        assert not others_were_first


def test_a_wait_can_be_interrupted_and_leaves_the_line(turns: Turns) -> None:
    is_held, is_over = threading.Event(), threading.Event()
    waiting = threading.get_ident()

    def hold() -> None:
        with turns.turn(TABLE):
            is_held.set()
            is_over.wait(10)

    def interrupt() -> None:
        until(lambda: turns.waiting_count(TABLE) == 1)
        signal.pthread_kill(waiting, signal.SIGINT)

    with ThreadPoolExecutor(2) as pool:
        holding = pool.submit(hold)
        assert is_held.wait(10)
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt), turns.turn(TABLE):
            pass
        assert turns.waiting_count(TABLE) == 0
        is_over.set()
        holding.result(10)
