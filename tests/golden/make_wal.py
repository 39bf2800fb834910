"""Makes the golden logs: one directory per case, with what a reader must find in it.

    python -m tests.golden.make_wal

Run it for a change of the format only, into a directory of its own; what older builds wrote stays
as it is. Names, numbers and times are fixed, so that two runs write the same.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock
from uuid import UUID

import pyarrow as pa

from calve.wal import Log, LogOptions
from calve.wal.frame import VERSION, Kind
from calve.wal.layout import LogLayout
from calve.wal.recovery import create_log
from calve.wal.repair import AcceptedLoss, repair
from calve.wal.survey import survey
from tests.fakes.disk import Crash, SimulatedDisk
from tests.fakes.oracle import TOPIC, Oracle
from tests.faults.test_log_crashes import SteppingClock

GOLDEN = Path(__file__).parent / "wal" / f"v{VERSION}_positions"
DIRECTORY = Path("/wal")
LAYOUT = LogLayout(DIRECTORY)
OPTIONS = LogOptions(segment_bytes_max=16_384, free_bytes_min=0)
Change = Callable[[bytearray], None]


def open_log(disk: SimulatedDisk) -> Log:
    return Log(DIRECTORY, OPTIONS, files=disk, clock=SteppingClock(), background=False)


def write_rows(disk: SimulatedDisk) -> tuple[Log, Oracle]:
    """A sealed segment and an open one: rows, rejected rows, a hole, dictionaries, a producer."""
    log = open_log(disk)
    oracle = Oracle()
    streams = [log.create_stream(TOPIC, partition) for partition in (0, 1)]
    oracle.append(log, 0, 3, producer="golden", sequence=0, rejected=2)
    oracle.append(log, 1, 2)
    log.record_hole(streams[1], 2, 4)
    log.rotate()
    oracle.append(log, 0, 1, producer="golden", sequence=1)
    log.append(streams[1], pa.record_batch({"id": pa.array([40, 41, 40]).dictionary_encode()}))
    oracle.append(log, 0, 2)
    return log, oracle


def last_frame(disk: SimulatedDisk) -> tuple[int, int]:
    """Where the last frame with offsets of the open segment begins and ends."""
    frames = [frame for frame in survey(disk, LAYOUT).segments[-1].frames if frame.takes_offsets]
    return frames[-1].position, frames[-1].position + frames[-1].frame_bytes


def first_rows(disk: SimulatedDisk, segment: int) -> int:
    frames = survey(disk, LAYOUT).segments[segment].frames
    return next(frame.position for frame in frames if frame.kind == Kind.ROWS)


def cut(length: int) -> Change:
    return lambda content: content.__delitem__(slice(length, None))


def blank(begin: int, end: int) -> Change:
    return lambda content: content.__setitem__(slice(begin, end), bytes(end - begin))


def flip(position: int) -> Change:
    return lambda content: content.__setitem__(position, content[position] ^ 16)


def make_cases() -> dict[str, SimulatedDisk]:
    whole = SimulatedDisk()
    log, _ = write_rows(whole)
    killed = whole.copy()  # the tail is zeros, and nothing was closed
    log.close()
    empty = SimulatedDisk()
    open_log(empty).close()
    unsynced = unsynced_tail()
    begin, end = last_frame(unsynced)
    cases = {
        "whole": whole,
        "zero_tail": killed,
        "empty": empty,
        "unsynced_tail": unsynced,
        "newer_version": newer_version(),
    }
    for name, change in {
        "torn_header": blank(begin + 60, end),
        "torn_payload": blank(begin + 200, end),
        "torn_file_end": cut(begin + 130),
        "torn_first_half": blank(begin, begin + 128),
    }.items():
        cases[name] = changed(unsynced, 2, change)
    begin, end = last_frame(whole)
    for name, segment, change in [
        ("damaged_header", 1, flip(first_rows(whole, 0) + 40)),
        ("damaged_payload", 1, flip(first_rows(whole, 0) + 300)),
        ("damaged_middle", 2, flip(first_rows(whole, 1) + 300)),
        ("damaged_end", 2, flip(end - 150)),
        ("damaged_state", 2, flip(200)),
        ("damaged_seal", 1, flip(whole.size(LAYOUT.segment(1)) - 10)),
        ("cut_short", 2, cut(begin)),
        ("not_a_segment", 2, flip(2)),
    ]:
        cases[name] = changed(whole, segment, change)
    cases["foreign_segment"] = changed(whole, 1, put(another_log()))
    cases["repaired"] = repaired(cases["damaged_payload"])
    cases["long_hole"] = long_hole()
    return cases


def put(content: bytes) -> Change:
    return lambda old: old.__setitem__(slice(None), content)


def another_log() -> bytes:
    """The sealed segment of a log with the same topic and offsets."""
    disk = SimulatedDisk()
    log, _ = write_rows(disk)
    log.close()
    return disk.read(LAYOUT.segment(1))


def repaired(disk: SimulatedDisk) -> SimulatedDisk:
    copy = disk.copy()
    repair(copy, LAYOUT, [AcceptedLoss(TOPIC, 0, 0, 3)], dry_run=False)
    return copy


def long_hole() -> SimulatedDisk:
    """More offsets than a frame's row count has bits for."""
    disk = SimulatedDisk()
    with open_log(disk) as log:
        stream = log.create_stream(TOPIC)
        log.record_hole(stream, 0, 1 << 40)
        Oracle().append(log, 0, 2)
    return disk


def newer_version() -> SimulatedDisk:
    """What a later Calve might leave behind, to one that does not know it."""
    disk = SimulatedDisk()
    with mock.patch("calve.wal.segment.VERSION", VERSION + 1):
        create_log(disk, LAYOUT, OPTIONS, SteppingClock().now())
    return disk


def unsynced_tail() -> SimulatedDisk:
    """The last append was written and not synced: it may be there or not."""
    disk = SimulatedDisk()
    log, oracle = write_rows(disk)
    disk.crash_at = len(disk.operations) + 1
    with suppress(Crash):
        oracle.append(log, 0, 4)
    return disk.copy()


def changed(disk: SimulatedDisk, segment: int, change: Change) -> SimulatedDisk:
    copy = disk.copy()
    copy.damage(LAYOUT.segment(segment), change)
    return copy


def save(disk: SimulatedDisk, target: Path) -> None:
    target.mkdir(parents=True)
    for name in disk.names(DIRECTORY):
        (target / name).write_bytes(disk.read(DIRECTORY / name))


def main() -> None:
    numbers = random.Random(0)

    def uuid4() -> UUID:
        return UUID(int=numbers.getrandbits(128), version=4)

    with (
        mock.patch("calve.wal.segment.secrets.randbits", numbers.getrandbits),
        mock.patch("calve.wal.recovery.uuid4", uuid4),
        mock.patch("calve.wal.log.uuid4", uuid4),
    ):
        cases = make_cases()
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for name, disk in cases.items():
        save(disk, GOLDEN / name)
    print(json.dumps(sorted(cases)))


if __name__ == "__main__":
    main()
