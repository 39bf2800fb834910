"""Closing, and what comes during and after it: a clear error, and no handle left waiting."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from calve.errors import CalveError, Unavailable, UnknownOutcome
from calve.wal import Log, LogOptions, LogReader, PendingAppend
from tests.fakes.disk import SimulatedDisk
from tests.fakes.oracle import TOPIC, read_values, rows

OPTIONS = LogOptions(free_bytes_min=0)


@pytest.mark.parametrize("background", [True, False])
def test_appends_during_a_close_are_there_or_refused(tmp_path: Path, background: bool) -> None:
    log = Log(tmp_path / "wal", OPTIONS, background=background)
    stream = log.create_stream(TOPIC)
    acknowledged: list[int] = []
    refused: list[CalveError] = []
    begun = threading.Barrier(9)

    def work(first: int) -> None:
        begun.wait()
        for value in range(first, first + 10_000):
            try:
                log.append(stream, rows(value))
            except CalveError as error:
                refused.append(error)
                return
            acknowledged.append(value)

    threads = [threading.Thread(target=work, args=(i * 10_000,), daemon=True) for i in range(8)]
    for thread in threads:
        thread.start()
    begun.wait()
    log.append(stream, rows(90_000))
    log.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert {type(error) for error in refused} == {Unavailable}
    assert all("closed" in error.message for error in refused)
    with LogReader(tmp_path / "wal") as reader:
        assert sorted(read_values(reader, TOPIC)) == sorted([*acknowledged, 90_000])  # type: ignore[type-var]


def test_closing_by_several_threads_at_once_returns_when_it_is_closed(tmp_path: Path) -> None:
    log = Log(tmp_path / "wal", OPTIONS)
    log.append(log.create_stream(TOPIC), rows(0))
    opened: list[Log] = []

    def work() -> None:
        log.close()
        opened.append(log)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(opened) == 4
    Log(tmp_path / "wal", OPTIONS).close()


def test_every_use_of_a_closed_log_says_that_it_is_closed(tmp_path: Path) -> None:
    log = Log(tmp_path / "wal", OPTIONS)
    stream = log.create_stream(TOPIC)
    log.close()
    large = rows(0, 20_000)
    uses = [
        lambda: log.append(stream, rows(0)),
        lambda: log.submit(stream, large),
        lambda: log.create_stream(TOPIC, 1),
        lambda: log.delete_stream(stream),
        lambda: log.record_hole(stream, 0, 1),
        lambda: log.trim({}),
        log.flush,
        log.rotate,
    ]
    for use in uses:
        with pytest.raises(Unavailable) as refused:
            use()
        assert refused.value.message == "the log is closed"
        assert refused.value.hint
    assert log.streams == [stream]
    assert log.next_offset(stream) == 0


def test_a_close_that_is_interrupted_finishes_every_handle_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups_of_one = LogOptions(free_bytes_min=0, group_bytes_max=1)
    log = Log(tmp_path / "wal", groups_of_one, background=False)
    stream = log.create_stream(TOPIC)
    handles = [log.submit(stream, rows(i)) for i in range(3)]

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("calve.wal.group.Group.add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.close()
    for handle, error in zip(handles, (UnknownOutcome, Unavailable, Unavailable), strict=True):
        with pytest.raises(error):
            handle.wait(5)
    log.close()
    Log(tmp_path / "wal", OPTIONS, background=False).close()


def test_handles_of_a_log_that_stopped_are_finished_when_it_is_closed() -> None:
    disk = SimulatedDisk()
    log = Log(Path("/wal"), OPTIONS, files=disk, background=False)
    stream = log.create_stream(TOPIC)
    handles: list[PendingAppend] = [log.submit(stream, rows(i)) for i in range(3)]

    def fail(operation: str, _: SimulatedDisk) -> None:
        if operation == "sync":
            raise OSError(5, "Input/output error")

    disk.fault = fail
    log.close()
    for handle in handles:
        with pytest.raises(CalveError):
            handle.wait(5)
        done = threading.Event()
        handle.add_done_callback(lambda _, done=done: done.set())  # type: ignore[misc]
        assert done.is_set()


def test_the_bound_on_memory_holds_before_rows_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = rows(0, 20_000)
    options = LogOptions(free_bytes_min=0, pending_bytes_max=large.get_total_buffer_size() + 10_000)
    with Log(tmp_path / "wal", options, background=False) as log:
        stream = log.create_stream(TOPIC)
        first = log.submit(stream, large)
        encoded: list[PendingAppend] = []
        monkeypatch.setattr(PendingAppend, "encode", encoded.append)
        with pytest.raises(Unavailable) as refused:
            log.submit(stream, large)
        assert int(refused.value.context["retry_after_ms"]) > 0
        assert not encoded
        monkeypatch.undo()
        assert first.wait(5).first == 0
        assert log.append(stream, large).first == 20_000


def test_rows_that_cannot_be_encoded_take_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = rows(0, 20_000)
    options = LogOptions(free_bytes_min=0, pending_bytes_max=large.get_total_buffer_size() + 10_000)

    def fail(_: object) -> None:
        raise MemoryError

    with Log(tmp_path / "wal", options, background=False) as log:
        stream = log.create_stream(TOPIC)
        with monkeypatch.context() as patch:
            patch.setattr(PendingAppend, "encode", fail)
            with pytest.raises(MemoryError):
                log.submit(stream, large)
        log.submit(stream, rows(0))
        assert log.submit(stream, rows(1)).wait(5).first == 1


HANDLES_IN_A_CHILD = """
import os, sys, threading
from pathlib import Path
from calve.errors import InvalidRequest
from calve.wal import Log, LogOptions
from tests.fakes.oracle import TOPIC, rows

