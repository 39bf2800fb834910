"""Following the audit log: every whole record once, under the same name whenever it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from calve.audit import Trail
from calve.audit.tail import Tail, Written
from calve.audit.trail import files_of


def act(directory: Path, *subjects: str, bytes_max: int = 1 << 20) -> None:
    trail = Trail(directory, bytes_max=bytes_max)
    for subject in subjects:
        with trail.recording("topic.create", subject):
            pass


def subjects(found: list[Written]) -> list[tuple[str, str]]:
    return [(each.record.subject, each.record.step) for each in found]


def test_each_record_comes_once(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert list(tail.more()) == []
    act(tmp_path, "a", "b")
    assert subjects(list(tail.more())) == [
        ("a", "begin"), ("a", "end"), ("b", "begin"), ("b", "end"),
    ]  # fmt: skip
    assert list(tail.more()) == []
    act(tmp_path, "c")
    assert subjects(list(tail.more())) == [("c", "begin"), ("c", "end")]


@pytest.mark.parametrize("bytes_max", [1, 500, 1_000])
def test_a_record_keeps_its_name_when_its_file_is_put_away(tmp_path: Path, bytes_max: int) -> None:
    tail = Tail(tmp_path)
    seen: list[Written] = []
    for number in range(10):
        act(tmp_path, f"t{number}", bytes_max=bytes_max)
        seen += tail.more()
    assert len(files_of(tmp_path)) > 2
    assert list(Tail(tmp_path).more()) == seen
    assert len({(each.file, each.number) for each in seen}) == len(seen) == 20
    for file in {each.file for each in seen}:
        numbers = [each.number for each in seen if each.file == file]
        assert numbers == list(range(len(numbers)))


def test_half_a_line_is_left_until_it_is_whole_and_passed_over_when_it_never_is(
    tmp_path: Path,
) -> None:
    act(tmp_path, "a")
    current = tmp_path / "audit.jsonl"
    whole = current.read_bytes()
    tail = Tail(tmp_path)
    current.write_bytes(whole[:-20])
    assert subjects(list(tail.more())) == [("a", "begin")]
    current.write_bytes(whole)
    assert subjects(list(tail.more())) == [("a", "end")]
    current.write_bytes(whole + b'{"time": "2026')
    act(tmp_path, "b")
    found = list(tail.more())
    assert subjects(found) == [("b", "begin"), ("b", "end")]
    assert [each.number for each in found] == [2, 3]


def test_what_was_not_taken_comes_again_after_a_rewind(tmp_path: Path) -> None:
    act(tmp_path, "a")
    tail = Tail(tmp_path)
    list(tail.more())
    mark = tail.mark()
    act(tmp_path, "b")
    first = list(tail.more())
    tail.rewind(mark)
    assert list(tail.more()) == first
    assert subjects(first) == [("b", "begin"), ("b", "end")]


def test_a_file_that_took_the_place_of_one_that_was_taken_away_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    act(tmp_path, "a", "b", "c")
    tail = Tail(tmp_path)
    list(tail.more())
    current = tmp_path / "audit.jsonl"
    lines = current.read_bytes().splitlines(keepends=True)
    current.write_bytes(lines[-1])  # the same inode, and shorter
    assert subjects(list(tail.more())) == [("c", "end")]
