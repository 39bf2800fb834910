"""Blocks of a log destroyed at once, over the frames of several streams: nothing goes in silence.

Nothing comes behind an open segment that knows every stream's end. What its own frames cannot tell
must be called unknown, and no offset that was given may be given again, whatever is accepted.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from calve.errors import Conflict, Unavailable
from calve.wal import Log, LogReader
from calve.wal.durable import DurableFile, read_durable
from calve.wal.repair import AcceptedLoss, repair
from calve.wal.survey import Survey, survey
from tests.fakes.disk import SimulatedDisk
from tests.fakes.oracle import TOPIC, Oracle, read_values, rows
from tests.fakes.segment_map import Extent, extents
from tests.faults.test_log_damage import LAYOUT, open_large
from tests.faults.test_log_disk_faults import fail

SEGMENT = LAYOUT.segment(1)
PARTITIONS = 4  # partition n is stream n + 1
ROWS = (1, 2, 3)
# Those that stop early are the ones that no later frame speaks of.
ORDER = [0, 1, 2, 1, 3, 2, 0, 2, 2, 1, 1, 2, 1, 2]

Offset = tuple[int, int]


@pytest.fixture(scope="module")
def sample() -> tuple[SimulatedDisk, Oracle]:
    disk = SimulatedDisk()
    oracle = Oracle()
    with open_large(disk) as log:
        fill(log, oracle)
    return disk, oracle


def fill(log: Log, oracle: Oracle) -> None:
    for partition in range(PARTITIONS):
        log.create_stream(TOPIC, partition)
    for number, partition in enumerate(ORDER):
        oracle.append(log, partition, 1 + number % 3, rejected=number % 4 == 0)


@pytest.fixture(scope="module")
def sealed() -> tuple[SimulatedDisk, Oracle]:
    """The disk was full when the next segment was to begin."""
    disk = SimulatedDisk()
    oracle = Oracle()
    with open_large(disk) as log:
        fill(log, oracle)
        disk.fault = fail("create", OSError(errno.ENOSPC, "no space"))
        with pytest.raises(Unavailable):
            log.rotate()
    return disk, oracle


def row_frames(content: bytes) -> list[Extent]:
    return [frame for frame in extents(content) if frame.kind in ROWS]


def blocks(content: bytes) -> Iterator[tuple[int, int]]:
    """Every run of whole frames, and parts of frames at random, behind the schemas."""
    frames = row_frames(content)
    for first, frame in enumerate(frames):
        for last in frames[first:]:
            yield frame.begin, last.end
    chance = random.Random(9)
    start, end = frames[2].begin, frames[-1].end
    for _ in range(150):
        begin = chance.randrange(start, end)
        yield begin, min(end, begin + chance.choice([1, 64, 130, 512, 900, 4096]))


def destroyed(disk: SimulatedDisk, begin: int, end: int, filling: bytes | None) -> SimulatedDisk:
    copy = disk.copy()

    def change(content: bytearray) -> None:
        if filling is None:
            del content[begin:]
        else:
            content[begin:end] = filling * (end - begin)

    copy.damage(SEGMENT, change)
    return copy


def taken(whole: bytes, left: bytes) -> set[Offset]:
    """What the damage took, by where things lay, of the rows that were acknowledged."""
    return {
        (frame.stream - 1, offset)
        for frame in row_frames(whole)
        if whole[frame.begin : frame.used_end] != left[frame.begin : frame.used_end]
        for offset in range(frame.first, frame.end_offset)
    }


def offsets(found: Survey, ranges: str) -> set[Offset]:
    listed = getattr(found, ranges)
    return {(one.stream - 1, offset) for one in listed for offset in range(one.first, one.end)}


def follow_verify(disk: SimulatedDisk, found: Survey) -> None:
    """Give up what is reported, word for word, and nothing else."""
    accepted = [AcceptedLoss(TOPIC, one.stream - 1, one.first, one.end) for one in found.lost]
    if not all(damage.is_loss_known for damage in found.damages):
        with pytest.raises(Conflict, match="nothing tells whether rows of"):
            repair(disk, LAYOUT, accepted, dry_run=False)
        repair(disk, LAYOUT, accepted, accept_unknown=True, dry_run=False)
    elif found.damages:
        repair(disk, LAYOUT, accepted, dry_run=False)


def ends(log: Log) -> list[int]:
    return [log.next_offset(log.stream(TOPIC, partition)) for partition in range(PARTITIONS)]


def check(sample: tuple[SimulatedDisk, Oracle], begin: int, end: int, filling: bytes | None) -> str:
    disk, oracle = sample
    whole = disk.read(SEGMENT)
    damaged = destroyed(disk, begin, end, filling)
    lost = taken(whole, damaged.read(SEGMENT))
    found = survey(damaged, LAYOUT)
    is_known = all(damage.is_loss_known for damage in found.damages)
    assert bool(found.damages) >= bool(lost), "damage that nobody sees"
    assert offsets(found, "lost") <= lost, "a row that is still there"
    assert lost <= offsets(found, "lost") | offsets(found, "doubtful"), "a silent loss"
    if is_known:
        assert offsets(found, "lost") == lost
        assert not found.doubtful
    follow_verify(damaged, found)
    assert not survey(damaged, LAYOUT).damages
    check_rows(damaged, oracle, lost, is_known=is_known)
    return "known" if is_known else "unknown"


def check_rows(disk: SimulatedDisk, oracle: Oracle, lost: set[Offset], *, is_known: bool) -> None:
    sent = [
        [value for one in oracle.sent[TOPIC, partition] for value in one.values]
        for partition in range(PARTITIONS)
    ]
    with open_large(disk) as log:
        for partition, (before, now) in enumerate(zip(map(len, sent), ends(log), strict=True)):
            assert now >= before, "offsets would be given again"
            assert now == before or not is_known
            log.append(log.stream(TOPIC, partition), rows(999))
    with LogReader(LAYOUT.root, files=disk) as reader:
        for partition, values in enumerate(sent):
            expected = [
                "hole" if (partition, offset) in lost else value
                for offset, value in enumerate(values)
            ]
            found = read_values(reader, TOPIC, partition)
            assert found[: len(values)] == expected
            assert set(found[len(values) : -1]) <= {"hole"}
            assert found[-1] == 999


@pytest.mark.parametrize("filling", [b"\0", b"\xa5"], ids=["zeros", "garbage"])
def test_a_destroyed_block_is_known_to_the_last_row_or_called_unknown(
    sample: tuple[SimulatedDisk, Oracle], filling: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    content = sample[0].read(SEGMENT)
    counts = Counter(check(sample, begin, end, filling) for begin, end in blocks(content))
    with capsys.disabled():
        print(f"\n{counts.total()} destroyed blocks: {dict(counts)}")
    assert counts["known"] > 50
    assert counts["unknown"] > 50


@pytest.mark.parametrize("filling", [b"\0", b"\xa5"], ids=["zeros", "garbage"])
def test_a_sealed_segment_tells_by_its_index_although_none_follows(
    sealed: tuple[SimulatedDisk, Oracle], filling: bytes
) -> None:
    content = sealed[0].read(SEGMENT)
    for begin, end in blocks(content):
        assert check(sealed, begin, end, filling) == "known"


def test_a_sealed_segment_whose_index_is_destroyed_too_is_called_unknown(
    sealed: tuple[SimulatedDisk, Oracle],
) -> None:
    frames = row_frames(sealed[0].read(SEGMENT))
    index = frames[-1].end + 128  # its payload: the header and the trailer stay
    for frame in frames[:-1]:
        disk = destroyed(sealed[0], index, index + 8, b"\xa5")
        assert check((disk, sealed[1]), frame.begin, frames[-1].end, b"\0") == "unknown"


def test_what_two_places_may_have_held_is_added_up() -> None:
    disk = SimulatedDisk()
    bits = pa.record_batch({"bit": pa.array([True] * 100_000)})
    with open_large(disk) as log:
        for partition in range(3):
            log.create_stream(TOPIC, partition)
        for partition, batch in [(0, rows(0)), (1, bits), (2, rows(0)), (0, rows(0))] * 3:
            log.append(log.stream(TOPIC, partition), batch)
    frames = row_frames(disk.read(SEGMENT))
    for first in (5, 9):
        disk = destroyed(disk, frames[first].begin, frames[first + 1].end, b"\0")
    found = survey(disk, LAYOUT)
    guessed = disk.copy()
    follow_verify(guessed, found)
    with open_large(guessed) as log:
        assert log.next_offset(log.stream(TOPIC, 1)) >= 300_000, "offsets would be given again"
    told = [AcceptedLoss(TOPIC, one.stream - 1, one.first, one.end) for one in found.lost]
    told += [AcceptedLoss(TOPIC, 1, first, first + 100_000) for first in (100_000, 200_000)]
    repair(disk, LAYOUT, told, accept_unknown=True, dry_run=False)
    with open_large(disk) as log:
        assert log.next_offset(log.stream(TOPIC, 1)) == 300_000, "the operator knew it"


@pytest.mark.parametrize(
    ("size", "is_stale"),
    [(700, False), (2048, False), (4096, False), (1 << 20, False), (700, True), (2048, True)],
)
def test_no_offset_is_given_again_when_the_start_of_the_newest_segment_is_destroyed(
    size: int, is_stale: bool
) -> None:
    disk, oracle = SimulatedDisk(), Oracle()
    with open_large(disk) as log:
        fill(log, oracle)
        log.rotate()
        for partition in ORDER[:5]:
            oracle.append(log, partition, 3)
        stale = read_durable(disk, LAYOUT.durable)
        for partition in [3, 2, 1, 0]:
            oracle.append(log, partition, 3)
        given = ends(log)
    if is_stale:  # as after a power cut
        DurableFile.create(disk, LAYOUT.durable, stale)

    def change(content: bytearray) -> None:
        content[:size] = bytes(min(size, len(content)))

    disk.damage(LAYOUT.segment(2), change)
    found = survey(disk, LAYOUT)
    follow_verify(disk, found)
    assert not survey(disk, LAYOUT).damages
    with open_large(disk) as log:
        assert all(now >= before for now, before in zip(ends(log), given, strict=True))


def test_a_cut_is_known_to_the_last_row_or_called_unknown(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    content = sample[0].read(SEGMENT)
    frames = row_frames(content)
    counts: Counter[str] = Counter()
    for length in range(frames[0].end, frames[-1].end, 48):
        counts[check(sample, length, length, None)] += 1
    assert counts["known"] >= 2
    assert counts["unknown"] > 20


def test_the_frame_that_a_flipped_bit_takes_is_known_whatever_streams_there_are(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    content = sample[0].read(SEGMENT)
    for frame in row_frames(content):
        for place in (frame.begin, frame.begin + 40, frame.used_end - 1):
            flipped = bytes([content[place] ^ 4])
            assert check(sample, place, place + 1, flipped) == "known"
