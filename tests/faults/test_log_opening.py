"""Opening: takes nothing away because of a wrong file, and gives everything back when it fails."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from calve.errors import CalveError, Corruption, NotFound, Unavailable
from calve.wal import Log, LogOptions, LogReader, OsFiles
from calve.wal.durable import DurableFile, read_durable
from calve.wal.files import Bytes, File, FileLock
from calve.wal.inspect import require_log
from calve.wal.layout import LogLayout
from calve.wal.repair import AcceptedLoss, repair, rewrite_durable
from calve.wal.survey import survey
from tests.fakes.disk import SimulatedDisk
from tests.fakes.oracle import TOPIC, read_values, rows
from tests.faults.test_log_crashes import DIRECTORY, open_log

LAYOUT = LogLayout(DIRECTORY)


def four_segments() -> SimulatedDisk:
    """Row n is in segment n + 1; nothing is committed."""
    disk = SimulatedDisk()
    with open_log(disk) as log:
        stream = log.create_stream(TOPIC)
        for i in range(4):
            if i:
                log.rotate()
            log.append(stream, rows(i))
    return disk


def say_first(disk: SimulatedDisk, first: int) -> None:
    end = read_durable(disk, LAYOUT.durable)
    DurableFile.create(disk, LAYOUT.durable, end._replace(first_segment=first))


def open_cold(disk: SimulatedDisk) -> Log:
    """Whatever is committed may go at once."""
    options = LogOptions(segment_bytes_max=8192, free_bytes_min=0, hot_window_seconds=-(10**9))
    return Log(DIRECTORY, options, files=disk, background=False)


def read_from(disk: SimulatedDisk, start: int) -> list[object]:
    with LogReader(DIRECTORY, files=disk) as reader:
        return read_values(reader, TOPIC, start=start)


@pytest.mark.parametrize("first", [2, 3, 4])
def test_a_durable_file_that_is_wrong_in_its_first_segment_takes_no_rows(first: int) -> None:
    disk = four_segments()
    say_first(disk, first)
    assert not survey(disk, LAYOUT).damages
    open_log(disk).close()
    assert read_from(disk, 0) == [0, 1, 2, 3]
    with open_cold(disk) as log:
        stream = log.stream(TOPIC)
        assert log.trim({stream.id: 2}) == 2, "only what is committed goes"
    assert read_from(disk, 2) == [2, 3]


def test_what_an_interrupted_removal_left_goes_when_it_is_committed() -> None:
    """A gap in what is left: those before it are no part of the log any more, and yet are kept
    until somebody says that their rows are committed."""
    disk = four_segments()
    say_first(disk, 4)
    disk.unlink(LAYOUT.segment(2))
    with open_cold(disk) as log:
        assert disk.exists(LAYOUT.segment(1))
        assert read_from(disk, 2) == [2, 3]
        stream = log.stream(TOPIC)
        log.trim({stream.id: 0})
        assert disk.exists(LAYOUT.segment(1))
        log.trim({stream.id: 1})
        assert not disk.exists(LAYOUT.segment(1))
        assert disk.exists(LAYOUT.segment(3))


@pytest.mark.parametrize("spoil", [0, 200, -10], ids=["header", "state", "seal"])
def test_a_segment_before_the_first_that_is_not_whole_stops_nobody_and_stays(spoil: int) -> None:
    disk = four_segments()
    say_first(disk, 3)
    disk.damage(LAYOUT.segment(2), lambda old: old.__setitem__(spoil, old[spoil] ^ 1))
    content = disk.read(LAYOUT.segment(2))
    with open_cold(disk) as log:
        log.trim({stream.id: 1 for stream in log.streams})
    assert disk.read(LAYOUT.segment(2)) == content
    assert read_from(disk, 2) == [2, 3]


class FailsAt:
    """Counts every call to the disk, and lets one of them fail."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.at is not None and self.calls == self.at + 1:
            raise OSError(5, "Input/output error")


