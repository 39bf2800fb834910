"""Room for what readers hold of history: bounded, in turns, and not for ever."""

from __future__ import annotations

import pytest

from calve.subscriptions.memory import HistoryMemory, NoRoom, Share
from tests.fakes.clocks import HandClock


class Reader:
    """Notes what becomes of its share."""

    def __init__(self, memory: HistoryMemory) -> None:
        self.woken = 0
        self.dropped = 0
        self.share: Share = memory.share(self._drop, self._wake)

    def _drop(self) -> None:
        self.dropped += 1

    def _wake(self) -> None:
        self.woken += 1

    def takes(self, size_bytes: int) -> bool:
        try:
            with self.share.in_use():
                self.share.take(size_bytes)
        except NoRoom:
            return False
        return True


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def memory(clock: HandClock) -> HistoryMemory:
    return HistoryMemory(100, clock=clock, stalled_seconds=1)


def test_those_who_wait_come_in_the_order_they_asked(memory: HistoryMemory) -> None:
    first, second, third = (Reader(memory) for _ in range(3))
    assert first.takes(80)
    assert not second.takes(50)
    assert not third.takes(10)  # though there would be room for it
    assert not first.share.take_spare(10)  # nor does anybody read ahead meanwhile
    first.share.give_back(80)
    assert (second.woken, third.woken) == (1, 1)
    assert not first.takes(60)  # they have not come for it yet, and it is theirs
    assert memory.held_bytes == 60
    assert second.takes(50)
    assert third.takes(10)
    assert memory.held_bytes == 60


def test_what_nobody_waits_for_is_for_reading_ahead(memory: HistoryMemory) -> None:
    reader = Reader(memory)
    assert reader.takes(40)
    assert reader.share.take_spare(60)
    assert not reader.share.take_spare(1)
    reader.share.give_back(30)  # it was smaller than thought
    assert reader.share.take_spare(30)


def test_a_window_that_is_larger_than_everything_is_read_alone(memory: HistoryMemory) -> None:
    one, other = Reader(memory), Reader(memory)
    assert one.takes(1_000)
    assert not other.takes(1)
    one.share.close()
    assert other.takes(1)


def test_room_is_taken_from_one_that_stands_still_and_from_nobody_else(
    memory: HistoryMemory, clock: HandClock
) -> None:
    stalled, live, wanting = (Reader(memory) for _ in range(3))
    assert stalled.takes(50)
    clock.pass_seconds(0.9)
    assert live.takes(50)
    assert not wanting.takes(50)
    clock.pass_seconds(0.2)
    assert wanting.takes(50)
    assert (stalled.dropped, live.dropped) == (1, 0)
    assert memory.held_bytes == 100
    with pytest.raises(NoRoom), stalled.share.in_use():
        pass
    assert stalled.share.is_taken_away


def test_nothing_is_taken_while_it_is_in_use(memory: HistoryMemory, clock: HandClock) -> None:
    slow, wanting = Reader(memory), Reader(memory)
    assert slow.takes(100)
    with slow.share.in_use():
        clock.pass_seconds(60)
        assert not wanting.takes(1)
    assert not wanting.takes(1)
    clock.pass_seconds(1)
    assert wanting.takes(1)


def test_room_that_was_given_and_not_come_for_goes_on_to_the_next(
    memory: HistoryMemory, clock: HandClock
) -> None:
    one, gone, wanting = (Reader(memory) for _ in range(3))
    assert one.takes(100)
    assert not gone.takes(100)
    assert not wanting.takes(100)
    one.share.close()
    assert gone.woken == 1
    clock.pass_seconds(1)
    assert wanting.takes(100)
    assert gone.share.is_taken_away
