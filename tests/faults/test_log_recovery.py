"""Crashes inside recovery itself: whatever one left, the next recovery finds every acknowledged row.

Before it, the writer was killed with its writes still in the system's cache, lost power, or met a
sync that failed; after it, or in the middle of it, the power goes.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from calve.errors import CalveError
from tests.fakes.disk import Crash, SimulatedDisk, Survival
from tests.fakes.oracle import Oracle
from tests.faults.test_log_crashes import (
    DIRECTORY,
    WORKLOADS,
    Workload,
    count_operations,
    open_log,
    open_with_partitions,
    reopen_and_check,
)

Left = tuple[SimulatedDisk, Oracle]
POWER_CUTS = [Survival.NOTHING, Survival.SCATTERED, Survival.DATA_ONLY]


def killed(workload: Workload, at: int) -> Left:
    disk, oracle = SimulatedDisk(), Oracle()
    disk.crash_at = at
    with pytest.raises(Crash):
        workload(disk, oracle)
    return disk.after_kill(), oracle


def lost_power(workload: Workload, at: int) -> Left:
    disk, oracle = SimulatedDisk(), Oracle()
    disk.crash_at = at
    with pytest.raises(Crash):
        workload(disk, oracle)
    return disk.after_crash(Survival.PREFIX, seed=at), oracle


def failed_to_sync(workload: Workload, at: int) -> Left:
    """The kernel forgot that the pages are not on the disk; nobody can find out by syncing."""
    disk, oracle = SimulatedDisk(), Oracle()

    def fault(operation: str, found: SimulatedDisk) -> None:
        if len(found.operations) > at and operation.startswith("sync"):
            raise OSError(errno.EIO, "Input/output error")

    disk.fault = fault
    with suppress(CalveError):
        workload(disk, oracle)
    return disk.after_kill(), oracle


def recoveries(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """The disk after a recovery that a power cut ended at each of its operations, or followed."""
    whole = disk.after_kill()
    open_log(whole)
    for at, survival in itertools.product(range(len(whole.operations)), POWER_CUTS):
        found = disk.after_kill()
        found.crash_at = at
        with pytest.raises(Crash):
            open_log(found)
        yield found.after_crash(survival, seed=at)
    for survival in POWER_CUTS:
        yield whole.after_crash(survival, seed=0)


def check_each(workload: Workload, leave: object, step: int) -> int:
    total = count_operations(workload)
    made = SimulatedDisk()
    open_with_partitions(made)
    tried = 0
    for at in range(len(made.operations), total, step):
        disk, oracle = leave(workload, at)  # type: ignore[operator]
        for found in recoveries(disk):
            reopen_and_check(found, copy_of(oracle))
            tried += 1
    return tried


def copy_of(oracle: Oracle) -> Oracle:
    """Each disk decides by itself what became of the appends that were not acknowledged."""
    sent = {key: [replace(one) for one in many] for key, many in oracle.sent.items()}
    return Oracle(sent, dict(oracle.committed), oracle.next_value)


@pytest.mark.parametrize("leave", [killed, lost_power, failed_to_sync])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_crash_at_every_operation_of_a_recovery_keeps_all_acknowledged_rows(
    workload: Workload, leave: object, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = check_each(workload, leave, step=7)
    with capsys.disabled():
        print(f"\n{workload.__name__}: {tried} crashes in recoveries")
    assert tried > 100


def go_on(disk: SimulatedDisk, oracle: Oracle) -> None:
    log = open_with_partitions(disk)
    oracle.settle(DIRECTORY, disk)
    for partition in (0, 1):
        oracle.append(log, partition)
        log.rotate()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_crash_at_every_operation_after_a_recovery_keeps_all_acknowledged_rows(
    workload: Workload,
) -> None:
    for at in range(20, count_operations(workload), 11):
        disk, oracle = killed(workload, at)
        whole = disk.after_kill()
        go_on(whole, copy_of(oracle))
        for later in range(len(whole.operations)):
            found, expected = disk.after_kill(), copy_of(oracle)
            found.crash_at = later
            with pytest.raises(Crash):
                go_on(found, expected)
            reopen_and_check(found.after_crash(Survival.NOTHING, seed=later), expected)


@pytest.mark.torture
@pytest.mark.parametrize("leave", [killed, lost_power, failed_to_sync])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_crash_at_every_operation_of_every_recovery(workload: Workload, leave: object) -> None:
    assert check_each(workload, leave, step=1) > 1000


@pytest.mark.parametrize("leave", [killed, failed_to_sync])
def test_what_a_recovery_found_in_the_cache_survives_a_power_cut(leave: object) -> None:
    """A reader may have seen it, and the durable end speaks of it."""
    for workload in WORKLOADS:
        for at in range(20, count_operations(workload)):
            disk, oracle = leave(workload, at)  # type: ignore[operator]
            open_with_partitions(disk)
            oracle.settle(DIRECTORY, disk)  # from here on, all of it counts as acknowledged
            reopen_and_check(disk.after_crash(Survival.NOTHING, seed=at), oracle)