class FailingFile:
    def __init__(self, file: File, step: FailsAt) -> None:
        self._file = file
        self._step = step

    def read_at(self, position: int, length: int) -> bytes:
        self._step()
        return self._file.read_at(position, length)

    def write_at(self, position: int, buffers: Sequence[Bytes]) -> int:
        self._step()
        return self._file.write_at(position, buffers)

    def sync(self) -> None:
        self._step()
        self._file.sync()

    def truncate(self, length: int) -> None:
        self._step()
        self._file.truncate(length)

    def preallocate(self, length: int) -> None:
        self._step()
        self._file.preallocate(length)

    def size(self) -> int:
        self._step()
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class FailingFiles(OsFiles):
    def __init__(self, step: FailsAt) -> None:
        self._step = step

    def create(self, path: Path) -> File:
        self._step()
        return FailingFile(super().create(path), self._step)

    def open(self, path: Path) -> File:
        self._step()
        return FailingFile(super().open(path), self._step)

    def read(self, path: Path) -> bytes:
        self._step()
        return super().read(path)

    def read_start(self, path: Path, length: int | None = None) -> bytes:
        self._step()
        return super().read_start(path, length)

    def map(self, path: Path) -> memoryview:
        self._step()
        return super().map(path)

    def exists(self, path: Path) -> bool:
        self._step()
        return super().exists(path)

    def names(self, directory: Path) -> list[str]:
        self._step()
        return super().names(directory)

    def sizes(self, directory: Path) -> dict[str, int]:
        self._step()
        return super().sizes(directory)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)

    def lock(self, path: Path) -> FileLock | None:
        self._step()
        return super().lock(path)

    def place(self, path: Path) -> str:
        self._step()
        return super().place(path)


OPTIONS = LogOptions(segment_bytes_max=65_536, free_bytes_min=0)


def open_on(path: Path, step: FailsAt) -> Log:
    return Log(path, OPTIONS, files=FailingFiles(step), background=False)


def nothing(path: Path) -> None:
    """A log that is yet to be made."""


def killed_after_appends(path: Path) -> None:
    """Rows behind the durable end, a torn tail, a draft."""
    with open_on(path, FailsAt()) as log:
        log.append(log.create_stream(TOPIC), rows(0))
        end = (path / "durable").read_bytes()
        log.append(log.stream(TOPIC), rows(1))
    (path / "durable").write_bytes(end)
    (path / "00000000000000000002.seg.tmp").write_bytes(b"half")
    with (path / "00000000000000000001.seg").open("ab") as file:
        file.write(b"CLVF torn")


def killed_after_the_seal(path: Path) -> None:
    with open_on(path, FailsAt()) as log:
        log.append(log.create_stream(TOPIC), rows(0))
        end = (path / "durable").read_bytes()
        log.append(log.stream(TOPIC), rows(1))
        log.rotate()
    (path / "durable").write_bytes(end)
    (path / "00000000000000000002.seg").unlink()


STARTS = [nothing, killed_after_appends, killed_after_the_seal]


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def fail_to_open(path: Path, at: int) -> None:
    """Apart, so that nothing holds the error and with it what it was raised over."""
    with pytest.raises(Unavailable, match="cannot be opened"):
        open_on(path, FailsAt(at))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors as Linux does")
@pytest.mark.parametrize("start", STARTS)
def test_a_failure_at_every_call_of_an_opening_leaves_nothing_open(
    tmp_path: Path, start: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path / "counted")
    step = FailsAt()
    log = open_on(tmp_path / "counted", step)
    total = step.calls
    log.close()
    for at in range(total):
        path = tmp_path / f"{at}"
        start(path)
        before = descriptors()
        fail_to_open(path, at)
        assert descriptors() == before, f"left open by a failure at call {at}"
        with open_on(path, FailsAt()) as log:
            if log.streams:
                with log.reader() as reader:
                    assert read_values(reader, TOPIC) == [0, 1]
    with capsys.disabled():
        print(f"\n{start.__name__}: {total} failed openings")


def test_a_thread_that_cannot_be_started_leaves_the_log_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            Log(tmp_path / "wal", OPTIONS)
    Log(tmp_path / "wal", OPTIONS, background=False).close()


def test_a_reader_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    killed_after_appends(path)
    open_on(path, FailsAt()).close()
    step = FailsAt()
    LogReader(path, files=FailingFiles(step)).close()
    before = descriptors()
    for at in range(step.calls):
        with suppress(OSError, CalveError):
            LogReader(path, files=FailingFiles(FailsAt(at)))
        assert descriptors() == before


class NotesOrder(OsFiles):
    def __init__(self) -> None:
        self.done: list[tuple[str, Path]] = []

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.done.append(("sync", path))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.done.append(("rename", target))


@pytest.mark.parametrize("is_there", [True, False])
def test_the_directorys_own_name_is_on_the_disk_before_a_log_is_in_it(
    tmp_path: Path, is_there: bool
) -> None:
    """Also when it was there: whoever made it may have been killed before its sync."""
    path = tmp_path / "data" / "wal"
    if is_there:
        path.mkdir(parents=True)
    files = NotesOrder()
    Log(path, LogOptions(free_bytes_min=0), files=files, background=False).close()
    identity = files.done.index(("rename", LogLayout(path).identity))
    assert ("sync", path.parent) in files.done[:identity]
    assert is_there or ("sync", tmp_path) in files.done[:identity]


