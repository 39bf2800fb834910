"""Ctrl-C at every moment at which Python lets it through: every handle ends, and the log goes on."""

from __future__ import annotations

import dis
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import calve.wal
from calve.errors import CalveError
from calve.wal import Log, LogOptions, LogReader, PendingAppend
from tests.fakes.disk import SimulatedDisk
from tests.fakes.oracle import TOPIC, read_values, rows

# Each append is a group of its own.
OPTIONS = LogOptions(free_bytes_min=0, group_bytes_max=1, segment_bytes_max=1 << 15)
SOURCE = Path(calve.wal.__file__).parent
FILES = {str(SOURCE / f"{name}.py") for name in ("log", "leader", "backlog", "pending", "journal")}
# Where the interpreter looks for signals: after a call, at a function's start, at a jump back.
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")


def looks_before(code: CodeType) -> set[int]:
    """The instructions right before which an interrupt can be raised as the interpreter does it,
    which counts it to the one before: where another handler begins between the two, it cannot."""
    bytecode = dis.Bytecode(code)
    handlers = bytecode.exception_entries  # type: ignore[attr-defined]

    def handler(offset: int) -> int | None:
        return next((one.target for one in handlers if one.start <= offset < one.end), None)

    return {
        following.offset
        for one, following in itertools.pairwise(bytecode)
        if one.opname.startswith(LOOKS) and handler(one.offset) == handler(following.offset)
    }


class Interrupter:
    """Raises KeyboardInterrupt in this thread, inside the log's code, at the n-th chance."""

    def __init__(self, at: int) -> None:
        self._chances = at
        self._looks: dict[CodeType, set[int]] = {}
        self.has_struck = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if self.has_struck or frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        looks = self._looks.get(frame.f_code)
        if looks is None:
            looks = self._looks[frame.f_code] = looks_before(frame.f_code)
        if event == "opcode" and frame.f_lasti in looks:
            self._chances -= 1
            if self._chances < 0:
                self.has_struck = True
                raise KeyboardInterrupt
        return self


@contextmanager
def interrupted(at: int) -> Iterator[Interrupter]:
    interrupter = Interrupter(at)
    sys.settrace(interrupter)
    try:
        yield interrupter
    finally:
        sys.settrace(None)


def finish_in_time(handles: list[PendingAppend]) -> list[int | None]:
    """What became of each; fails when one waits for ever, also for whoever waits without limit."""
    found: list[int | None] = []

    def wait(handle: PendingAppend) -> None:
        with suppress(CalveError):
            handle.wait()

    for handle in handles:
        waiting = threading.Thread(target=wait, args=(handle,), daemon=True)
        waiting.start()
        waiting.join(5)
        assert not waiting.is_alive(), "a handle is left waiting"
        try:
            found.append(handle.wait(0).first)
        except CalveError:
            found.append(None)
    return found


def append_more(log: Log, handles: list[PendingAppend]) -> None:
    stream = log.stream(TOPIC)
    handles.append(log.submit(stream, rows(len(handles))))
    handles[0].wait()
    log.append(stream, rows(50))


def wait_with_a_limit(_: Log, handles: list[PendingAppend]) -> None:
    for handle in handles:
        handle.wait(5)


def call_back(_: Log, handles: list[PendingAppend]) -> None:
    for handle in handles:
        handle.add_done_callback(lambda _: None)


def flush(log: Log, _: list[PendingAppend]) -> None:
    log.flush()


def close(log: Log, _: list[PendingAppend]) -> None:
    log.close()


def strike(at: int, use: Callable[[Log, list[PendingAppend]], None], *, background: bool) -> bool:
    """Interrupt `use` at its n-th chance, and hold the log to its word. False when it was over."""
    disk = SimulatedDisk()
    log = Log(Path("/wal"), OPTIONS, files=disk, background=background)
    stream = log.create_stream(TOPIC)
    handles = [log.submit(stream, rows(number)) for number in range(3)]
    with interrupted(at) as interrupter:
        try:
            use(log, handles)
        except KeyboardInterrupt:
            assert interrupter.has_struck
    offsets = finish_in_time(handles)
    try:
        offsets += finish_in_time([log.submit(stream, rows(99))])
    except CalveError:
        assert log.is_fenced or use is close
    closing = threading.Thread(target=log.close, daemon=True)
    closing.start()
    closing.join(5)
    assert not closing.is_alive(), "the log cannot be closed"
    Log(Path("/wal"), OPTIONS, files=disk, background=False).close()
    values = read_values(LogReader(Path("/wal"), files=disk), TOPIC)
    for value, offset in zip([*range(len(handles)), 99], offsets, strict=False):
        assert offset is None or values[offset] == value
    assert len(values) == len(set(values)), "nothing is there twice"
    return interrupter.has_struck


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.torture)])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("use", [append_more, wait_with_a_limit, call_back, flush, close])
def test_an_interrupt_at_any_moment_leaves_no_handle_waiting_and_no_lock_taken(
    use: Callable[[Log, list[PendingAppend]], None],
    background: bool,
    step: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chances = itertools.count(0, step)
    tried = sum(
        itertools.takewhile(bool, (strike(at, use, background=background) for at in chances))
    )
    assert tried > 1
    with capsys.disabled():
        print(f"\n{use.__name__}: {tried} interrupts")
