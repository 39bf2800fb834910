"""Segments that do not belong where they lie: never read as ours, never removed, named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calve.errors import CalveError, Conflict, Corruption
from calve.wal import Log, LogOptions, LogReader
from calve.wal.inspect import describe_log
from calve.wal.layout import LogLayout
from calve.wal.repair import AcceptedLoss, adopt, repair, rewrite_durable
from calve.wal.survey import Survey, survey
from tests.fakes.disk import SimulatedDisk
from tests.fakes.oracle import TOPIC, read_values, rows

DIRECTORY = Path("/data/wal")
LAYOUT = LogLayout(DIRECTORY)
OPTIONS = LogOptions(segment_bytes_max=8192, free_bytes_min=0, hot_window_seconds=-1)


def open_log(disk: SimulatedDisk) -> Log:
    return Log(DIRECTORY, OPTIONS, files=disk, background=False)


def fill(disk: SimulatedDisk, first: int, segments: int = 4) -> None:
    """One row in each segment, the last one open."""
    with open_log(disk) as log:
        stream = log.stream(TOPIC) if log.streams else log.create_stream(TOPIC)
        for i in range(segments):
            if i:
                log.rotate()
            log.append(stream, rows(first + i))


@pytest.fixture
def ours() -> SimulatedDisk:
    disk = SimulatedDisk()
    fill(disk, 0)
    return disk


def another_log() -> SimulatedDisk:
    """The same topic and offsets, other rows."""
    disk = SimulatedDisk()
    fill(disk, 100)
    return disk


def put(disk: SimulatedDisk, number: int, content: bytes) -> None:
    disk.damage(LAYOUT.segment(number), lambda old: old.__setitem__(slice(None), content))


def segment(disk: SimulatedDisk, number: int) -> bytes:
    return disk.read(LAYOUT.segment(number))


def refusal(look: Callable[[], object]) -> CalveError:
    with pytest.raises((Conflict, Corruption)) as refused:
        look()
    assert "calve wal" in (refused.value.hint or "")
    return refused.value


def read_everything(disk: SimulatedDisk) -> list[object]:
    with LogReader(DIRECTORY, files=disk) as reader:
        return read_values(reader, TOPIC)


def trim_everything(disk: SimulatedDisk) -> int:
    with open_log(disk) as log:
        return log.trim({stream.id: 1000 for stream in log.streams})


def lost(found: Survey) -> list[tuple[int, int]]:
    return [(one.first, one.end) for one in found.lost]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("look", [read_everything, trim_everything])
def test_a_sealed_segment_of_another_log_is_refused(
    ours: SimulatedDisk, number: int, look: Callable[[SimulatedDisk], object]
) -> None:
    other = another_log()
    put(ours, number, segment(other, number))
    names = ours.names(DIRECTORY)
    error = refusal(lambda: look(ours))
    with open_log(other) as log:
        foreign = str(log.log_id)
    assert foreign in error.message
    assert f"segment {number} of log" in error.message
    assert describe_log(ours, LAYOUT).segments[number - 1].problem
    assert set(ours.names(DIRECTORY)) >= set(names) - {
        LAYOUT.segment(n).name for n in range(number)
    }
    assert ours.exists(LAYOUT.segment(number))


def test_a_newest_segment_of_another_log_is_refused(ours: SimulatedDisk) -> None:
    put(ours, 4, segment(another_log(), 4))
    refusal(lambda: open_log(ours))
    refusal(lambda: read_everything(ours))
    refusal(lambda: rewrite_durable(ours, LAYOUT))
    assert "it is segment 4 of log" in survey(ours, LAYOUT).damages[0].reason


@pytest.mark.parametrize("number", [1, 2, 3])
def test_verify_names_the_rows_under_a_foreign_segment_and_repair_gives_them_up(
    ours: SimulatedDisk, number: int
) -> None:
    foreign = segment(another_log(), number)
    put(ours, number, foreign)
    found = survey(ours, LAYOUT)
    assert [damage.path for damage in found.damages] == [LAYOUT.segment(number)]
    assert lost(found) == [(number - 1, number)]
    refusal(lambda: repair(ours, LAYOUT, [], dry_run=False))
    report = repair(ours, LAYOUT, [AcceptedLoss(TOPIC, 0, number - 1, number)], dry_run=False)
    assert [ours.read(path) for path in report.kept_aside] == [foreign]
    expected: list[object] = [0, 1, 2, 3]
    expected[number - 1] = "hole"
    assert read_everything(ours) == expected
    assert not survey(ours, LAYOUT).damages
    fill(ours, 4, 2)
    assert read_everything(ours) == [*expected, 4, 5]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_foreign_segment_is_known_as_one_under_a_damaged_header_too(
    ours: SimulatedDisk, number: int
) -> None:
    """Its own frames and seal say that no repair has put it here."""
    foreign = bytearray(segment(another_log(), number))
    foreign[48] ^= 1
    put(ours, number, bytes(foreign))
    found = survey(ours, LAYOUT)
    assert lost(found) == [(number - 1, number)]
    repair(ours, LAYOUT, [AcceptedLoss(TOPIC, 0, number - 1, number)], dry_run=False)
    assert read_everything(ours)[number - 1] == "hole"


def test_segments_in_another_order_are_refused(ours: SimulatedDisk) -> None:
    second, third = segment(ours, 2), segment(ours, 3)
    put(ours, 2, third)
    put(ours, 3, second)
    assert "it is segment" in refusal(lambda: read_everything(ours)).message
    assert lost(survey(ours, LAYOUT)) == [(1, 3)]


def parted(ours: SimulatedDisk, *, is_sealed: bool) -> SimulatedDisk:
    """A copy of the log that took its original's place, and went on by itself."""
    copy = ours.copy()
    adopt(copy, LAYOUT)
    if not is_sealed:
        fill(copy, 200, 3)
        fill(ours, 4, 3)
        return copy
    for disk, first in ((copy, 200), (ours, 4)):
        with open_log(disk) as log:
            log.rotate()
        fill(disk, first, 3)
    return copy


