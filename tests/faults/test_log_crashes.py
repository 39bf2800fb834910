"""A crash at every file operation: what was acknowledged is there, and nothing else is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calve.errors import CalveError
from calve.wal import Log, LogOptions
from tests.fakes.disk import Crash, SimulatedDisk, Survival
from tests.fakes.oracle import TOPIC, Oracle, rows

DIRECTORY = Path("/data/wal")
OPTIONS = LogOptions(segment_bytes_max=8192, hot_window_seconds=0, free_bytes_min=0)


class SteppingClock:
    """Every look is a millisecond later."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=next(self._ticks))

    def monotonic(self) -> float:
        return next(self._ticks) / 1000


def open_log(disk: SimulatedDisk) -> Log:
    return Log(DIRECTORY, OPTIONS, files=disk, clock=SteppingClock(), background=False)


def open_with_partitions(disk: SimulatedDisk) -> Log:
    log = open_log(disk)
    have = {stream.partition for stream in log.streams}
    try:
        for partition in {0, 1} - have:
            log.create_stream(TOPIC, partition)
    except CalveError:
        log.close()
        raise
    return log


def appends_with_rotation(disk: SimulatedDisk, oracle: Oracle) -> None:
    log = open_with_partitions(disk)
    for i in range(14):
        oracle.append(log, partition=i % 2, count=1 + i % 3, rejected=i % 2)
    log.close()


def groups(disk: SimulatedDisk, oracle: Oracle) -> None:
    """Several appends in one write and one sync."""
    log = open_with_partitions(disk)
    for size in (1, 4, 2, 5):
        pending = [oracle.submit(log, partition=i % 2, count=1 + i % 2) for i in range(size)]
        log.flush()
        for handle, sent in pending:
            result = handle.wait()
            assert result.first is not None
            assert result.end is not None
            sent.offsets = (result.first, result.end)
    log.close()


def retention(disk: SimulatedDisk, oracle: Oracle) -> None:
    log = open_with_partitions(disk)
    for i in range(16):
        oracle.append(log, partition=i % 2, count=2)
        if i % 5 == 4:
            log.rotate()
            committed = {s: log.next_offset(s) for s in log.streams}
            oracle.committed = {(s.topic, s.partition): end for s, end in committed.items()}
            log.trim({stream.id: end for stream, end in committed.items()})
    log.close()


def reopened_with_producers(disk: SimulatedDisk, oracle: Oracle) -> None:
    """Closed and opened between, and every third append sent again."""
    sequence = itertools.count()
    for _ in range(3):
        log = open_with_partitions(disk)
        for i in range(4):
            number = next(sequence)
            first = oracle.append(log, count=2, producer="p", sequence=number)
            oracle.append(log, partition=1, producer="p", sequence=number)
            if i == 2 and first is not None:
                again = log.append(log.stream(TOPIC), rows(0), producer="p", sequence=number)
                assert again == first._replace(is_repeat=True)
        log.close()


WORKLOADS = [appends_with_rotation, groups, retention, reopened_with_producers]
Workload = Callable[[SimulatedDisk, Oracle], None]


def count_operations(workload: Workload) -> int:
    disk = SimulatedDisk()
    oracle = Oracle()
    workload(disk, oracle)
    oracle.check(DIRECTORY, disk)
    assert all(sent.offsets for sent in itertools.chain(*oracle.sent.values()))
    return len(disk.operations)


def crash_points(total: int, survivals: list[Survival]) -> Iterator[tuple[int, Survival]]:
    yield from itertools.product(range(total), survivals)


def crash_once(workload: Workload, at: int, survival: Survival, seed: int) -> None:
    disk = SimulatedDisk()
    disk.crash_at = at
    oracle = Oracle()
    with pytest.raises(Crash):
        workload(disk, oracle)
    found = disk.after_crash(survival, seed)
    reopen_and_check(found, oracle)
    # And again: what was cut must not come back, what was kept must stay.
    log = open_with_partitions(found)
    found.crash_at = len(found.operations) + 1 + seed % 7
    try:
        for i in range(4):
            oracle.append(log, partition=i % 2, count=2)
        log.close()
    except Crash:
        pass
    again = found.after_crash(survival, seed + 1)
    reopen_and_check(again, oracle)


def reopen_and_check(disk: SimulatedDisk, oracle: Oracle) -> None:
    log = open_with_partitions(disk)
    try:
        oracle.check(DIRECTORY, disk)
        oracle.settle(DIRECTORY, disk)
        check_producers(log, oracle)
    finally:
        log.close()


def check_producers(log: Log, oracle: Oracle) -> None:
    """Everything that is in the log is known as a repeat; the next sequence is taken."""
    for (topic, partition), sent in oracle.sent.items():
        stream = log.stream(topic, partition)
        mine = [one for one in sent if one.producer is not None and not one.refused]
        for one in mine:
            result = log.append(stream, rows(0), producer=one.producer, sequence=one.sequence)
            assert result.is_repeat
            assert (result.first, result.end) == one.offsets
        if mine:
            last = mine[-1].sequence
            assert last is not None
            with pytest.raises(CalveError):
                log.append(stream, rows(0), producer="p", sequence=last + 2)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_crash_at_every_operation_keeps_a_prefix_with_all_acknowledged_rows(
    workload: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    total = count_operations(workload)
    tried = 0
    for at, survival in crash_points(total, list(Survival)):
        crash_once(workload, at, survival, seed=at)
        tried += 1
    with capsys.disabled():
        print(f"\n{workload.__name__}: {tried} crashes at {total} operations")


@pytest.mark.torture
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_crash_at_every_operation_torn_in_many_ways(
    workload: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    total = count_operations(workload)
    torn = [Survival.PREFIX, Survival.SCATTERED]
    tried = 0
    for seed in range(100):
        for at, survival in crash_points(total, torn):
            crash_once(workload, at, survival, seed=1000 * seed + at)
            tried += 1
    with capsys.disabled():
        print(f"\n{workload.__name__}: {tried} crashes at {total} operations")
