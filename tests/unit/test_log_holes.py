"""Known loss: one frame, whatever it covers."""

from __future__ import annotations

from pathlib import Path

from calve.wal import Kind, Log, LogOptions, LogReader
from calve.wal.frame import LONG_VERSION, VERSION
from calve.wal.layout import LogLayout
from calve.wal.repair import AcceptedLoss, repair
from calve.wal.survey import survey
from tests.fakes.disk import SimulatedDisk
from tests.fakes.oracle import TOPIC, rows

DIRECTORY = Path("/data/wal")
LAYOUT = LogLayout(DIRECTORY)
FAR = 1 << 62


def open_log(disk: SimulatedDisk) -> Log:
    return Log(DIRECTORY, LogOptions(free_bytes_min=0), files=disk, background=False)


def entries(disk: SimulatedDisk) -> list[tuple[Kind, int, int]]:
    with LogReader(DIRECTORY, files=disk) as reader:
        found = reader.read(reader.stream(TOPIC), 0)
        return [(entry.kind, entry.first_offset, entry.end_offset) for entry in found]


def holes(disk: SimulatedDisk) -> list[tuple[int, int]]:
    segments = survey(disk, LAYOUT).segments
    frames = [frame for segment in segments for frame in segment.frames]
    return [(f.version, f.end_offset) for f in frames if f.kind == Kind.HOLE]


def test_a_hole_over_any_number_of_offsets_is_one_frame() -> None:
    disk = SimulatedDisk()
    with open_log(disk) as log:
        stream = log.create_stream(TOPIC)
        log.append(stream, rows(0))
        log.record_hole(stream, 1, 3)
        log.record_hole(stream, 3, FAR)
        assert log.append(stream, rows(1)).first == FAR
    assert holes(disk) == [(VERSION, 3), (LONG_VERSION, FAR)]
    expected = [
        (Kind.ROWS, 0, 1),
        (Kind.HOLE, 1, 3),
        (Kind.HOLE, 3, FAR),
        (Kind.ROWS, FAR, FAR + 1),
    ]
    assert entries(disk) == expected
    with open_log(disk) as log:
        log.rotate()
        assert log.append(log.stream(TOPIC), rows(2)).first == FAR + 1
    assert entries(disk) == [*expected, (Kind.ROWS, FAR + 1, FAR + 2)]


def test_a_repair_over_any_number_of_offsets_writes_one_hole() -> None:
    disk = SimulatedDisk()
    with open_log(disk) as log:
        stream = log.create_stream(TOPIC)
        log.append(stream, rows(0))
        log.append(stream, rows(1))
    disk.damage(LAYOUT.segment(1), lambda content: content.__setitem__(-100, content[-100] ^ 1))
    repair(disk, LAYOUT, [AcceptedLoss(TOPIC, 0, 1, FAR)], dry_run=False)
    assert holes(disk) == [(VERSION, 2), (LONG_VERSION, FAR)]
    assert entries(disk) == [(Kind.ROWS, 0, 1), (Kind.HOLE, 1, 2), (Kind.HOLE, 2, FAR)]
    with open_log(disk) as log:
        assert log.append(log.stream(TOPIC), rows(2)).first == FAR
