"""Looking at a log that somebody writes: the writer is neither waited for nor held up."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from calve.errors import Corruption
from calve.wal import Log, LogOptions, LogReader, OsFiles
from calve.wal.durable import read_durable
from calve.wal.files import FileLock
from calve.wal.inspect import describe_log
from calve.wal.layout import LogLayout
from calve.wal.survey import survey
from tests.fakes.disk import SimulatedDisk
from tests.fakes.oracle import TOPIC, read_values, rows

OPTIONS = LogOptions(free_bytes_min=0)
LOOKS = [survey, describe_log]

CUT_SHORT = """
import os, sys
from pathlib import Path
from calve.wal import LogReader, OsFiles
from calve.wal.durable import read_durable
from calve.wal.inspect import describe_log
from calve.wal.layout import LogLayout
from calve.wal.survey import survey
from tests.fakes.oracle import TOPIC, read_values

layout = LogLayout(Path(sys.argv[1]))

class CutShort(OsFiles):
    '''The writer cuts its segment to the durable end just after somebody opened it.'''

    def map(self, path):
        view = super().map(path)
        self._cut(path)
        return view

    def read_start(self, path, length=None):
        content = super().read_start(path, length)
        self._cut(path)
        return content

    def _cut(self, path):
        end = read_durable(OsFiles(), layout.durable)
        if path == layout.segment(end.segment):
            os.truncate(path, end.position)

def whole():
    assert survey(CutShort(), layout).damages == []

def described():
    assert describe_log(CutShort(), layout).problem is None

def readable():
    with LogReader(layout.root, files=CutShort()) as reader:
        assert read_values(reader, TOPIC) == [0, 1, 2]

{"survey": whole, "inspect": described, "read": readable}[sys.argv[2]]()
print("done")
"""


@pytest.mark.parametrize("look", ["survey", "inspect", "read"])
def test_a_segment_that_its_writer_cuts_short_ends_nobody(tmp_path: Path, look: str) -> None:
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        log.append(log.create_stream(TOPIC), rows(0, 3))
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CUT_SHORT), str(log.directory), look],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


class Interrupted(OsFiles):
    """Does something in the middle of a look, at every file that it opens."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def map(self, path: Path) -> memoryview:
        self._action()
        return super().map(path)

    def read_start(self, path: Path, length: int | None = None) -> bytes:
        self._action()
        return super().read_start(path, length)

    def lock(self, path: Path) -> FileLock | None:
        raise AssertionError("a look takes no lock")


@pytest.mark.parametrize("look", LOOKS)
def test_a_writer_can_start_while_somebody_looks(
    tmp_path: Path, look: Callable[..., object]
) -> None:
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        log.append(log.create_stream(TOPIC), rows(0, 3))
    started = 0

    def start() -> None:
        nonlocal started
        Log(tmp_path / "wal", OPTIONS, background=False).close()
        started += 1

    look(Interrupted(start), LogLayout(tmp_path / "wal"))
    assert started


def test_asking_for_the_lock_does_not_take_it(tmp_path: Path) -> None:
    layout = LogLayout(tmp_path / "wal")
    with Log(layout.root, OPTIONS, background=False):
        assert OsFiles().is_locked(layout.lock)
    assert not OsFiles().is_locked(layout.lock)
    lock = OsFiles().lock(layout.lock)
    assert lock is not None
    assert OsFiles().is_locked(layout.lock)
    lock.release()
    assert not OsFiles().is_locked(layout.lock)


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_goes_on_through_rotation_and_retention(
    tmp_path: Path, look: Callable[..., object]
) -> None:
    options = LogOptions(segment_bytes_max=8192, free_bytes_min=0, hot_window_seconds=-1)
    log = Log(tmp_path / "wal", options, background=False)
    stream = log.create_stream(TOPIC)
    for _ in range(3):
        log.append(stream, rows(0))
        log.rotate()

    layout = LogLayout(log.directory)
    for times in range(8):
        remaining = times

        def go_on() -> None:
            nonlocal remaining
            if remaining:
                remaining -= 1
                log.append(stream, rows(0))
                log.rotate()
                log.trim({stream.id: log.next_offset(stream)})

        found = look(Interrupted(go_on), layout)
        assert not getattr(found, "damages", []), "whole, whatever came between"
        assert not getattr(found, "problem", None)
    log.close()


def test_a_newest_segment_that_is_missing_is_an_error_of_the_log(tmp_path: Path) -> None:
    with Log(tmp_path / "wal", OPTIONS, background=False) as log:
        log.append(log.create_stream(TOPIC), rows(0))
        log.rotate()
    layout = LogLayout(tmp_path / "wal")
    layout.segment(2).unlink()
    with pytest.raises(Corruption, match="missing"):
        LogReader(layout.root)
    assert "missing" in (describe_log(OsFiles(), layout).problem or "")
    assert survey(OsFiles(), layout).damages


DIRECTORY = Path("/data/wal")


class Torn(SimulatedDisk):
    """Reads the end of a segment while it grows: its later bytes are newer than its earlier."""

    grow: Callable[[], None] | None = None

    def read_start(self, path: Path, length: int | None = None) -> bytes:
        old = super().read_start(path, length)
        grow, self.grow = self.grow, None
        if grow is None or length is not None:
            return old
        grow()
        at = len(old.rstrip(b"\0")) + 256
        return old[:at] + super().read_start(path, length)[at:]


def busy_log() -> tuple[Torn, Log]:
    disk = Torn()
    log = Log(DIRECTORY, OPTIONS, files=disk, background=False)
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(0))
    log.append(stream, rows(1))

    def grow() -> None:
        for i in range(3):
            log.append(stream, rows(2 + i))

    disk.grow = grow
    return disk, log


def test_what_is_written_during_a_look_is_not_taken_for_damage() -> None:
    disk, log = busy_log()
    found = survey(disk, LogLayout(DIRECTORY))
    assert found.damages == []
    assert disk.grow is None
    assert found.ends == {1: 2}, "only what was durable when the look began"
    log.close()


def test_damage_before_the_durable_end_is_found_beside_a_writer() -> None:
    disk, log = busy_log()
    layout = LogLayout(DIRECTORY)
    end = read_durable(disk, layout.durable).position
    disk.damage(layout.segment(1), lambda old: old.__setitem__(end - 100, old[end - 100] ^ 1))
    found = survey(disk, layout)
    assert [(one.first, one.end) for one in found.lost] == [(1, 2)]
    log.close()


def test_a_refresh_that_failed_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()

    def fail(_: Path) -> memoryview:
        raise OSError(24, "Too many open files")

    with Log(DIRECTORY, OPTIONS, files=disk, background=False) as log:
        stream = log.create_stream(TOPIC)
        log.append(stream, rows(0))
        reader = LogReader(DIRECTORY, files=disk)
        log.rotate()
        log.append(stream, rows(1))
        with monkeypatch.context() as patch:
            patch.setattr(disk, "map", fail)
            with pytest.raises(OSError, match="open files"):
                reader.refresh()
        assert reader.offsets(stream).durable == 1
        assert read_values(reader, TOPIC) == [0]
        reader.refresh()
        assert read_values(reader, TOPIC) == [0, 1]
