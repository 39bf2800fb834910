"""A sender that goes on is told from one that waits for its answers, also when it is fast."""

from __future__ import annotations

from calve.ingest.flight.pace import Pace

FAST, SLOW = 0.000_01, 0.001
SMALL, LARGE = 1_024, 1 << 20


def test_a_sender_that_goes_on_is_known_after_three_batches() -> None:
    pace = Pace()
    assert [pace.goes_on(FAST, SMALL, is_owed=False) for _ in range(3)] == [False, False, True]
    assert all(pace.goes_on(SLOW, SMALL, is_owed=True) for _ in range(1_000))


def test_a_slow_read_says_that_the_sender_waits() -> None:
    pace = Pace()
    for _ in range(100):
        assert not pace.goes_on(FAST, SMALL, is_owed=False)
        assert not pace.goes_on(FAST, SMALL, is_owed=False)
        assert not pace.goes_on(SLOW, SMALL, is_owed=False)


def test_a_fast_sender_that_waits_is_mistaken_ever_more_rarely() -> None:
    pace = Pace()
    wrong = sum(pace.goes_on(FAST, SMALL, is_owed=False) for _ in range(10_000))
    assert wrong <= 12


def test_a_sender_that_goes_on_after_all_is_known_quickly_again() -> None:
    pace = Pace()
    for _ in range(10_000):
        pace.goes_on(FAST, SMALL, is_owed=False)
    pace.goes_on(FAST, SMALL, is_owed=True)
    assert any(pace.goes_on(FAST, SMALL, is_owed=False) for _ in range(3))


def test_large_batches_are_always_given_to_a_second_thread() -> None:
    pace = Pace()
    found = [pace.goes_on(FAST, LARGE, is_owed=False) for _ in range(100)]
    assert found == [False, False] + [True] * 98
