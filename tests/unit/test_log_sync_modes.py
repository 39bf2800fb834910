"""What each sync mode promises, on a disk that loses everything unsynced."""

from __future__ import annotations

from pathlib import Path

import pytest

from calve.clock import SystemClock
from calve.settings.tree import WalSettings
from calve.wal import Log, LogOptions, LogReader
from calve.wal.options import SyncMode
from tests.fakes.disk import SimulatedDisk, Survival
from tests.fakes.oracle import TOPIC, read_values, rows

DIRECTORY = Path("/wal")


def open_log(disk: SimulatedDisk, mode: SyncMode, *, background: bool = False) -> Log:
    options = LogOptions(
        sync_mode=mode,
        sync_interval_seconds=0.01 if background else 60,
        free_bytes_min=0,
        segment_bytes_max=16_384,
    )
    return Log(DIRECTORY, options, files=disk, background=background)


def after_power_cut(disk: SimulatedDisk) -> list[object]:
    found = disk.after_crash(Survival.NOTHING, 0)
    open_log(found, "always").close()
    with LogReader(DIRECTORY, files=found) as reader:
        return read_values(reader, TOPIC)


def after_kill(disk: SimulatedDisk) -> list[object]:
    found = disk.after_crash(Survival.EVERYTHING, 0)
    open_log(found, "always").close()
    with LogReader(DIRECTORY, files=found) as reader:
        return read_values(reader, TOPIC)


def test_always_loses_nothing() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, "always")
    stream = log.create_stream(TOPIC)
    for i in range(30):
        log.append(stream, rows(i))
        assert after_power_cut(disk) == list(range(i + 1))


@pytest.mark.parametrize("mode", ["periodic", "none"])
def test_the_other_modes_lose_nothing_when_the_process_dies(mode: SyncMode) -> None:
    disk = SimulatedDisk()
    log = open_log(disk, mode)
    stream = log.create_stream(TOPIC)
    syncs = disk.operations.count("sync")
    for i in range(5):
        log.append(stream, rows(i))
    assert disk.operations.count("sync") == syncs
    assert after_kill(disk) == list(range(5))
    assert after_power_cut(disk) == []


def test_periodic_syncs_by_itself_within_the_interval() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, "periodic", background=True)
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(0))
    with log.reader() as reader:
        assert reader.wait(stream, 0, timeout_seconds=5)
    assert after_power_cut(disk) == [0]
    log.close()


def test_none_syncs_at_rotation_and_at_the_end() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, "none")
    stream = log.create_stream(TOPIC)
    for i in range(100):
        log.append(stream, rows(i))
    found = after_power_cut(disk)
    assert 0 < len(found) < 100
    assert found == list(range(len(found)))
    log.close()
    assert after_power_cut(disk) == list(range(100))


def test_the_settings_become_options() -> None:
    settings = WalSettings(sync_mode="periodic", sync_interval_ms=250, disk_bytes_max=1 << 33)
    options = LogOptions.of(settings)
    assert (options.sync_mode, options.sync_interval_seconds) == ("periodic", 0.25)
    assert options.disk_bytes_max == 1 << 33
    assert options.segment_bytes_max == 64 << 20


class ManualClock(SystemClock):
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_periodic_syncs_in_time_under_constant_load() -> None:
    """Without the log's thread, which has no time for it while appends keep coming."""
    disk, clock = SimulatedDisk(), ManualClock()
    options = LogOptions(sync_mode="periodic", sync_interval_seconds=1, free_bytes_min=0)
    log = Log(DIRECTORY, options, files=disk, clock=clock, background=False)
    stream = log.create_stream(TOPIC)
    synced = []
    for i in range(10):
        clock.seconds += 0.4
        before = disk.operations.count("sync")
        log.append(stream, rows(i))
        synced.append(disk.operations.count("sync") > before)
    assert synced == [False, False, True] * 3 + [False]
    assert after_power_cut(disk) == list(range(9))