@pytest.mark.parametrize(
    ("number", "is_sealed"), [(5, True), (4, False), (5, False)], ids=["later", "parted in", "next"]
)
def test_a_segment_of_a_copy_that_went_its_own_way_is_refused(
    ours: SimulatedDisk, number: int, is_sealed: bool
) -> None:
    """It has our log's id and the right number, streams and offsets, but other rows."""
    copy = parted(ours, is_sealed=is_sealed)
    whole = read_everything(ours)
    put(ours, number, segment(copy, number))
    error = refusal(lambda: read_everything(ours))
    assert "do not belong together" in error.message
    refusal(lambda: trim_everything(ours))
    found = survey(ours, LAYOUT)
    assert [damage.path for damage in found.damages] == [LAYOUT.segment(number)]
    accepted = [AcceptedLoss(TOPIC, 0, *one) for one in lost(found)]
    repair(ours, LAYOUT, accepted, dry_run=False)
    after = read_everything(ours)
    assert [a for a, b in zip(after, whole, strict=True) if a != b] == ["hole"] * (
        accepted[0].end - accepted[0].first
    )


def test_a_newest_segment_of_a_copy_that_went_its_own_way_is_refused(ours: SimulatedDisk) -> None:
    copy = parted(ours, is_sealed=True)
    with open_log(copy) as log:
        log.rotate()
    newest = int(max(n for n in ours.names(DIRECTORY) if n.endswith(".seg"))[:-4])
    put(ours, newest, segment(copy, newest))  # sealed, as only a repair leaves the newest one
    assert "speaks of" in refusal(lambda: open_log(ours)).message
    assert "speaks of" in refusal(lambda: read_everything(ours)).message
    assert survey(ours, LAYOUT).damages


def test_a_segment_begun_just_before_a_crash_must_continue_the_one_before(
    ours: SimulatedDisk,
) -> None:
    """The durable end does not speak of it yet, only of the one before."""
    copy = ours.copy()
    adopt(copy, LAYOUT)
    fill(copy, 200, 2)
    end = ours.read(LAYOUT.durable)
    with open_log(ours) as log:
        log.rotate()
    crashed = ours.copy()
    crashed.damage(LAYOUT.durable, lambda old: old.__setitem__(slice(None), end))
    fill(crashed.copy(), 4, 2)
    put(crashed, 5, segment(copy, 5))
    assert "do not belong together" in refusal(lambda: open_log(crashed)).message
    found = survey(crashed, LAYOUT)
    assert [damage.path for damage in found.damages] == [LAYOUT.segment(5)]


def test_the_file_before_a_repair_may_come_back(ours: SimulatedDisk) -> None:
    """Found again whole in a copy: the rows are there again, and nothing is out of order."""
    whole = segment(ours, 2)
    ours.damage(LAYOUT.segment(2), lambda old: old.__setitem__(slice(0, 900), bytes(900)))
    repair(ours, LAYOUT, [AcceptedLoss(TOPIC, 0, 1, 2)], dry_run=False)
    assert read_everything(ours) == [0, "hole", 2, 3]
    put(ours, 2, whole)
    assert read_everything(ours) == [0, 1, 2, 3]
    assert not survey(ours, LAYOUT).damages


@pytest.mark.parametrize("size", [100, 900], ids=["header", "header and state"])
def test_a_repaired_segment_still_vouches_for_the_one_before(
    ours: SimulatedDisk, size: int
) -> None:
    copy = ours.copy()
    adopt(copy, LAYOUT)
    for disk, first in ((ours, 4), (copy, 200)):
        fill(disk, first, 3)  # in segments 4, 5 and 6
    ours.damage(LAYOUT.segment(5), lambda old: old.__setitem__(slice(0, size), bytes(size)))
    accepted = [AcceptedLoss(TOPIC, 0, *one) for one in lost(survey(ours, LAYOUT))]
    repair(ours, LAYOUT, accepted, dry_run=False)
    assert not survey(ours, LAYOUT).damages
    put(ours, 4, segment(copy, 4))
    assert "do not belong together" in refusal(lambda: read_everything(ours)).message


def test_files_that_two_repairs_replaced_are_both_kept(ours: SimulatedDisk) -> None:
    kept = []
    for fill_byte in (b"\1", b"\2"):
        put(ours, 2, fill_byte * 900)
        report = repair(ours, LAYOUT, [AcceptedLoss(TOPIC, 0, 1, 2)], dry_run=False)
        kept += report.kept_aside
    assert [ours.read(path)[:1] for path in kept] == [b"\1", b"\2"]
