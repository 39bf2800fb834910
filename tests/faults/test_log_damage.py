"""Every bit flipped, every length cut: never a crash, never a wrong row, never a silent loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.errors import CalveError, Conflict, Corruption
from calve.wal import Claim, Log, LogOptions, LogReader
from calve.wal.durable import DurableFile, read_durable
from calve.wal.layout import LogLayout
from calve.wal.repair import AcceptedLoss, repair, rewrite_durable, rewrite_identity
from calve.wal.survey import survey
from tests.fakes.disk import Crash, SimulatedDisk, Survival
from tests.fakes.oracle import TOPIC, Oracle, read_values, rows
from tests.fakes.segment_map import extents, lost_by_a_change, lost_by_a_cut, means_something
from tests.faults.test_log_crashes import DIRECTORY, SteppingClock, crash_points, open_log

LAYOUT = LogLayout(DIRECTORY)
SEGMENTS = ["00000000000000000001.seg", "00000000000000000002.seg"]
FILES = [*SEGMENTS, "durable", "log.json"]


@pytest.fixture(scope="module")
def sample() -> tuple[SimulatedDisk, Oracle]:
    """A sealed segment and an open one, two partitions."""
    disk = SimulatedDisk()
    oracle = Oracle()
    with open_log(disk) as log:
        for partition in (0, 1):
            log.create_stream(TOPIC, partition)
        oracle.append(log, 0, 2, producer="p", sequence=0, rejected=1)
        oracle.append(log, 1)
        log.rotate()
        oracle.append(log, 1, 2)
        oracle.append(log, 0)
    return disk, oracle


def values(oracle: Oracle, partition: int) -> list[object]:
    return [value for sent in oracle.sent[TOPIC, partition] for value in sent.values]


def outcome(disk: SimulatedDisk, oracle: Oracle) -> str:
    """`whole` if every row can be read, `reported` if an error says that something is wrong."""
    try:
        with LogReader(DIRECTORY, files=disk) as reader:
            for partition in (0, 1):
                found = read_values(reader, TOPIC, partition)
                assert found == values(oracle, partition), "a wrong or missing row"
        open_log(disk).close()
    except (Corruption, Conflict):
        return "reported"
    oracle.check(DIRECTORY, disk)
    return "whole"


Losses = set[tuple[int, int, int]]  # partition, first offset, end offset


def truth(disk: SimulatedDisk, name: str, position: int, mask: int) -> Losses:
    """What the change takes away, from where things lie in the whole log: partition n is stream
    n + 1. The log's own code has no say in it."""
    if name not in SEGMENTS:
        return set()
    content = disk.read(DIRECTORY / name)
    lost = lost_by_a_change(content, position) if mask else lost_by_a_cut(content, position)
    return {(stream - 1, first, end) for stream, first, end in lost}


def found_lost(disk: SimulatedDisk) -> Losses:
    found = survey(disk, LAYOUT)
    return {(one.stream - 1, one.first, one.end) for one in found.lost}


def offsets(losses: Losses) -> set[tuple[int, int]]:
    return {(partition, offset) for partition, a, b in losses for offset in range(a, b)}


def changed(disk: SimulatedDisk, name: str, position: int, mask: int) -> SimulatedDisk:
    copy = disk.copy()
    copy.damage(DIRECTORY / name, lambda content: _change(content, position, mask))
    return copy


def sweep(sample: tuple[SimulatedDisk, Oracle], changes: Iterator[tuple[str, int, int]]) -> None:
    original, oracle = sample
    counts: Counter[str] = Counter()
    for name, position, mask in changes:
        found = outcome(changed(original, name, position, mask), oracle)
        if truth(original, name, position, mask):
            assert found == "reported", (name, position, mask)
        counts[found] += 1
    print(f"\n{counts.total()} damaged logs: {dict(counts)}")
    assert counts["reported"] > 0


def _change(content: bytearray, position: int, mask: int) -> None:
    if mask:
        content[position] ^= mask
    else:
        del content[position:]


def flips(disk: SimulatedDisk, bits: range) -> Iterator[tuple[str, int, int]]:
    for name in FILES:
        for position in range(disk.size(DIRECTORY / name)):
            for bit in bits:
                yield name, position, 1 << (bit + position) % 8


