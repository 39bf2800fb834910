"""Who writes for whom: outcomes that are held back under load reach everybody, whatever happens."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from calve.errors import CalveError, Unavailable, UnknownOutcome
from calve.wal import Log, LogOptions, PendingAppend
from calve.wal.group import Group
from tests.fakes.disk import SimulatedDisk
from tests.fakes.oracle import TOPIC, rows

OPTIONS = LogOptions(free_bytes_min=0, group_bytes_max=1)  # each append is a group of its own
ENOSPC = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> Iterator[Log]:
    with Log(Path("/wal"), OPTIONS, files=disk, background=False) as log:
        log.create_stream(TOPIC)
        log._leader._thread = threading.current_thread()  # the test is the log's thread
        yield log


def submit(log: Log, count: int) -> list[PendingAppend]:
    return [log.submit(log.stream(TOPIC), rows(i)) for i in range(count)]


def lead(log: Log) -> None:
    """What the log's thread does under load, until it gives up the lead."""
    log._leader._lead_under_load()


def test_under_load_an_outcome_is_told_when_the_next_group_is_written(
    log: Log, disk: SimulatedDisk
) -> None:
    handles = submit(log, 3)
    told: list[tuple[str, list[bool]]] = []
    disk.fault = lambda operation, _: told.append((operation, [h.is_done for h in handles]))
    lead(log)
    syncs = [done for operation, done in told if operation == "sync"]
    assert syncs == [[False, False, False], [True, False, False], [True, True, False]]
    assert [handle.wait(5).first for handle in handles] == [0, 1, 2]


@pytest.mark.parametrize(
    ("operation", "number", "error"), [("write", 3, Unavailable), ("sync", 2, UnknownOutcome)]
)
def test_what_was_held_back_is_told_when_the_next_group_fails(
    log: Log, disk: SimulatedDisk, operation: str, number: int, error: type[CalveError]
) -> None:
    """A group is written, synced, and its end written to the durable file."""
    first, second, third = submit(log, 3)
    found: list[str] = []
    told_before_third: list[bool] = []

    def fault(one: str, _: SimulatedDisk) -> None:
        if found.count(operation) == number:
            told_before_third.append(first.is_done)
        found.append(one)
        if one == operation and found.count(operation) == number:
            raise ENOSPC

    disk.fault = fault
    lead(log)
    assert told_before_third[2:] == [True] * len(told_before_third[2:]), "after it was undone"
    assert first.wait(5).first == 0
    with pytest.raises(error):
        second.wait(5)
    assert third.is_done


def test_what_was_held_back_is_told_when_the_leader_is_interrupted(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = submit(log, 3)
    add = Group.add

    def interrupt(group: Group, pending: PendingAppend) -> None:
        if pending is second:
            raise KeyboardInterrupt
        add(group, pending)

    monkeypatch.setattr(Group, "add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lead(log)
    assert first.wait(5).first == 0
    with pytest.raises(UnknownOutcome):
        second.wait(5)
    lead(log)
    assert third.wait(5).first == 1


def test_nothing_is_held_back_before_a_large_append(log: Log) -> None:
    stream = log.stream(TOPIC)
    small, _ = log.submit(stream, rows(0)), log.submit(stream, rows(0, 50_000))
    lead(log)
    assert small.is_done


def test_nothing_is_held_back_while_callbacks_run(log: Log) -> None:
    first, second, third = submit(log, 3)
    called: SimpleQueue[bool] = SimpleQueue()
    first.callbacks.append(lambda _: called.put(second.is_done))
    lead(log)
    assert called.get(timeout=5)
    assert not third.is_done


def test_each_who_waits_wakes_the_next(log: Log) -> None:
    """Also when some of them gave up, and some come late."""
    handle, last = submit(log, 2)
    log._leader._lead.acquire()  # as if another thread wrote at that moment
    with pytest.raises(Unavailable):
        handle.wait(0.001)
    found: list[int | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(handle.wait().first), daemon=True)
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    log._leader._lead.release()
    lead(log)
    assert last.wait(5).first == 1
    for thread in threads:
        thread.join(5)
    assert found == [0] * 8
    assert handle.wait(0).first == 0


def test_whoever_asks_for_the_lead_gets_it_after_the_group_under_way(
    log: Log, disk: SimulatedDisk
) -> None:
    handles = submit(log, 50)
    leader = log._leader
    written: list[int] = []

    def ask() -> None:
        with leader.holding():
            written.append(log._journal.state.next_offsets[log.stream(TOPIC).number])

    asking = threading.Thread(target=ask, daemon=True)

    def fault(operation: str, _: SimulatedDisk) -> None:
        if operation == "sync" and not asking.ident:
            asking.start()
            while not leader._turnstile.locked():
                pass

    disk.fault = fault
    for _ in handles:
        lead(log)
    asking.join(5)
    assert written == [1]


@pytest.fixture
def slow_log(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Its thread looks at the backlog when it is woken, and not within a minute by itself."""
    monkeypatch.setattr("calve.wal.leader.TICK_SECONDS", 60)
    with Log(Path("/wal"), OPTIONS, files=disk) as log:
        log.create_stream(TOPIC)
        yield log


def wait_elsewhere(log: Log) -> threading.Thread:
    """A thread that waits for an append, as far as it gets while somebody leads."""
    handle = log.submit(log.stream(TOPIC), rows(1))
    waiting = threading.Thread(target=handle.wait, daemon=True)
    waiting.start()
    while not handle.batch or not handle.batch.waiting_count:
        pass
    return waiting


def test_what_came_while_a_caller_led_is_written_by_the_log_s_thread(
    slow_log: Log, disk: SimulatedDisk
) -> None:
    waiting: list[threading.Thread] = []

    def fault(operation: str, _: SimulatedDisk) -> None:
        if operation == "sync" and not waiting:
            waiting.append(wait_elsewhere(slow_log))

    disk.fault = fault
    assert slow_log.append(slow_log.stream(TOPIC), rows(0)).first == 0
    waiting[0].join(5)
    assert not waiting[0].is_alive()


def test_what_came_while_the_log_s_thread_went_to_sleep_is_written_by_it(
    slow_log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_busy, goes_on = threading.Event(), threading.Event()

    def be_busy() -> None:
        is_busy.set()
        goes_on.wait(5)

    monkeypatch.setattr(slow_log._leader, "_do_what_is_due", be_busy)
    slow_log._leader.wake()
    assert is_busy.wait(5)
    waiting = wait_elsewhere(slow_log)
    goes_on.set()
    waiting.join(5)
    assert not waiting.is_alive()
