"""Repair, held against what was written and not against what the survey found."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pytest

from calve.errors import Conflict, Corruption, Unavailable
from calve.model import TableName
from calve.wal import Kind, Log, LogReader, Rejected
from calve.wal.durable import DurableFile, read_durable
from calve.wal.layout import LogLayout
from calve.wal.repair import AcceptedLoss, adopt, repair, rewrite_durable, rewrite_identity
from calve.wal.survey import survey
from tests.fakes.disk import Crash, SimulatedDisk, Survival
from tests.fakes.oracle import TOPIC, read_values, rows
from tests.fakes.segment_map import extents
from tests.faults.test_log_crashes import DIRECTORY, crash_points, open_log

LAYOUT = LogLayout(DIRECTORY)
LATER = TableName.parse("clicks")
BAD = [Rejected(b"x", "text/plain", "bad")]


def lost(disk: SimulatedDisk) -> set[tuple[str, int, int]]:
    found = survey(disk, LAYOUT)
    return {(found.name(one.stream), one.first, one.end) for one in found.lost}


def values(disk: SimulatedDisk, topic: TableName = TOPIC) -> list[object]:
    with LogReader(DIRECTORY, files=disk) as reader:
        return read_values(reader, topic)


def written(disk: SimulatedDisk, log: Log, number: int, *, parts: int) -> tuple[int, int]:
    """Append without a sync that counts; says where the bytes of the append lie."""
    before = read_durable(disk, LAYOUT.durable)
    content = [rows(number), BAD][:parts]
    log.append(log.stream(TOPIC), content, producer="p", sequence=number)
    after = read_durable(disk, LAYOUT.durable)
    assert before.segment == after.segment
    return before.position, after.position


def torn_and_damaged(cut: int, *, is_published: bool) -> SimulatedDisk:
    """Rows 0 and 1 are acknowledged, and 0 is damaged; then an append of two parts is torn."""
    disk = SimulatedDisk()
    log = open_log(disk)
    log.create_stream(TOPIC)
    written(disk, log, 0, parts=1)
    begin, end = written(disk, log, 1, parts=1)
    published = read_durable(disk, LAYOUT.durable)
    torn_begin, torn_end = written(disk, log, 2, parts=2)
    crashed = disk.copy()
    assert torn_begin == end < torn_end

    def change(content: bytearray) -> None:
        content[begin - 70] ^= 1
        content[torn_end - cut :] = bytes(len(content) - torn_end + cut)

    crashed.damage(LAYOUT.segment(1), change)
    position = published.position if is_published else 0
    DurableFile.create(crashed, LAYOUT.durable, published._replace(position=position))
    return crashed


@pytest.mark.parametrize("is_published", [True, False])
@pytest.mark.parametrize("cut", [64, 200, 500])
def test_a_torn_append_of_several_parts_is_cut_whole_by_a_repair(
    cut: int, is_published: bool
) -> None:
    disk = torn_and_damaged(cut, is_published=is_published)
    assert lost(disk) == {("orders/0", 0, 1)}
    repair(disk, LAYOUT, [AcceptedLoss(TOPIC, 0, 0, 1)], dry_run=False)
    with open_log(disk) as log:
        assert values(disk) == ["hole", 1]
        retry = log.append(log.stream(TOPIC), [rows(2), BAD], producer="p", sequence=2)
        assert retry == (2, 4, False), "the retry of what was never acknowledged is no repeat"
    assert values(disk) == ["hole", 1, 2, "rejected x"]


def test_an_acknowledged_append_that_lost_a_part_keeps_the_other() -> None:
    disk = SimulatedDisk()
    with open_log(disk) as log:
        log.create_stream(TOPIC)
        _, end = written(disk, log, 0, parts=2)
        written(disk, log, 1, parts=1)
    disk.damage(LAYOUT.segment(1), lambda old: old.__setitem__(end - 100, old[end - 100] ^ 1))
    assert lost(disk) == {("orders/0", 1, 2)}
    repair(disk, LAYOUT, [AcceptedLoss(TOPIC, 0, 1, 2)], dry_run=False)
    with open_log(disk) as log:
        assert values(disk) == [0, "hole", 1]
        again = log.append(log.stream(TOPIC), rows(0), producer="p", sequence=0)
        assert again == (0, 2, True)


def opened_in_each_segment() -> SimulatedDisk:
    """Topic `orders` opens in segment 1 and `clicks` at offset 7 in segment 2; three segments."""
    disk = SimulatedDisk()
    with open_log(disk) as log:
        log.append(log.create_stream(TOPIC), rows(0, 2))
        log.rotate()
        log.append(log.create_stream(LATER, first_offset=7), rows(50, 3))
        log.append(log.stream(TOPIC), rows(2))
        log.rotate()
        log.append(log.stream(LATER), rows(53))
        log.append(log.stream(TOPIC), rows(3))
    return disk


def destroy(disk: SimulatedDisk, number: int) -> None:
    disk.damage(LAYOUT.segment(number), lambda old: old.__setitem__(slice(None), bytes(len(old))))


def remove(disk: SimulatedDisk, number: int) -> None:
    disk.unlink(LAYOUT.segment(number))


@pytest.mark.parametrize("spoil", [remove, destroy])
@pytest.mark.parametrize(
    ("numbers", "expected", "orders", "clicks"),
    [
        ([1], {("orders/0", 0, 2)}, ["hole", "hole", 2, 3], [50, 51, 52, 53]),
        (
            [2],
            {("orders/0", 2, 3), ("clicks/0", 7, 10)},
            [0, 1, "hole", 3],
            ["hole", "hole", "hole", 53],
        ),
        (
            [1, 2],
            {("orders/0", 0, 3), ("clicks/0", 7, 10)},
            ["hole", "hole", "hole", 3],
            ["hole", "hole", "hole", 53],
        ),
    ],
    ids=["the first", "the second", "both"],
)
def test_the_rows_of_a_topic_opened_in_a_lost_segment_are_named_and_it_stays_readable(
    spoil: object,
    numbers: list[int],
    expected: set[tuple[str, int, int]],
    orders: list[object],
    clicks: list[object],
) -> None:
    disk = opened_in_each_segment()
    for number in numbers:
        spoil(disk, number)  # type: ignore[operator]
    assert lost(disk) == expected
    with pytest.raises(Conflict, match="would lose"):
        repair(disk, LAYOUT, [], dry_run=False)
    topics = {"orders/0": TOPIC, "clicks/0": LATER}
    accepted = [AcceptedLoss(topics[name], 0, first, end) for name, first, end in expected]
    repair(disk, LAYOUT, accepted, dry_run=False)
    assert not survey(disk, LAYOUT).damages
    assert values(disk) == orders
    with LogReader(DIRECTORY, files=disk) as reader:
        assert read_values(reader, LATER, start=7) == clicks
    with open_log(disk) as log:
        assert log.append(log.stream(LATER), rows(54)).first == 11
        assert log.append(log.stream(TOPIC), rows(4)).first == 4


def trimmed_and_first_lost() -> SimulatedDisk:
    disk = SimulatedDisk()
    with open_log(disk) as log:
        stream = log.create_stream(TOPIC)
        for i in range(4):
            log.append(stream, rows(i))
            log.rotate()
        assert log.trim({stream.id: 1}) == 1
    remove(disk, 2)
    return disk


def test_a_first_segment_of_which_nobody_knows_what_it_held_is_not_given_up_in_silence() -> None:
    """Nothing is left before it, and its start was somewhere in the middle of its topics."""
    disk = trimmed_and_first_lost()
    assert not survey(disk, LAYOUT).damages[0].is_loss_known
    with pytest.raises(Conflict) as refused:
        repair(disk, LAYOUT, [], dry_run=False)
    assert "--accept-unknown" in (refused.value.hint or "")
    repair(disk, LAYOUT, [], accept_unknown=True, dry_run=False)
    with LogReader(DIRECTORY, files=disk) as reader:
        assert reader.offsets(reader.stream(TOPIC)) == (2, 4)
        assert read_values(reader, TOPIC, start=2) == [2, 3]


CASES: list[tuple[list[int], list[int]]] = [([1], []), ([2], []), ([], [2]), ([1], [2]), ([2], [3])]


@pytest.mark.parametrize(("missing", "unreadable"), CASES, ids=str)
def test_a_crash_at_every_operation_of_a_repair_of_several_segments_can_be_repaired_again(
    missing: list[int], unreadable: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = opened_in_each_segment()
    for number in missing:
        remove(damaged, number)
    for number in unreadable:
        destroy(damaged, number)
    accepted = [AcceptedLoss(TOPIC, 0, 0, 4), AcceptedLoss(LATER, 0, 7, 11)]

    def run(disk: SimulatedDisk) -> None:
        repair(disk, LAYOUT, accepted, accept_unknown=True, dry_run=False)

    whole = damaged.copy()
    run(whole)
    orders, clicks = values(whole), later_values(whole)
    assert "hole" in [*orders, *clicks]
    for at, survival in crash_points(len(whole.operations), list(Survival)):
        disk = damaged.copy()
        disk.crash_at = at
        with pytest.raises(Crash):
            run(disk)
        found = disk.after_crash(survival, seed=at)
        if survey(found, LAYOUT).damages:
            run(found)
        open_log(found).close()
        assert not survey(found, LAYOUT).damages
        assert (values(found), later_values(found)) == (orders, clicks)
    with capsys.disabled():
        print(f"\nrepair: {len(whole.operations) * len(Survival)} crashes")


def later_values(disk: SimulatedDisk) -> list[object]:
    with LogReader(DIRECTORY, files=disk) as reader:
        if LATER not in [stream.topic for stream in reader.streams]:
            return []
        return read_values(reader, LATER, start=7)


def blank(disk: SimulatedDisk, number: int, *, kinds: set[int], stream: int | None = None) -> None:
    """Destroy all frames of these kinds in a segment."""
    path = LAYOUT.segment(number)
    chosen = [
        frame
        for frame in extents(disk.read(path))
        if frame.kind in kinds and stream in (None, frame.stream)
    ]
    assert chosen
    for frame in chosen:
        disk.damage(path, lambda old, f=frame: old.__setitem__(f.begin + 50, old[f.begin + 50] ^ 1))  # type: ignore[misc]


def test_a_schema_that_only_another_damaged_segment_holds_is_found_there() -> None:
    disk = opened_in_each_segment()
    blank(disk, 2, kinds={Kind.SCHEMA})
    disk.damage(LAYOUT.segment(1), lambda old: old.__setitem__(200, old[200] ^ 1))
    accepted = [AcceptedLoss(TOPIC, 0, 2, 3), AcceptedLoss(LATER, 0, 7, 10)]
    repair(disk, LAYOUT, accepted, dry_run=False)
    assert values(disk) == [0, 1, 2, 3]
    assert later_values(disk) == [50, 51, 52, 53]


def test_a_topic_whose_opening_and_first_rows_are_destroyed_is_named_by_a_later_segment() -> None:
    disk = opened_in_each_segment()
    blank(disk, 2, kinds={Kind.STREAM_OPENED, Kind.ROWS}, stream=2)
    assert lost(disk) == {("clicks/0", 7, 10)}
    repair(disk, LAYOUT, [AcceptedLoss(LATER, 0, 7, 10)], dry_run=False)
    assert values(disk) == [0, 1, 2, 3]
    assert later_values(disk) == ["hole", "hole", "hole", 53]


def test_the_rows_of_a_deleted_topic_are_not_asked_for() -> None:
    """A frame behind the deletion still says which frame came before it."""
    disk = SimulatedDisk()
    with open_log(disk) as log:
        log.append(log.create_stream(LATER), rows(50))
        log.append(log.create_stream(TOPIC), rows(0))
        log.append(log.stream(LATER), rows(51))
        log.delete_stream(log.stream(LATER))
        log.append(log.stream(TOPIC), pa.record_batch({"id": [1]}))
    path = LAYOUT.segment(1)
    schema = [f.begin for f in extents(disk.read(path)) if f.kind == Kind.SCHEMA][-2]
    disk.damage(path, lambda old: old.__setitem__(schema + 50, old[schema + 50] ^ 1))
    assert lost(disk) == set()
    repair(disk, LAYOUT, [], dry_run=False)
    assert values(disk) == [0, 1]


def test_a_damaged_header_of_a_repaired_segment_takes_no_rows() -> None:
    """What the next segment calls it was in that header alone."""
    disk = opened_in_each_segment()
    blank(disk, 2, kinds={Kind.ROWS}, stream=2)
    repair(disk, LAYOUT, [AcceptedLoss(LATER, 0, 7, 10)], dry_run=False)
    before = (values(disk), later_values(disk))
    disk.damage(LAYOUT.segment(2), lambda old: old.__setitem__(48, old[48] ^ 1))
    assert lost(disk) == set()
    assert [damage.begin for damage in survey(disk, LAYOUT).damages] == [0]
    repair(disk, LAYOUT, [], dry_run=False)
    assert not survey(disk, LAYOUT).damages
    assert (values(disk), later_values(disk)) == before
    open_log(disk).close()


@pytest.mark.parametrize(("number", "first", "end"), [(1, 0, 2), (2, 2, 3), (3, 3, 4)])
def test_a_reader_that_met_damage_reads_on_when_it_is_repaired(
    number: int, first: int, end: int
) -> None:
    disk = opened_in_each_segment()
    path = LAYOUT.segment(number)
    (row,) = [f for f in extents(disk.read(path)) if f.kind == Kind.ROWS and f.stream == 1]
    disk.damage(path, lambda old: old.__setitem__(row.begin + 200, old[row.begin + 200] ^ 1))
    with LogReader(DIRECTORY, files=disk) as reader:
        with pytest.raises(Corruption, match=f"offsets {first}..{end} of orders/0"):
            read_values(reader, TOPIC)
        repair(disk, LAYOUT, [AcceptedLoss(TOPIC, 0, first, end)], dry_run=False)
        reader.refresh()
        expected: list[object] = [0, 1, 2, 3]
        expected[first:end] = ["hole"] * (end - first)
        assert read_values(reader, TOPIC) == expected


def test_a_crash_in_the_opening_after_a_repair_of_a_segment_that_was_just_begun() -> None:
    """The durable end still spoke of the segment before, and must not fall two behind."""
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append(log.create_stream(TOPIC), rows(0))
    before = read_durable(disk, LAYOUT.durable)
    log.rotate()
    disk = disk.after_kill()
    DurableFile.create(disk, LAYOUT.durable, before)
    disk.damage(LAYOUT.segment(2), lambda old: old.__setitem__(200, old[200] ^ 1))  # one state
    repair(disk, LAYOUT, [], dry_run=False)
    whole = disk.copy()
    open_log(whole)
    for at, survival in crash_points(len(whole.operations), list(Survival)):
        crashed = disk.copy()
        crashed.crash_at = at
        with pytest.raises(Crash):
            open_log(crashed)
        with open_log(crashed.after_crash(survival, seed=at)) as log:
            assert log.append(log.stream(TOPIC), rows(1)).first == 1


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync directory"])
def test_what_the_disk_refuses_a_repair_says_what_to_do_and_leaves_it_to_be_repeated(
    operation: str,
) -> None:
    disk = opened_in_each_segment()
    blank(disk, 2, kinds={Kind.ROWS}, stream=2)
    accepted = [AcceptedLoss(LATER, 0, 7, 10)]
    repairs: list[Callable[[], object]] = [
        lambda: repair(disk, LAYOUT, accepted, dry_run=False),
        lambda: rewrite_durable(disk, LAYOUT),
        lambda: rewrite_identity(disk, LAYOUT, datetime.now(UTC)),
        lambda: adopt(disk, LAYOUT),
    ]

    def refuse(found: str, _: SimulatedDisk) -> None:
        if found == operation:
            raise OSError(errno.ENOSPC, "No space left on device")

    for run in repairs:
        disk.fault = refuse
        with pytest.raises(Unavailable, match=r"cannot be repaired: \[Errno 28\]") as refused:
            run()
        assert refused.value.hint
        disk.fault = None
        run()
    assert later_values(disk) == ["hole", "hole", "hole", 53]
    open_log(disk).close()


def flip(position: int, content: bytearray) -> None:
    content[position] ^= 255


@pytest.mark.parametrize("spoilt", [set(), {Kind.ROWS}], ids=["rows are whole", "some are not"])
def test_rows_of_a_stream_that_nothing_names_go_aside_and_every_other_topic_opens(
    spoilt: set[int],
) -> None:
    disk = SimulatedDisk()
    with open_log(disk) as log:
        log.append(log.create_stream(TOPIC), rows(0))
        log.create_stream(LATER)
        for i in range(1, 4):
            log.append(log.stream(LATER), rows(50 + i), producer="p", sequence=i - 1)
            log.append(log.stream(TOPIC), rows(i))
    blank(disk, 1, kinds={Kind.STREAM_OPENED}, stream=2)
    path = LAYOUT.segment(1)
    lines = [f for f in extents(disk.read(path)) if f.kind in spoilt and f.stream == 2]
    for frame in lines[1:2]:  # with a whole header, which names a stream that has no name
        disk.damage(path, partial(flip, frame.used_end - 1))
    assert lost(disk) == set(), "nobody could accept it by name"
    with pytest.raises(Conflict, match="nothing else tells their names"):
        repair(disk, LAYOUT, [], dry_run=False)
    before = disk.read(path)
    planned = repair(disk, LAYOUT, [], accept_unknown=True, dry_run=True)
    assert disk.read(path) == before
    assert repair(disk, LAYOUT, [], accept_unknown=True, dry_run=False) == planned
    left = 3 - len(lines[1:2])
    assert planned.left_out == (1, left, left)
    assert disk.read(planned.kept_aside[0]) == before
    assert not survey(disk, LAYOUT).damages
    assert values(disk) == [0, 1, 2, 3]
    with open_log(disk) as log:
        assert [stream.topic for stream in log.streams] == [TOPIC]
        assert log.create_stream(LATER).number == 3, "a number means one stream for ever"
        assert log.append(log.stream(TOPIC), rows(4)).first == 4


def test_what_cannot_be_put_in_order_is_refused_by_a_dry_run_too() -> None:
    """And by the real one before it changes a file, also of segments that could be mended."""
    disk = opened_in_each_segment()
    with open_log(disk) as log:
        assert log.trim({stream.id: 2 for stream in log.streams}) == 1
    remove(disk, 2)
    newest = read_durable(disk, LAYOUT.durable).segment
    for number in range(3, newest + 1):
        destroy(disk, number)
    before = disk.read(LAYOUT.segment(3))
    for dry_run in (True, False):
        with pytest.raises(Corruption, match="holds the names of all topics"):
            repair(disk, LAYOUT, [], accept_unknown=True, dry_run=dry_run)
    assert disk.read(LAYOUT.segment(3)) == before