def test_a_flipped_bit_in_every_byte_is_harmless_or_reported(
    sample: tuple[SimulatedDisk, Oracle], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        sweep(sample, flips(sample[0], range(1)))


@pytest.mark.torture
def test_every_flipped_bit_is_harmless_or_reported(
    sample: tuple[SimulatedDisk, Oracle], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        sweep(sample, flips(sample[0], range(8)))


def test_every_length_of_truncation_is_reported(
    sample: tuple[SimulatedDisk, Oracle], capsys: pytest.CaptureFixture[str]
) -> None:
    disk = sample[0]
    lengths = ((name, at, 0) for name in FILES for at in range(disk.size(DIRECTORY / name)))
    with capsys.disabled():
        sweep(sample, lengths)


@pytest.mark.parametrize("name", SEGMENTS)
def test_verify_names_what_every_length_of_truncation_takes(
    sample: tuple[SimulatedDisk, Oracle], name: str
) -> None:
    """All of it, from a sealed segment. Of the newest one nothing comes behind that could tell
    more than the last frame; but never an offset that is still there."""
    original, _ = sample
    for length in range(original.size(DIRECTORY / name)):
        expected = offsets(truth(original, name, length, 0))
        found = offsets(found_lost(changed(original, name, length, 0)))
        if name == SEGMENTS[0]:
            assert found == expected, length
        else:
            assert found <= expected, length
            assert bool(found) == bool(expected), length


@pytest.mark.parametrize("name", SEGMENTS)
def test_repair_keeps_every_row_before_a_truncation(
    sample: tuple[SimulatedDisk, Oracle], name: str
) -> None:
    original, oracle = sample
    for length in range(0, original.size(DIRECTORY / name), 41):
        expected = truth(original, name, length, 0)
        disk = changed(original, name, length, 0)
        accepted = [AcceptedLoss(TOPIC, *one) for one in merged(expected)]
        repair(disk, LAYOUT, accepted, accept_unknown=True, dry_run=False)
        check_holes(disk, oracle, expected)


def merged(losses: Losses) -> Losses:
    """One range for what follows each other: a frame's end is not told from the next one's."""
    whole: list[tuple[int, int, int]] = []
    for partition, first, end in sorted(losses):
        follows = bool(whole) and whole[-1][::2] == (partition, first)
        whole.append((partition, whole.pop()[1] if follows else first, end))
    return set(whole)


def places(disk: SimulatedDisk, step: int) -> Iterator[tuple[str, int]]:
    for name in SEGMENTS:
        for position in range(0, disk.size(DIRECTORY / name), step):
            yield name, position


def test_verify_finds_what_readers_stumble_over(sample: tuple[SimulatedDisk, Oracle]) -> None:
    original, oracle = sample
    assert not survey(original, LAYOUT).damages
    for name, position in places(original, 29):
        disk = changed(original, name, position, 4)
        is_found = bool(survey(disk, LAYOUT).damages)
        assert is_found == means_something(original.read(DIRECTORY / name), position)
        assert is_found or outcome(disk, oracle) == "whole"


def test_repair_gives_up_exactly_what_is_lost(sample: tuple[SimulatedDisk, Oracle]) -> None:
    """Behind one damaged place every other row is still there, at its offset."""
    original, oracle = sample
    repaired = 0
    for name, position in places(original, 23):
        disk = changed(original, name, position, 4)
        before = disk.read(DIRECTORY / name)
        expected = truth(original, name, position, 4)
        assert found_lost(disk) == expected, (name, position)
        if expected:
            with pytest.raises(Conflict, match="would lose"):
                repair(disk, LAYOUT, [], dry_run=False)
        accepted = [AcceptedLoss(TOPIC, *one) for one in expected]
        report = repair(disk, LAYOUT, accepted, dry_run=False)
        kept = [before] if means_something(original.read(DIRECTORY / name), position) else []
        assert [disk.read(path) for path in report.kept_aside] == kept
        check_holes(disk, oracle, expected)
        repaired += len(report.rewritten)
    assert repaired > 100


def check_holes(disk: SimulatedDisk, oracle: Oracle, holes: set[tuple[int, int, int]]) -> None:
    assert not survey(disk, LAYOUT).damages
    with open_log(disk) as log:
        log.append(log.stream(TOPIC), rows(999))
    with LogReader(DIRECTORY, files=disk) as reader:
        for partition in (0, 1):
            expected = values(oracle, partition)
            for _, first, end in [hole for hole in holes if hole[0] == partition]:
                expected[first:end] = ["hole"] * (end - first)
            found = read_values(reader, TOPIC, partition)
            assert found == expected + ([999] if partition == 0 else [])


def open_large(disk: SimulatedDisk) -> Log:
    """With room for everything in one segment."""
    options = LogOptions(segment_bytes_max=65_536, free_bytes_min=0)
    return Log(DIRECTORY, options, files=disk, clock=SteppingClock(), background=False)


def several_appends_in_one_group() -> tuple[SimulatedDisk, Oracle]:
    """Three appends share a sync, one follows; a power cut took back where the log was synced."""
    disk = SimulatedDisk()
    oracle = Oracle()
    log = open_large(disk)
    log.create_stream(TOPIC, 0)
    oracle.append(log, 0)
    log._journal.persist_durable_end()
    old = disk.read(LAYOUT.durable)
    handles = [oracle.submit(log, 0, count) for count in (1, 2, 1)]
    for handle, sent in handles:
        first, end, _ = handle.wait()
        assert first is not None
        assert end is not None
        sent.offsets = (first, end)
    oracle.append(log, 0)
    log._journal._segment.trim_allocation()
    log._journal.close(cleanly=False)
    disk = disk.after_kill()
    disk.damage(LAYOUT.durable, lambda content: content.__setitem__(slice(None), old))
    return disk, oracle


def is_opened(disk: SimulatedDisk) -> bool:
    try:
        open_log(disk.copy()).close()
    except (Corruption, Conflict):
        return False
    return True


def test_opening_refuses_exactly_what_verify_finds_and_repair_mends() -> None:
    """One copy of a state aside, which opening does without."""
    original, _ = several_appends_in_one_group()
    assert is_opened(original)
    assert not original.exists(LAYOUT.segment(2)), "opening reads the newest one only"
    refused = 0
    for position in range(0, original.size(LAYOUT.segment(1)), 13):
        disk = changed(original, SEGMENTS[0], position, 4)
        damages = survey(disk, LAYOUT).damages
        is_harmless = all(damage.reason.startswith("a state:") for damage in damages)
        assert is_opened(disk) == is_harmless, position
        if damages:
            everything = [AcceptedLoss(TOPIC, 0, 0, 99)]
            repair(disk, LAYOUT, everything, accept_unknown=True, dry_run=False)
            assert is_opened(disk), position
        refused += not is_harmless
    assert refused > 100


@pytest.mark.parametrize("back", [100, 600], ids=["last rows", "rows before"])
def test_a_seal_proves_that_what_lies_before_it_was_synced(back: int) -> None:
    """A power cut came between the seal and the next segment, and took back the published end."""
    disk = SimulatedDisk()
    log = open_large(disk)
    log.create_stream(TOPIC)
    log.append(log.stream(TOPIC), rows(0))
    log._journal.persist_durable_end()
    old = disk.read(LAYOUT.durable)
    log.append(log.stream(TOPIC), rows(1))
    log.append(log.stream(TOPIC), rows(2))
    end = log._journal._segment.position
    log._journal._segment.seal()
    log._journal.close(cleanly=False)
    disk = disk.after_kill()
    disk.damage(LAYOUT.durable, lambda content: content.__setitem__(slice(None), old))
    assert is_opened(disk)
    disk.damage(LAYOUT.segment(1), lambda content: _change(content, end - back, 1))
    assert not is_opened(disk)
    assert len(found_lost(disk)) == 1


def damage_a_payload(disk: SimulatedDisk) -> None:
    """In the frame of offset 2 of partition 1, in the open segment."""
    with LogReader(DIRECTORY, files=disk) as reader:
        stream = reader.stream(TOPIC, 1)
        entry = next(reader.read(stream, 1))
        assert (entry.first_offset, entry.end_offset) == (1, 3)
        frames = reader._tail.index.frames(stream.number)
        assert frames is not None
        position = frames.positions[0] + 300
    disk.damage(LAYOUT.segment(2), lambda content: _change(content, position, 1))


def test_damage_before_the_durable_end_is_not_taken_for_a_torn_tail(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    disk = sample[0].copy()
    end = disk.size(LAYOUT.segment(2))
    disk.damage(LAYOUT.segment(2), lambda content: _change(content, end - 100, 1))
    with pytest.raises(Corruption) as reported:
        open_log(disk)
    assert reported.value.context["file"] == str(LAYOUT.segment(2))
    assert "calve wal" in (reported.value.hint or "")


def test_damage_is_told_from_a_torn_tail_by_later_frames_alone(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    """With the durable file lost, a frame still remembers what was synced before it."""
    disk = sample[0].copy()
    with open_log(disk) as log:
        log.append(log.stream(TOPIC), rows(5))
    damage_a_payload(disk)
    disk.unlink(LAYOUT.durable)
    rewrite_durable(disk, LAYOUT)
    with pytest.raises(Corruption):
        open_log(disk)


def test_a_readable_durable_end_is_not_forgotten_when_it_is_written_again(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    """Damage that it proves stays damage."""
    disk = sample[0].copy()
    disk.damage(LAYOUT.segment(2), _flip_in_last_frame)
    before = read_durable(disk, LAYOUT.durable)
    after = rewrite_durable(disk, LAYOUT)
    assert after == before._replace(generation=before.generation + 1)
    assert found_lost(disk) == {(0, 3, 4)}
    with pytest.raises(Corruption):
        open_log(disk)


def test_repair_refuses_what_was_not_accepted(sample: tuple[SimulatedDisk, Oracle]) -> None:
    disk = sample[0].copy()
    damage_a_payload(disk)
    with pytest.raises(Conflict) as refused:
        repair(disk, LAYOUT, [AcceptedLoss(TOPIC, 1, 0, 2)], dry_run=False)
    assert "--accept-loss orders/1:1..3" in (refused.value.hint or "")
    with pytest.raises(Corruption):
        open_log(disk)


def test_a_dry_run_of_repair_changes_nothing(sample: tuple[SimulatedDisk, Oracle]) -> None:
    disk = sample[0].copy()
    damage_a_payload(disk)
    before = {name: disk.read(DIRECTORY / name) for name in disk.names(DIRECTORY)}
    report = repair(disk, LAYOUT, [AcceptedLoss(TOPIC, 1, 1, 3)], dry_run=True)
    assert report.rewritten == [LAYOUT.segment(2)]
    assert {name: disk.read(DIRECTORY / name) for name in disk.names(DIRECTORY)} == before


def test_a_crash_at_every_operation_of_a_repair_leaves_the_old_log_or_the_new(
    sample: tuple[SimulatedDisk, Oracle], capsys: pytest.CaptureFixture[str]
) -> None:
    original, oracle = sample
    damaged = original.copy()
    damage_a_payload(damaged)
    accepted = [AcceptedLoss(TOPIC, 1, 1, 3)]
    whole_run = damaged.copy()
    repair(whole_run, LAYOUT, accepted, dry_run=False)
    total = len(whole_run.operations)
    for at, survival in crash_points(total, list(Survival)):
        disk = damaged.copy()
        disk.crash_at = at
        with pytest.raises(Crash):
            repair(disk, LAYOUT, accepted, dry_run=False)
        found = disk.after_crash(survival, seed=at)
        if survey(found, LAYOUT).damages:
            repair(found, LAYOUT, accepted, dry_run=False)
        check_holes(found, oracle, {(1, 1, 3)})
        aside = found.names(LAYOUT.aside)
        assert len([name for name in aside if not name.endswith(".tmp")]) == 1
    with capsys.disabled():
        print(f"\nrepair: {total * len(Survival)} crashes at {total} operations")


def test_a_missing_segment_is_reported_and_can_be_given_up(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    original, oracle = sample
    disk = original.copy()
    with open_log(disk) as log:
        log.rotate()
        log.append(log.stream(TOPIC), rows(7))
    disk.unlink(LAYOUT.segment(2))
    with pytest.raises(Corruption) as reported:
        open_log(disk)
    assert "missing" in reported.value.message
    found = survey(disk, LAYOUT)
    lost = {(found.names[one.stream].partition, one.first, one.end) for one in found.lost}
    assert lost == {(0, 3, 4), (1, 1, 3)}
    accepted = [AcceptedLoss(TOPIC, *one) for one in lost]
    repair(disk, LAYOUT, accepted, dry_run=False)
    assert not survey(disk, LAYOUT).damages
    with LogReader(DIRECTORY, files=disk) as reader:
        assert read_values(reader, TOPIC, 0) == [*values(oracle, 0)[:3], "hole", 7]
        assert read_values(reader, TOPIC, 1) == [*values(oracle, 1)[:1], "hole", "hole"]


def test_a_newest_segment_that_cannot_be_read_is_not_given_up_in_silence(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    original, oracle = sample
    disk = original.copy()
    disk.damage(LAYOUT.segment(2), lambda content: content.__setitem__(slice(0, 700), bytes(700)))
    with pytest.raises(Conflict) as refused:
        repair(disk, LAYOUT, [], dry_run=False)
    assert "--accept-unknown" in (refused.value.hint or "")
    known = [AcceptedLoss(TOPIC, 0, 3, 4)]  # the last frame, which the durable end names
    repair(disk, LAYOUT, known, accept_unknown=True, dry_run=False)
    with open_log(disk) as log:
        assert read_values(log.reader(), TOPIC, 0) == [*values(oracle, 0)[:3], "hole"]
        left = read_values(log.reader(), TOPIC, 1)
        assert left[:1] == values(oracle, 1)[:1]
        assert set(left[1:]) == {"hole"}
        stream = log.stream(TOPIC, 1)
        log.require(TOPIC, 1, Claim(stream.id, committed=3))
        assert log.next_offset(stream) >= 3, "an offset would be given again"


def test_an_unreadable_durable_file_is_an_error_with_a_way_out(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    original, oracle = sample
    disk = original.copy()
    disk.damage(LAYOUT.durable, lambda content: content.__setitem__(slice(None), bytes(2048)))
    with pytest.raises(Corruption) as reported:
        open_log(disk)
    assert "calve wal repair --durable" in (reported.value.hint or "")
    rewrite_durable(disk, LAYOUT)
    open_log(disk).close()
    oracle.check(DIRECTORY, disk)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_unreadable_identity_is_an_error_with_a_way_out(
    sample: tuple[SimulatedDisk, Oracle], is_deleted: bool
) -> None:
    original, oracle = sample
    disk = original.copy()
    if is_deleted:
        disk.unlink(LAYOUT.identity)
    else:
        disk.damage(LAYOUT.identity, lambda content: _change(content, 0, 64))
    with pytest.raises(Corruption) as reported:
        open_log(disk)
    assert "calve wal repair --identity" in (reported.value.hint or "")
    rewrite_identity(disk, LAYOUT, SteppingClock().now())
    open_log(disk).close()
    oracle.check(DIRECTORY, disk)


def test_the_retries_of_a_producer_whose_rows_were_lost_go_on(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    """The hole remembers producer and sequence: the next one is no gap."""
    disk = sample[0].copy()
    with open_log(disk) as log:
        log.append(log.stream(TOPIC), rows(50), producer="p", sequence=1)
    disk.damage(LAYOUT.segment(2), _flip_in_last_frame)
    repair(disk, LAYOUT, [AcceptedLoss(TOPIC, 0, 4, 5)], dry_run=False)
    with open_log(disk) as log:
        assert log.append(log.stream(TOPIC), rows(50), producer="p", sequence=1).is_repeat
        assert log.append(log.stream(TOPIC), rows(51), producer="p", sequence=2).first == 5


def _flip_in_last_frame(content: bytearray) -> None:
    content[-100] ^= 1


def test_garbage_in_every_file_never_crashes_a_reader(tmp_path: Path) -> None:
    for name in FILES:
        disk = SimulatedDisk()
        options = LogOptions(segment_bytes_max=8192, free_bytes_min=0)
        with Log(DIRECTORY, options, files=disk, background=False) as log:
            log.create_stream(TOPIC)
            log.append(log.stream(TOPIC), rows(1))
            log.rotate()
        disk.damage(
            DIRECTORY / name, lambda content: content.__setitem__(slice(None), b"\xff" * 5000)
        )
        with pytest.raises(CalveError):
            read_all(disk)


def read_all(disk: SimulatedDisk) -> None:
    open_log(disk).close()
    with LogReader(DIRECTORY, files=disk) as reader:
        read_values(reader, TOPIC)


@pytest.mark.parametrize(
    ("first", "segment"), [(2, 3), (3, 2), (7, 7)], ids=["missing", "turned round", "far ahead"]
)
def test_a_wrong_durable_file_removes_nothing(
    sample: tuple[SimulatedDisk, Oracle], first: int, segment: int
) -> None:
    disk = sample[0].copy()
    disk.create(LAYOUT.segment(9).with_suffix(".seg.tmp"))
    end = read_durable(disk, LAYOUT.durable)
    wrong = end._replace(first_segment=first, segment=segment)
    DurableFile.create(disk, LAYOUT.durable, wrong)
    names = disk.names(DIRECTORY)
    with pytest.raises(Corruption):
        open_log(disk)
    assert disk.names(DIRECTORY) == names


def test_a_durable_file_that_speaks_of_another_logs_segment_removes_nothing(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    disk = sample[0].copy()
    other = SimulatedDisk()
    with open_log(other) as log:
        log.create_stream(TOPIC)
        log.rotate()
    foreign = other.read(LAYOUT.segment(2))
    disk.damage(LAYOUT.segment(2), lambda content: content.__setitem__(slice(None), foreign))
    end = read_durable(disk, LAYOUT.durable)
    DurableFile.create(disk, LAYOUT.durable, end._replace(first_segment=2))
    with pytest.raises((Conflict, Corruption)):
        open_log(disk)
    assert disk.exists(LAYOUT.segment(1))


def test_an_open_segment_with_another_salt_is_not_cut(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    disk = sample[0].copy()
    end = read_durable(disk, LAYOUT.durable)
    DurableFile.create(disk, LAYOUT.durable, end._replace(salt=end.salt ^ 2))
    disk.damage(LAYOUT.segment(2), lambda content: content.__delitem__(slice(-64, None)))
    content = disk.read(LAYOUT.segment(2))
    with pytest.raises(Corruption):
        open_log(disk)
    assert disk.read(LAYOUT.segment(2)) == content


def test_a_log_of_which_only_the_durable_file_is_left_is_not_begun_anew(
    sample: tuple[SimulatedDisk, Oracle],
) -> None:
    disk = sample[0].copy()
    for name in disk.names(DIRECTORY):
        if name not in ("durable", "lock"):
            disk.unlink(DIRECTORY / name)
    names = disk.names(DIRECTORY)
    with pytest.raises(Corruption):
        open_log(disk)
    assert disk.names(DIRECTORY) == names


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.torture)])
def test_without_the_durable_end_only_damage_to_the_last_group_looks_like_a_torn_tail(
    step: int,
) -> None:
    """As after a power cut: what was said of the end since the log was last idle is gone."""
    disk = SimulatedDisk()
    options = LogOptions(free_bytes_min=0, segment_bytes_max=1 << 16)
    log = Log(DIRECTORY, options, files=disk, background=False)
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(0))
    forgotten = read_durable(disk, LAYOUT.durable)
    group = [log.submit(stream, part) for part in (rows(1), [rows(2), rows(3)])]
    assert [handle.wait().first for handle in group] == [1, 2]
    log.append(stream, rows(4))
    disk = disk.copy()
    DurableFile.create(disk, LAYOUT.durable, forgotten)
    path = LAYOUT.segment(1)
    *_, last = extents(disk.read(path))
    for position in range(0, last.end, step):
        damaged = disk.copy()
        damaged.damage(path, lambda old, at=position: old.__setitem__(at, old[at] ^ 4))  # type: ignore[misc]
        try:
            Log(DIRECTORY, options, files=damaged, background=False).close()
        except CalveError:
            continue
        found = read_values(LogReader(DIRECTORY, files=damaged), TOPIC)
        is_cut = last.begin <= position < last.used_end
        assert found == [0, 1, 2, 3, 4][: 4 if is_cut else 5], position