log = Log(Path(sys.argv[1]), LogOptions(free_bytes_min=0))
stream = log.create_stream(TOPIC)
stop = threading.Event()

def work():
    while not stop.is_set():
        log.append(stream, rows(0))

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for i in range(20):
    handle = log.submit(stream, rows(0))
    child = os.fork()
    if child == 0:
        was_done = handle.is_done
        refused = 0
        for use in (handle.wait, lambda: handle.add_done_callback(print)):
            try:
                use()
            except InvalidRequest:
                refused += 1
        with Log(Path(sys.argv[1]) / f"child{i}", LogOptions(free_bytes_min=0)) as own:
            mine = own.create_stream(TOPIC)
            assert [h.wait().first for h in [own.submit(mine, rows(0)) for _ in range(5)]] == [*range(5)]
        os._exit(0 if was_done or refused == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert handle.wait(5).first is not None
stop.set()
for thread in threads:
    thread.join()
log.close()
print("done")
"""


def test_a_fork_in_the_middle_of_appends_hangs_neither_process(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", HANDLES_IN_A_CHILD, str(tmp_path / "wal")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


class _Refusing:
    """A file or a lock whose end fails, and is remembered."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self._name = name
        self._ended = ended

    def close(self) -> None:
        self._ended.append(self._name)
        raise OSError(5, "Input/output error")

    release = close


def test_whatever_fails_in_a_close_everything_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "wal", OPTIONS, background=False)
    ended: list[str] = []
    journal = log._journal
    for name in ("segment", "durable", "lock"):
        monkeypatch.setattr(journal, f"_{name}", _Refusing(name, ended))
    with pytest.raises(OSError, match="Input/output"):
        journal.close(cleanly=False)
    assert sorted(ended) == ["durable", "lock", "segment"]


def test_a_close_that_is_interrupted_while_it_waits_for_the_log_s_thread_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "wal", OPTIONS)
    stream = log.create_stream(TOPIC)
    is_busy, goes_on = threading.Event(), threading.Event()

    def be_busy() -> None:
        is_busy.set()
        goes_on.wait(5)

    def interrupt() -> None:
        goes_on.set()
        raise KeyboardInterrupt

    thread = log._leader._thread
    assert thread is not None
    with monkeypatch.context() as patch:
        patch.setattr(log._leader, "_do_what_is_due", be_busy)
        patch.setattr(thread, "join", interrupt)
        assert is_busy.wait(5)
        handles = [log.submit(stream, rows(i)) for i in range(3)]
        with pytest.raises(KeyboardInterrupt):
            log.close()
    for handle in handles:
        assert handle.batch is not None
        assert handle.batch.wait_until(5), "nobody leads for it but the log's thread"
    log.close()
    Log(tmp_path / "wal", OPTIONS, background=False).close()