def test_a_directory_above_that_may_not_be_read_stops_nobody(tmp_path: Path) -> None:
    class Unreadable(OsFiles):
        def sync_directory(self, path: Path) -> None:
            if path == tmp_path:
                raise PermissionError(path)
            super().sync_directory(path)

    path = tmp_path / "wal"
    path.mkdir()
    Log(path, LogOptions(free_bytes_min=0), files=Unreadable(), background=False).close()


def without(disk: SimulatedDisk, *paths: Path) -> SimulatedDisk:
    copy = disk.copy()
    for path in paths:
        copy.unlink(path)
    return copy


def one_segment() -> SimulatedDisk:
    disk = SimulatedDisk()
    with open_log(disk) as log:
        log.append(log.create_stream(TOPIC), rows(0, 3))
    return disk


@pytest.mark.parametrize("kept", ["identity", "durable"])
def test_a_log_without_any_segment_is_damaged_and_not_absent(kept: str) -> None:
    disk = one_segment()
    other = LAYOUT.durable if kept == "identity" else LAYOUT.identity
    with pytest.raises(Corruption):
        require_log(without(disk, LAYOUT.segment(1), other), LAYOUT)
    with pytest.raises(NotFound):
        require_log(without(disk, LAYOUT.segment(1), LAYOUT.durable, LAYOUT.identity), LAYOUT)


def test_a_reader_of_a_log_that_lost_its_identity_says_so() -> None:
    disk = one_segment()
    with pytest.raises(Corruption):
        LogReader(DIRECTORY, files=without(disk, LAYOUT.identity))


def test_no_log_is_made_over_one_that_durable_knows_to_have_rows() -> None:
    """Its identity is lost, and its only segment was cut where the rows began."""
    disk = one_segment()
    with LogReader(DIRECTORY, files=disk) as reader:
        begin = reader._tail.segment.frames_from
    disk.damage(LAYOUT.segment(1), lambda content: content.__delitem__(slice(begin, None)))
    disk.unlink(LAYOUT.identity)
    before = disk.read(LAYOUT.segment(1))
    with pytest.raises(Corruption):
        open_log(disk)
    assert disk.read(LAYOUT.segment(1)) == before


@pytest.mark.parametrize("size", [100, 8192], ids=["header", "everything"])
def test_a_lost_durable_end_can_be_written_over_a_newest_segment_that_is_damaged(
    size: int,
) -> None:
    disk = four_segments()
    disk.unlink(LAYOUT.durable)
    disk.damage(LAYOUT.segment(4), lambda old: old.__setitem__(slice(0, size), bytes(size)))
    rewrite_durable(disk, LAYOUT)
    assert [damage.path for damage in survey(disk, LAYOUT).damages] == [LAYOUT.segment(4)]
    repair(disk, LAYOUT, [], accept_unknown=True, dry_run=False)
    open_log(disk).close()
    assert read_from(disk, 0) == ([0, 1, 2, 3] if size == 100 else [0, 1, 2])


def test_a_lost_durable_end_can_be_written_although_a_segment_is_missing() -> None:
    disk = four_segments()
    disk.unlink(LAYOUT.durable)
    disk.unlink(LAYOUT.segment(3))
    rewrite_durable(disk, LAYOUT)
    assert [damage.path for damage in survey(disk, LAYOUT).damages] == [LAYOUT.segment(3)]
    repair(disk, LAYOUT, [AcceptedLoss(TOPIC, 0, 2, 3)], dry_run=False)
    open_log(disk).close()
    assert read_from(disk, 0) == [0, 1, "hole", 3]


def test_a_deleted_stream_has_no_offsets() -> None:
    with open_log(SimulatedDisk()) as log:
        stream = log.create_stream(TOPIC)
        log.delete_stream(stream)
        with pytest.raises(NotFound, match="deleted"):
            log.next_offset(stream)
        with pytest.raises(NotFound, match="deleted"):
            log.record_hole(stream, 0, 1)


def test_a_content_sum_is_looked_for_while_retention_removes() -> None:
    with open_cold(four_segments()) as log:
        stream = log.stream(TOPIC)
        reader = log.reader()
        assert reader.offsets(stream).first == 0
        assert log.trim({stream.id: 3}) == 3
        assert reader.content_sum(stream, 2) is None
