"""Disks that fail: nothing is acknowledged wrongly; the log recovers, or says that it stopped."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from calve.errors import CalveError, Fenced, Unavailable, UnknownOutcome
from calve.wal import Log, LogOptions, LogReader
from calve.wal.options import SyncMode
from tests.fakes.disk import PartialWrite, SimulatedDisk, Survival
from tests.fakes.oracle import TOPIC, Oracle, read_values, rows
from tests.faults.test_log_crashes import DIRECTORY, open_log, open_with_partitions

EIO = OSError(errno.EIO, "Input/output error")
ENOSPC = OSError(errno.ENOSPC, "No space left on device")


def fail(operation: str, error: Exception, times: int = 1) -> Callable[[str, SimulatedDisk], None]:
    remaining = times

    def fault(found: str, disk: SimulatedDisk) -> None:
        nonlocal remaining
        if found == operation and remaining > 0:
            remaining -= 1
            raise error

    return fault


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


def check_after_power_cut(disk: SimulatedDisk, oracle: Oracle) -> None:
    found = disk.after_crash(Survival.NOTHING, 0)
    open_log(found).close()
    oracle.check(DIRECTORY, found)


def test_a_failed_sync_acknowledges_nothing_and_stops_the_log(
    disk: SimulatedDisk, oracle: Oracle
) -> None:
    log = open_with_partitions(disk)
    oracle.append(log)
    disk.fault = fail("sync", EIO)
    with pytest.raises(UnknownOutcome):
        log.append(log.stream(TOPIC), rows(77))
    with pytest.raises(Fenced) as stopped:
        oracle.append(log)
    assert stopped.value.hint
    log.close()


def test_rows_of_a_failed_sync_are_written_again_before_they_count(
    disk: SimulatedDisk, oracle: Oracle
) -> None:
    """The kernel keeps such pages as clean; the next sync says yes and writes nothing."""
    log = open_with_partitions(disk)
    oracle.append(log)
    disk.fault = fail("sync", EIO)
    assert oracle.append(log) is None
    log.close()
    log = open_log(disk)
    oracle.settle(DIRECTORY, disk)
    oracle.append(log)
    oracle.check(DIRECTORY, disk)
    check_after_power_cut(disk, oracle)


def test_a_disk_that_never_syncs_again_cannot_be_opened(
    disk: SimulatedDisk, oracle: Oracle
) -> None:
    log = open_with_partitions(disk)
    oracle.append(log)
    disk.fault = fail("sync", EIO, times=1_000_000)
    assert oracle.append(log) is None
    log.close()
    with pytest.raises(Unavailable):
        open_log(disk)
    check_after_power_cut(disk, oracle)


@pytest.mark.parametrize("error", [EIO, ENOSPC, PartialWrite(EIO), PartialWrite(ENOSPC)], ids=str)
def test_a_failed_write_leaves_no_trace_and_the_log_goes_on(
    disk: SimulatedDisk, oracle: Oracle, error: Exception
) -> None:
    log = open_with_partitions(disk)
    oracle.append(log, count=3)
    disk.fault = fail("write", error)
    with pytest.raises(Unavailable) as refused:
        oracle.append(log, count=3)
    assert refused.value.context["retry_after_ms"]
    oracle.append(log)
    oracle.check(DIRECTORY, disk)
    check_after_power_cut(disk, oracle)


def test_a_failed_write_does_not_come_back_after_a_crash(
    disk: SimulatedDisk, oracle: Oracle
) -> None:
    log = open_with_partitions(disk)
    stream = log.stream(TOPIC)
    oracle.append(log)
    pending = [log.submit(stream, rows(100 + i)) for i in range(3)]  # one group
    disk.fault = fail("write", PartialWrite(ENOSPC))
    for handle in pending:
        with pytest.raises(Unavailable):
            handle.wait()
    found = disk.after_crash(Survival.EVERYTHING, 0)
    open_log(found).close()
    oracle.check(DIRECTORY, found)


def test_a_write_that_cannot_be_undone_stops_the_log(disk: SimulatedDisk, oracle: Oracle) -> None:
    log = open_with_partitions(disk)
    oracle.append(log)

    def fault(operation: str, disk: SimulatedDisk) -> None:
        if operation in ("write", "truncate"):
            raise EIO

    disk.fault = fault
    assert oracle.append(log) is None
    disk.fault = None
    with pytest.raises(Fenced):
        oracle.append(log)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_an_interrupted_call_is_made_again(
    disk: SimulatedDisk, oracle: Oracle, operation: str
) -> None:
    log = open_with_partitions(disk)
    disk.fault = fail(operation, InterruptedError(errno.EINTR, "Interrupted"), times=3)
    assert oracle.append(log) is not None
    check_after_power_cut(disk, oracle)


def test_short_writes_are_continued(disk: SimulatedDisk, oracle: Oracle) -> None:
    disk.short_writes = True
    log = open_with_partitions(disk)
    for _ in range(12):
        assert oracle.append(log, count=2) is not None
    log.close()
    oracle.check(DIRECTORY, disk)


def script(disk: SimulatedDisk, oracle: Oracle) -> None:
    """Appends, rotations and retention that go on, or open the log again, after every error."""
    log: Log | None = None
    for i in range(18):
        if log is not None and log.is_fenced:
            log.close()
            log = None
        with suppress(CalveError):
            log = log or reopen(disk, oracle)
            oracle.append(log, partition=i % 2, count=2)
            if i % 6 == 5:
                rotate_and_trim(log, oracle)
    if log is not None:
        with suppress(CalveError):
            log.close()


def rotate_and_trim(log: Log, oracle: Oracle) -> None:
    log.rotate()
    ends = {stream: log.next_offset(stream) for stream in log.streams}
    oracle.committed = {(s.topic, s.partition): end for s, end in ends.items()}
    log.trim({stream.id: end for stream, end in ends.items()})


def reopen(disk: SimulatedDisk, oracle: Oracle) -> Log:
    log = open_with_partitions(disk)
    oracle.settle(DIRECTORY, disk)
    return log


def test_a_fault_at_every_operation_acknowledges_nothing_wrongly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = SimulatedDisk()
    script(disk, Oracle())
    total = len(disk.operations)
    tried = 0
    for at in range(total):
        for error in (EIO, ENOSPC):
            run_with_fault(at, error)
            tried += 1
    with capsys.disabled():
        print(f"\n{tried} faults at {total} operations")


def run_with_fault(at: int, error: OSError) -> None:
    disk = SimulatedDisk()
    oracle = Oracle()

    def fault(operation: str, disk: SimulatedDisk) -> None:
        if len(disk.operations) == at + 1:
            raise PartialWrite(error) if operation == "write" else error

    disk.fault = fault
    script(disk, oracle)
    open_log(disk).close()
    oracle.settle(DIRECTORY, disk)
    oracle.check(DIRECTORY, disk)
    check_after_power_cut(disk, oracle)


def test_a_log_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable) as refused:
        Log(tmp_path / "file" / "wal", background=False)
    assert "cannot be opened" in refused.value.message


EMFILE = OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("error", [ENOSPC, EMFILE], ids=str)
def test_a_segment_that_cannot_be_made_is_made_later(
    disk: SimulatedDisk, oracle: Oracle, error: OSError
) -> None:
    log = open_with_partitions(disk)
    oracle.append(log)
    disk.fault = fail("create", error, times=2)
    with pytest.raises(Unavailable):
        log.rotate()
    with pytest.raises(Unavailable):
        oracle.append(log)
    assert not log.is_fenced
    oracle.append(log)
    log.rotate()
    oracle.append(log)
    log.close()
    open_log(disk).close()
    oracle.check(DIRECTORY, disk)


@pytest.mark.parametrize("operation", ["write", "create"])
def test_a_full_disk_makes_committed_rows_go_and_is_tried_again(
    disk: SimulatedDisk, operation: str
) -> None:
    log = Log(DIRECTORY, LogOptions(free_bytes_min=0), files=disk, background=False)
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(0))
    log.rotate()
    log.append(stream, rows(1))

    def go_on() -> None:
        disk.fault = fail(operation, ENOSPC)
        log.append(stream, rows(2)) if operation == "write" else log.rotate()

    with pytest.raises(Unavailable):
        go_on()
    assert published(disk) == [0, 1], "nothing is committed"
    assert log.trim({stream.id: 1}) == 0, "committed, but hot"
    go_on()
    log.append(stream, rows(3))
    with LogReader(DIRECTORY, files=disk) as reader:
        assert reader.offsets(stream).first == 1
        assert read_values(reader, TOPIC, start=1) == (
            [1, 2, 3] if operation == "write" else [1, 3]
        )


def test_a_look_at_the_disk_that_fails_stops_nothing(
    disk: SimulatedDisk, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_with_partitions(disk)
    oracle.append(log)
    log.rotate()
    oracle.append(log)

    def refuse(_: Path) -> int:
        raise EMFILE

    with monkeypatch.context() as patch:
        patch.setattr(disk, "map", refuse)
        with pytest.raises(Unavailable):
            log.trim({})
    with monkeypatch.context() as patch:
        patch.setattr(disk, "free_bytes", refuse)
        patch.setattr(disk, "size", refuse)
        log._journal._bound._checked_at = float("-inf")
        with pytest.raises(Unavailable):
            oracle.append(log)
    oracle.append(log)
    oracle.check(DIRECTORY, disk)


def test_every_refusal_is_an_error_of_its_own(disk: SimulatedDisk) -> None:
    log = open_with_partitions(disk)
    pending = log.submit(log.stream(TOPIC), rows(1))
    disk.fault = fail("sync", EIO)
    refusals: list[CalveError] = []
    for call in [pending.wait] * 3 + [log.flush] * 3:
        with pytest.raises((UnknownOutcome, Fenced)) as refused:
            call()
        refusals.append(refused.value)
    assert len({id(refusal) for refusal in refusals}) == len(refusals)
    assert {type(refusal) for refusal in refusals[3:]} == {Fenced}


@pytest.mark.parametrize("mode", ["periodic", "none"])
@pytest.mark.parametrize("ending", ["flush", "close"])
def test_rows_that_were_sealed_are_published_although_there_is_no_room_for_more(
    disk: SimulatedDisk, mode: SyncMode, ending: str
) -> None:
    """The seal synced them; the next segment waits for space, and then comes by itself."""
    options = LogOptions(sync_mode=mode, sync_interval_seconds=3600, free_bytes_min=0)
    log = Log(DIRECTORY, options, files=disk, background=False)
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(0, 3))
    assert published(disk) == []
    disk.fault = fail("create", ENOSPC, times=1_000_000)
    with pytest.raises(Unavailable):
        log.rotate()
    assert published(disk) == [0, 1, 2]
    with pytest.raises(Unavailable) as refused:
        log.append(stream, rows(9))
    assert refused.value.context["retry_after_ms"]
    log.flush()
    disk.fault = None
    assert log.append(stream, rows(3)).first == 3
    log.flush() if ending == "flush" else log.close()
    assert published(disk) == [0, 1, 2, 3]


def published(disk: SimulatedDisk) -> list[object]:
    with LogReader(DIRECTORY, files=disk) as reader:
        return read_values(reader, TOPIC)


@pytest.mark.parametrize("ending", [Log.flush, Log.close])
def test_a_sync_publishes_what_was_synced_before_it(
    disk: SimulatedDisk, ending: Callable[[Log], None]
) -> None:
    options = LogOptions(sync_mode="none", free_bytes_min=0)
    log = Log(DIRECTORY, options, files=disk, background=False)
    log.append(log.create_stream(TOPIC), rows(0, 3))
    log._journal._segment.seal()
    assert published(disk) == []
    ending(log)
    assert published(disk) == [0, 1, 2]


def test_an_interrupted_sync_does_not_keep_a_failed_write_from_being_undone(
    disk: SimulatedDisk, oracle: Oracle
) -> None:
    log = open_with_partitions(disk)
    oracle.append(log)
    faults = iter([PartialWrite(ENOSPC), None, InterruptedError(errno.EINTR, "Interrupted")])

    def fault(_: str, __: SimulatedDisk) -> None:
        error = next(faults, None)
        if error is not None:
            raise error

    disk.fault = fault
    with pytest.raises(Unavailable):
        oracle.append(log)
    assert not log.is_fenced
    oracle.append(log)
    check_after_power_cut(disk, oracle)


@pytest.mark.parametrize("use", [Log.flush, Log.rotate, lambda log: log.trim({})])
def test_nothing_says_yes_after_the_write_on_the_way_to_it_stopped_the_log(
    disk: SimulatedDisk, use: Callable[[Log], object]
) -> None:
    """What was submitted before is written first, and here cannot even be taken back."""
    log = open_with_partitions(disk)
    handle = log.submit(log.stream(TOPIC), rows(0))

    def fault(operation: str, _: SimulatedDisk) -> None:
        if operation in ("write", "truncate"):
            raise EIO

    disk.fault = fault
    with pytest.raises(Fenced):
        use(log)
    with pytest.raises(UnknownOutcome):
        handle.wait(5)
    log.close()


@pytest.mark.parametrize("sync_mode", ["always", "none"])
def test_rows_of_a_failed_sync_are_written_again_also_when_reads_are_short(
    disk: SimulatedDisk, oracle: Oracle, sync_mode: SyncMode
) -> None:
    """As they are above 2 GiB."""
    log = open_with_partitions(disk)
    oracle.append(log, count=50)
    disk.fault = fail("sync", EIO)
    assert oracle.append(log, count=50) is None
    log.close()
    disk.short_reads = True
    Log(DIRECTORY, LogOptions(free_bytes_min=0, sync_mode=sync_mode), files=disk).close()
    oracle.settle(DIRECTORY, disk)
    assert len(read_values(LogReader(DIRECTORY, files=disk), TOPIC)) == 100
    check_after_power_cut(disk, oracle)
