"""Golden logs: what was written once is read for ever, and damage is told the same way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from calve.errors import Conflict, Corruption
from calve.wal import Log, LogOptions, OsFiles, Stream
from calve.wal.layout import LogLayout
from calve.wal.repair import adopt, repair
from calve.wal.survey import Survey, survey
from tests.fakes.oracle import TOPIC, read_values, rows

GOLDEN = Path(__file__).parents[1] / "golden" / "wal"
ROWS = {
    0: [0, 1, 2, "rejected 3", "rejected 4", 7, 8, 9],
    1: [5, 6, "hole", "hole", 40, 41, 40],
}
UNSYNCED = [10, 11, 12, 13]
OPTIONS = LogOptions(free_bytes_min=0)


def copy(case: str, tmp_path: Path) -> Path:
    """A copy that may be written; adopted, because a copy is not the log."""
    path = tmp_path / "wal"
    shutil.copytree(GOLDEN / case, path)
    adopt(OsFiles(), LogLayout(path))
    return path


def look(path: Path) -> Survey:
    return survey(OsFiles(), LogLayout(path))


def lost(found: Survey) -> list[tuple[str, int, int]]:
    return [(found.name(one.stream), one.first, one.end) for one in found.lost]


def open_log(path: Path) -> Log:
    return Log(path, OPTIONS, background=False)


LINKED = ["v1_linked", "v1_positions"]
BUILDS = ["v1", *LINKED]
WHOLE = [f"{build}/{case}" for build in BUILDS for case in ("whole", "zero_tail")]
each_build = pytest.mark.parametrize("build", BUILDS)
each_linked = pytest.mark.parametrize("build", LINKED)


@pytest.mark.parametrize("case", [*WHOLE, "v1_single_copies/whole"])
def test_every_version_so_far_is_read_and_continued(case: str, tmp_path: Path) -> None:
    path = copy(case, tmp_path)
    assert not look(path).damages
    with open_log(path) as log:
        for partition, expected in ROWS.items():
            assert read_values(log.reader(), TOPIC, partition) == expected
        stream: Stream = log.stream(TOPIC)
        again = log.append(stream, rows(0), producer="golden", sequence=0)
        assert again == (0, 5, True)
        assert log.append(stream, rows(50), producer="golden", sequence=2).first == 8
    assert not look(path).damages


@each_build
def test_an_empty_log_is_empty(build: str, tmp_path: Path) -> None:
    path = copy(f"{build}/empty", tmp_path)
    assert not look(path).damages
    with open_log(path) as log:
        assert log.streams == []
        assert log.append(log.create_stream(TOPIC), rows(0)).first == 0


@each_build
@pytest.mark.parametrize(
    "case", ["torn_header", "torn_payload", "torn_file_end", "torn_first_half"]
)
def test_a_torn_tail_is_cut_before_anything_is_appended(
    case: str, build: str, tmp_path: Path
) -> None:
    path = copy(f"{build}/{case}", tmp_path)
    assert not look(path).damages
    with open_log(path) as log:
        assert read_values(log.reader(), TOPIC) == ROWS[0]
        log.append(log.stream(TOPIC), rows(77))
    with open_log(path) as log:
        assert read_values(log.reader(), TOPIC) == [*ROWS[0], 77]


@each_build
def test_a_whole_tail_that_was_never_acknowledged_is_kept(build: str, tmp_path: Path) -> None:
    with open_log(copy(f"{build}/unsynced_tail", tmp_path)) as log:
        assert read_values(log.reader(), TOPIC) == [*ROWS[0], *UNSYNCED]


@each_build
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("damaged_middle", [("orders/0", 5, 6)]),
        ("damaged_end", [("orders/0", 6, 8)]),
        ("cut_short", [("orders/0", 6, 8)]),
        ("not_a_segment", []),
    ],
)
def test_damage_in_the_open_segment_stops_the_log(
    case: str, expected: list[tuple[str, int, int]], build: str, tmp_path: Path
) -> None:
    path = copy(f"{build}/{case}", tmp_path)
    found = look(path)
    assert found.damages
    assert lost(found) == expected
    with pytest.raises(Corruption) as reported:
        open_log(path)
    assert reported.value.context["file"].endswith("2.seg")


@each_build
@pytest.mark.parametrize("case", ["damaged_header", "damaged_payload"])
def test_damage_in_a_sealed_segment_stops_whoever_reads_it(
    case: str, build: str, tmp_path: Path
) -> None:
    path = copy(f"{build}/{case}", tmp_path)
    assert lost(look(path)) == [("orders/0", 0, 3)]
    with open_log(path) as log:
        with pytest.raises(Corruption) as reported:
            read_values(log.reader(), TOPIC)
        assert (reported.value.context["first"], reported.value.context["end"]) == ("0", "3")
        assert read_values(log.reader(), TOPIC, start=3) == ROWS[0][3:]
        assert read_values(log.reader(), TOPIC, 1) == ROWS[1]


@each_build
@pytest.mark.parametrize("case", ["damaged_state", "damaged_seal"])
def test_damage_that_takes_no_rows_is_reported_all_the_same(
    case: str, build: str, tmp_path: Path
) -> None:
    found = look(copy(f"{build}/{case}", tmp_path))
    assert found.damages
    assert lost(found) == []


@each_build
def test_a_newer_version_is_refused_and_left_alone(build: str, tmp_path: Path) -> None:
    path = copy(f"{build}/newer_version", tmp_path)
    before = (path / "00000000000000000001.seg").read_bytes()
    with pytest.raises(Corruption, match="format version 2 is not known here"):
        open_log(path)
    with pytest.raises(Conflict, match="format version 2"):
        repair(OsFiles(), LogLayout(path), [], accept_unknown=True, dry_run=False)
    assert (path / "00000000000000000001.seg").read_bytes() == before


@each_linked
def test_a_segment_of_another_log_is_named_and_not_read(build: str, tmp_path: Path) -> None:
    path = copy(f"{build}/foreign_segment", tmp_path)
    assert lost(look(path)) == [("orders/0", 0, 5), ("orders/1", 0, 4)]
    with open_log(path) as log, pytest.raises(Conflict, match="does not belong here"):
        read_values(log.reader(), TOPIC)


@each_linked
def test_a_repaired_log_is_whole_with_its_hole(build: str, tmp_path: Path) -> None:
    path = copy(f"{build}/repaired", tmp_path)
    assert not look(path).damages
    with open_log(path) as log:
        assert read_values(log.reader(), TOPIC) == ["hole", "hole", "hole", *ROWS[0][3:]]
        assert read_values(log.reader(), TOPIC, 1) == ROWS[1]


@each_linked
def test_a_hole_over_more_offsets_than_a_count_has_bits_is_read(build: str, tmp_path: Path) -> None:
    path = copy(f"{build}/long_hole", tmp_path)
    assert not look(path).damages
    with open_log(path) as log:
        (hole, rest) = log.reader().read(log.stream(TOPIC), 0)
        assert (hole.first_offset, hole.end_offset) == (0, 1 << 40)
        assert (rest.first_offset, rest.end_offset) == (1 << 40, (1 << 40) + 2)
