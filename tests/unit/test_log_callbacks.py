"""Callbacks of appends: run with no lock held, so that they may use the log; mistakes stay alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calve.errors import Unavailable
from calve.wal import Log, LogOptions, PendingAppend
from tests.fakes.oracle import TOPIC, read_values, rows

Use = Callable[[Log], object]
USES: dict[str, Use] = {
    "append": lambda log: log.append(log.stream(TOPIC), rows(1)),
    "submit and wait": lambda log: log.submit(log.stream(TOPIC), rows(1)).wait(5),
    "flush": Log.flush,
    "rotate": Log.rotate,
    "trim": lambda log: log.trim({}),
    "next offset": lambda log: log.next_offset(log.stream(TOPIC)),
    "streams": lambda log: log.streams,
    "create": lambda log: log.create_stream(TOPIC, 1),
    "read": lambda log: read_values(log.reader(), TOPIC),
    "close": Log.close,
}


@pytest.fixture(params=[True, False], ids=["thread", "no thread"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    options = LogOptions(free_bytes_min=0)
    with Log(tmp_path / "wal", options, background=request.param) as log:
        log.create_stream(TOPIC)
        yield log


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("finisher", ["the log", "a waiting caller", "a flush"])
def test_a_callback_may_use_the_log(log: Log, name: str, finisher: str) -> None:
    done = threading.Event()
    mistakes: list[BaseException] = []

    def use(_: PendingAppend) -> None:
        try:
            USES[name](log)
        except BaseException as error:  # noqa: BLE001
            mistakes.append(error)
        done.set()

    def work() -> None:
        handle = log.submit(log.stream(TOPIC), rows(0))
        if finisher == "the log":
            handle.add_done_callback(use)
            done.wait(5)
        else:
            handle.callbacks.append(use)  # without waking the log's thread
        if finisher == "a flush":
            log.flush()
        handle.wait(5)

    thread = threading.Thread(target=work, daemon=True)  # a hang must not outlive the test
    thread.start()
    assert done.wait(5)
    thread.join(5)
    assert not thread.is_alive()
    assert not mistakes


def test_a_long_chain_of_callbacks_needs_no_deep_stack(log: Log) -> None:
    done = threading.Event()
    count = 2_000

    def again(handle: PendingAppend) -> None:
        offset = handle.wait().first
        assert offset is not None
        if offset + 1 < count:
            log.submit(log.stream(TOPIC), rows(offset + 1)).add_done_callback(again)
        else:
            done.set()

    log.submit(log.stream(TOPIC), rows(0)).add_done_callback(again)
    assert done.wait(30)
    assert log.next_offset(log.stream(TOPIC)) == count


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), SystemExit(1)], ids=repr)
def test_a_callback_that_fails_in_the_logs_thread_harms_nobody(
    tmp_path: Path, error: BaseException
) -> None:
    with Log(tmp_path / "wal", LogOptions(free_bytes_min=0)) as log:
        stream = log.create_stream(TOPIC)

        def broken(_: PendingAppend) -> None:
            raise error

        done = threading.Event()
        handles = [log.submit(stream, rows(i)) for i in range(3)]
        handles[0].add_done_callback(broken)
        handles[0].add_done_callback(broken)
        handles[2].add_done_callback(lambda _: done.set())
        assert done.wait(5)
        assert [handle.wait(5).first for handle in handles] == [0, 1, 2]
        again = threading.Event()
        log.submit(stream, rows(3)).add_done_callback(lambda _: again.set())
        assert again.wait(5), "the log's thread goes on"
        assert not log.is_fenced


def test_an_interrupt_in_a_callback_reaches_the_user_and_the_rest_is_called(log: Log) -> None:
    stream = log.stream(TOPIC)
    called = threading.Event()

    def interrupted(_: PendingAppend) -> None:
        raise KeyboardInterrupt

    first, second = log.submit(stream, rows(0)), log.submit(stream, rows(1))
    first.callbacks.append(interrupted)
    second.callbacks.append(lambda _: called.set())
    with pytest.raises(KeyboardInterrupt):
        first.wait()
    assert log.append(stream, rows(2)).first == 2
    assert called.wait(5)
    assert second.wait(5).first == 1


def test_a_slow_callback_keeps_no_append_waiting(tmp_path: Path) -> None:
    with Log(tmp_path / "wal", LogOptions(free_bytes_min=0)) as log:
        stream = log.create_stream(TOPIC)
        entered, leave = threading.Event(), threading.Event()

        def slow(_: PendingAppend) -> None:
            entered.set()
            leave.wait(30)

        log.submit(stream, rows(0)).add_done_callback(slow)
        assert entered.wait(5)
        assert log.append(stream, rows(1)).first == 1
        assert log.submit(stream, rows(2)).wait(5).first == 2
        leave.set()


@pytest.mark.parametrize("mode", ["always", "periodic"])
def test_a_slow_callback_keeps_no_write_and_no_sync_waiting(tmp_path: Path, mode: str) -> None:
    """Neither of an append for which nobody waits, nor the periodic one."""
    options = LogOptions(
        free_bytes_min=0,
        sync_mode=mode,  # type: ignore[arg-type]
        sync_interval_seconds=0.05,
    )
    entered, leave = threading.Event(), threading.Event()

    def slow(_: PendingAppend) -> None:
        entered.set()
        leave.wait(30)

    with Log(tmp_path / "wal", options) as log:
        stream = log.create_stream(TOPIC)
        log.submit(stream, rows(0)).add_done_callback(slow)
        assert entered.wait(5)
        called: list[int] = []
        for i in range(1, 4):
            handle = log.submit(stream, rows(i))
            handle.add_done_callback(lambda _, i=i: called.append(i))  # type: ignore[misc]
        with log.reader() as reader:
            assert reader.wait(stream, 3, 5)
        assert not called
        leave.set()
    assert called == [1, 2, 3]
    assert not [t for t in threading.enumerate() if t.name.startswith("calve-wal")]


def test_a_callback_of_an_append_that_is_refused_is_called_too(log: Log) -> None:
    stream = log.stream(TOPIC)
    found: list[PendingAppend] = []
    handle = log.submit(stream, rows(0), producer="p", sequence=7)
    done = threading.Event()
    handle.add_done_callback(found.append)
    handle.add_done_callback(lambda _: done.set())
    assert done.wait(5)
    assert found == [handle]


def test_a_callback_after_closing_is_called_at_once(log: Log) -> None:
    handle = log.submit(log.stream(TOPIC), rows(0))
    log.close()
    found: list[PendingAppend] = []
    handle.add_done_callback(found.append)
    assert found == [handle]
    with pytest.raises(Unavailable):
        log.submit(log.stream(TOPIC), rows(1))
