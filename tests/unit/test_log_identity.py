"""A log and what others remember of it: what does not belong together is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from calve.errors import CalveError, Conflict
from calve.model import TableName
from calve.wal import Claim, Log, LogOptions, OsFiles
from calve.wal.layout import LogLayout
from calve.wal.repair import adopt
from tests.fakes.oracle import TOPIC, read_values, rows

OPTIONS = LogOptions(free_bytes_min=0, hot_window_seconds=0)


def open_log(path: Path, **arguments: object) -> Log:
    return Log(path, OPTIONS, background=False, **arguments)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with five rows, closed."""
    with open_log(tmp_path / "wal") as log:
        log.append(log.create_stream(TOPIC), rows(0, 5))
    return tmp_path / "wal"


def refused(action: object, *arguments: object, **keywords: object) -> CalveError:
    with pytest.raises(Conflict) as error:
        action(*arguments, **keywords)  # type: ignore[operator]
    assert error.value.hint
    return error.value


def test_a_deleted_directory_is_not_started_anew_in_silence(path: Path) -> None:
    with open_log(path) as log:
        expected = log.log_id
    shutil.rmtree(path)
    error = refused(open_log, path, expected=expected)
    assert str(expected) in error.message
    assert "Log.create_stream" in (error.hint or "")
    assert not path.exists()


def test_files_that_are_not_the_logs_are_left_alone(tmp_path: Path) -> None:
    mine = [tmp_path / "notes.txt", tmp_path / "draft.tmp"]
    for file in mine:
        file.write_text("mine")
    open_log(tmp_path).close()
    open_log(tmp_path).close()
    assert [file.read_text() for file in mine] == ["mine", "mine"]


def test_a_copy_is_refused_and_can_be_adopted(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    error = refused(open_log, copy)
    assert "is a copy" in error.message
    assert "calve wal repair --adopt" in (error.hint or "")
    adopt(OsFiles(), LogLayout(copy))
    with open_log(copy) as log:
        assert read_values(log.reader(), TOPIC) == [0, 1, 2, 3, 4]
    open_log(path).close()


def test_a_log_that_was_only_moved_is_still_the_log(path: Path, tmp_path: Path) -> None:
    path.rename(tmp_path / "elsewhere")
    open_log(tmp_path / "elsewhere").close()


def test_an_older_copy_put_back_is_refused(path: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(path, backup)
    with open_log(path) as log:
        log.append(log.stream(TOPIC), rows(5, 5))
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    refused(open_log, path)


def test_an_older_state_below_the_file_system_is_noticed_by_the_committed_offset(
    path: Path, tmp_path: Path
) -> None:
    """A restored volume looks like the original; what was committed does not."""
    with open_log(path) as log:
        stream = log.stream(TOPIC)
        error = refused(log.require, TOPIC, 0, Claim(stream.id, committed=8))
        assert "--accept-loss 5..8" in (error.hint or "")
        log.record_hole(stream, 5, 8)
        assert log.require(TOPIC, 0, Claim(stream.id, committed=8)) == stream
        assert log.append(stream, rows(8)).first == 8
        assert read_values(log.reader(), TOPIC)[5:] == ["hole", "hole", "hole", 8]


def test_directories_swapped_between_nodes_are_refused(tmp_path: Path) -> None:
    ids = {}
    for name in ("a", "b"):
        with open_log(tmp_path / name) as log:
            ids[name] = log.log_id
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "b").rename(tmp_path / "a")
    (tmp_path / "c").rename(tmp_path / "b")
    error = refused(open_log, tmp_path / "a", expected=ids["a"])
    assert str(ids["a"]) in error.message
    assert str(ids["b"]) in error.message


def test_a_segment_of_another_log_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with open_log(tmp_path / name) as log:
            log.append(log.create_stream(TOPIC), rows(0))
    name = "00000000000000000001.seg"
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    refused(open_log, tmp_path / "a")


def test_a_topic_deleted_and_made_again_is_another(path: Path) -> None:
    with open_log(path) as log:
        old = log.stream(TOPIC)
        log.delete_stream(old)
        new = log.create_stream(TOPIC)
        assert new.id != old.id
        error = refused(log.require, TOPIC, 0, Claim(old.id))
        assert str(old.id) in error.message
        assert str(new.id) in error.message
    with open_log(path) as log:
        assert log.stream(TOPIC) == new
        assert read_values(log.reader(), TOPIC) == []


def test_the_log_of_another_topic_is_refused(path: Path) -> None:
    with open_log(path) as log:
        other = log.create_stream(TableName.parse("clicks"))
        refused(log.require, TOPIC, 0, Claim(other.id))
        refused(log.require, TOPIC, 0, Claim(uuid4()))


def test_a_committed_offset_before_the_first_row_is_refused(path: Path) -> None:
    with open_log(path) as log:
        stream = log.stream(TOPIC)
        log.rotate()
        log._journal._options = LogOptions(hot_window_seconds=-1)
        assert log.trim({stream.id: 5}) == 1
        error = refused(log.require, TOPIC, 0, Claim(stream.id, committed=3))
        assert "calve wal dump" in (error.hint or "")
        assert log.require(TOPIC, 0, Claim(stream.id, committed=5)) == stream


def test_other_rows_at_the_same_offsets_are_noticed(path: Path, tmp_path: Path) -> None:
    """The table remembers a sum of the last frame that it took."""
    with open_log(path) as log:
        stream = log.stream(TOPIC)
        with log.reader() as reader:
            content = reader.content_sum(stream, 5)
            assert reader.content_sum(stream, 4) is None
        assert content is not None
        claim = Claim(stream.id, committed=5, content_sum=content)
        assert log.require(TOPIC, 0, claim) == stream
        refused(log.require, TOPIC, 0, Claim(stream.id, committed=5, content_sum=content + 1))


def test_the_identity_is_in_every_segment(path: Path) -> None:
    with open_log(path) as log:
        log.rotate()
        for segment in path.glob("*.seg"):
            assert log.log_id.bytes in segment.read_bytes()[:128]


def test_a_lock_file_that_was_deleted_is_not_made_again_in_silence(path: Path) -> None:
    (path / "lock").unlink()
    with pytest.raises(CalveError) as missing:
        open_log(path)
    assert "calve wal repair --adopt" in (missing.value.hint or "")
    adopt(OsFiles(), LogLayout(path))
    open_log(path).close()


def test_a_lock_file_that_was_replaced_lets_no_second_writer_in(path: Path) -> None:
    with open_log(path):
        (path / "lock").unlink()
        (path / "lock").touch()
        refused(open_log, path)
