"""Admission: memory is bounded and shared, and nothing is lost or kept for ever."""

from __future__ import annotations

import threading

import pytest

from calve.errors import InvalidRequest, Overloaded
from calve.ingest.admission import Admission


def test_what_is_held_counts_until_it_is_released() -> None:
    admission = Admission(100)
    with admission.hold(40, "a") as admitted:
        assert admission.held_bytes == 40
        admitted.grow(5)
        assert admission.held_bytes == 45
    assert admission.held_bytes == 0
    admitted.release()
    assert admission.held_bytes == 0


def test_over_the_bound_a_request_is_refused_with_a_delay() -> None:
    admission = Admission(100)
    with admission.hold(90, "a"), pytest.raises(Overloaded) as raised:
        admission.hold(20, "b")
    assert raised.value.http_status == 429
    assert int(raised.value.context["retry_after_ms"]) > 0
    assert admission.held_bytes == 0


def test_a_request_larger_than_everything_is_told_to_split() -> None:
    with pytest.raises(InvalidRequest, match="memory_bytes_max"):
        Admission(100).hold(101)
    with Admission(100).hold(60) as admitted, pytest.raises(InvalidRequest, match="more than all"):
        admitted.grow(41)


def test_a_client_leaves_room_for_others_however_much_it_sends() -> None:
    admission = Admission(100)
    greedy = [admission.hold(10, "greedy") for _ in range(5)]
    with pytest.raises(Overloaded, match="share"):
        admission.hold(10, "greedy")
    assert admission.hold(30, "modest").held_bytes == 30
    assert sum(each.held_bytes for each in greedy) == 50


def test_a_single_request_may_be_as_large_as_there_is_room() -> None:
    admission = Admission(100)
    with admission.hold(10, "a") as small, admission.hold(80, "b"):
        small.grow(10)
        assert admission.held_bytes == 100


def test_a_request_that_cannot_grow_keeps_what_it_had() -> None:
    admission = Admission(100)
    with admission.hold(50, "a") as first, admission.hold(50, "b"):
        with pytest.raises(Overloaded):
            first.grow(1)
        assert first.held_bytes == 50
    assert admission.held_bytes == 0


def test_thirty_two_threads_never_hold_more_than_the_bound() -> None:
    admission = Admission(1000)
    seen: list[int] = []
    refused: list[int] = []

    def work(client: str) -> None:
        for size in range(1, 200):
            try:
                with admission.hold(size, client) as admitted:
                    admitted.grow(size // 3)
                    seen.append(admission.held_bytes)
            except Overloaded:
                refused.append(size)

    threads = [threading.Thread(target=work, args=(f"c{n % 5}",)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) <= 1000
    assert len(seen) + len(refused) == 32 * 199
    assert admission.held_bytes == 0
    with admission.hold(1000, "c0"):
        pass
