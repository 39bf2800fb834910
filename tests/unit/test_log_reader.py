"""Readers: by offset, by time, in other processes, uncopied, never past the durable end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from calve.errors import NotFound
from calve.wal import Log, LogOptions, LogReader
from calve.wal.extent import extent_of
from calve.wal.reader import SEGMENTS_MAPPED_MAX
from tests.fakes.oracle import TOPIC, read_values, rows
from tests.unit.test_log_retention import HandClock

OPTIONS = LogOptions(segment_bytes_max=8192, free_bytes_min=0)


@pytest.fixture
def filled(tmp_path: Path) -> Log:
    """Hundreds of segments; partition 1 has rows in a few of them only."""
    clock = HandClock()
    log = Log(tmp_path / "wal", OPTIONS, clock=clock, background=False)
    streams = [log.create_stream(TOPIC, partition) for partition in (0, 1)]
    for i in range(700):
        clock.seconds = i
        log.append(streams[0], rows(3 * i, 3))
        if i % 100 == 50:
            log.append(streams[1], rows(i))
    return log


def test_a_read_begins_at_any_offset_and_ends_at_any(filled: Log) -> None:
    with filled.reader() as reader:
        stream = reader.stream(TOPIC)
        for start, end in [(0, 1), (1, 2), (2, 7), (500, 1500), (2099, 2100), (2097, 9999)]:
            found = [
                value
                for entry in reader.read(stream, start, end)
                for value in entry.batch["id"].to_pylist()  # type: ignore[index]
            ]
            assert found == list(range(start, min(end, 2100)))
        assert list(reader.read(stream, 2100)) == []


def test_a_stream_that_is_mostly_silent_is_read_without_the_others(filled: Log) -> None:
    with filled.reader() as reader:
        assert read_values(reader, TOPIC, 1) == [50, 150, 250, 350, 450, 550, 650]
        assert [e.first_offset for e in reader.read(reader.stream(TOPIC, 1), 3, 5)] == [3, 4]


def test_a_place_is_found_by_looking_at_few_segments(filled: Log) -> None:
    assert len(list(filled.directory.glob("*.seg"))) > 20
    with filled.reader() as reader:
        next(reader.read(reader.stream(TOPIC), 1234))
        assert len(reader._mapped) <= 8


def test_mapped_segments_are_bounded(filled: Log) -> None:
    before = open_file_count()
    with filled.reader() as reader:
        read_values(reader, TOPIC)
        assert len(list(filled.directory.glob("*.seg"))) > 2 * SEGMENTS_MAPPED_MAX
        assert len(reader._mapped) <= SEGMENTS_MAPPED_MAX
        # Less than one for each segment.
        assert open_file_count() - before < SEGMENTS_MAPPED_MAX + 16


def open_file_count() -> int:
    """Of this process, with whatever others in it have open; 0 where nobody tells."""
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0


def test_a_place_is_found_by_time(filled: Log) -> None:
    begin = HandClock().now()
    with filled.reader() as reader:
        stream = reader.stream(TOPIC)
        for second in (0, 1, 333, 698, 699):
            assert reader.offset_at(stream, begin + timedelta(seconds=second)) == 3 * second
        assert reader.offset_at(stream, begin + timedelta(seconds=0.5)) == 3
        assert reader.offset_at(stream, begin - timedelta(days=1)) == 0
        assert reader.offset_at(stream, begin + timedelta(days=1)) == 2100
        quiet = reader.stream(TOPIC, 1)
        assert reader.offset_at(quiet, begin + timedelta(seconds=151)) == 2
        assert reader.offset_at(quiet, begin + timedelta(seconds=651)) == 7
    with filled.reader() as reader:
        reader.offset_at(reader.stream(TOPIC, 1), begin + timedelta(seconds=160))
        assert len(reader._mapped) <= 10, "in O(log n), also where a stream is silent for long"


def test_payloads_are_handed_out_uncopied(filled: Log) -> None:
    before = pa.total_allocated_bytes()
    with filled.reader() as reader:
        kept = [entry.batch for entry in reader.read(reader.stream(TOPIC), 0)]
        mapped = pa.py_buffer(reader._tail.segment.view)
    assert len(kept) == 700
    assert pa.total_allocated_bytes() == before
    assert kept[-1] is not None
    for column in kept[-1].columns:
        for buffer in filter(None, column.buffers()):
            assert mapped.address <= buffer.address < mapped.address + mapped.size
    filled.close()
    assert kept[333]["id"].to_pylist() == [999, 1000, 1001]  # type: ignore[index]


def test_a_reader_never_sees_what_is_not_synced(tmp_path: Path) -> None:
    options = LogOptions(sync_mode="none", free_bytes_min=0)
    with Log(tmp_path / "wal", options, background=False) as log:
        stream = log.create_stream(TOPIC)
        log.append(stream, rows(0, 5))
        with log.reader() as reader:
            assert reader.offsets(stream).durable == 0
            assert list(reader.read(stream, 0)) == []
            log.flush()
            assert reader.offsets(stream).durable == 0
            reader.refresh()
            assert reader.offsets(stream).durable == 5


def test_a_reader_follows_the_writer_through_rotation_and_retention(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes_max=8192, hot_window_seconds=0, free_bytes_min=0)
    with Log(tmp_path / "wal", options, background=False) as log, log.reader() as reader:
        stream = log.create_stream(TOPIC)
        reader.refresh()
        found: list[object] = []
        for i in range(100):
            log.append(stream, rows(i))
            if i % 10 == 9:
                reader.refresh()
                found += read_values(reader, TOPIC, start=len(found))
                log.trim({stream.id: len(found)})
        assert found == list(range(100))
        reader.refresh()
        assert reader.offsets(stream).first > 50


def trim(log: Log, end: int) -> None:
    """Let go of what lies in whole segments before an offset, and of all other streams."""
    log._journal._options = LogOptions(hot_window_seconds=0)
    log.rotate()
    log._journal._clock.seconds += 1  # type: ignore[attr-defined]
    ends = {each.id: log.next_offset(each) for each in log.streams}
    ends[log.reader().stream(TOPIC).id] = end
    assert log.trim(ends) > 20


def test_retention_during_a_read_ends_it_with_a_clear_error(filled: Log) -> None:
    reader = filled.reader()
    stream = reader.stream(TOPIC)
    entries = reader.read(stream, 0)
    next(entries)
    trim(filled, 2_100)
    with pytest.raises(NotFound, match="no longer in the log"):
        list(entries)


def test_a_row_that_retention_took_is_gone_and_nothing_is_damaged(filled: Log) -> None:
    with filled.reader() as reader:
        stream = reader.stream(TOPIC)
        whole = extent_of(reader, stream, 0, 2_100)
        trim(filled, 1_500)
        # The reader has not looked since: it finds out on the way.
        rest = extent_of(reader, stream, 0, 2_100)
        first = reader.offsets(stream).first
        assert 1_000 < first <= 1_500
        assert rest == extent_of(reader, stream, first, 2_100)
        assert 0 < rest.bytes < whole.bytes / 2
        assert extent_of(reader, stream, 0, first) == (1, None)
        assert reader.header(stream, first).first_offset <= first
        with pytest.raises(NotFound, match=f"offset 7 of .* begins at {first}"):
            reader.header(stream, 7)


FOLLOWER = """
import sys
from pathlib import Path
from calve.model import TableName
from calve.wal import LogReader

with LogReader(Path(sys.argv[1])) as reader:
    stream = reader.stream(TableName.parse("orders"))
    at = 0
    while at < 50:
        assert reader.wait(stream, at, timeout_seconds=30)
        for entry in reader.read(stream, at):
            print(*entry.batch["id"].to_pylist(), flush=True)
            at = entry.end_offset
"""


def test_a_reader_in_another_process_follows_the_durable_end(tmp_path: Path) -> None:
    with Log(tmp_path / "wal", LogOptions(segment_bytes_max=8192, free_bytes_min=0)) as log:
        stream = log.create_stream(TOPIC)
        command = [sys.executable, "-c", textwrap.dedent(FOLLOWER), str(log.directory)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            for i in range(50):
                log.append(stream, rows(i))
                assert follower.stdout.readline().split() == [str(i)]
            assert follower.wait(30) == 0


def test_waiting_ends_with_the_time_out(filled: Log) -> None:
    with filled.reader() as reader:
        assert not reader.wait(reader.stream(TOPIC), 2100, timeout_seconds=0.05)
        assert reader.wait(reader.stream(TOPIC), 2099, timeout_seconds=0)


def test_there_is_nothing_to_read_where_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        LogReader(tmp_path)
