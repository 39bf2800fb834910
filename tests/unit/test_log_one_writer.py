"""One writer at a time; when it dies, however it dies, the next takes over at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from calve.errors import Conflict
from calve.wal import Log, LogOptions
from tests.fakes.oracle import TOPIC, read_values, rows

WRITER = """
import sys
from pathlib import Path
from calve.wal import Log, LogOptions
from tests.fakes.oracle import TOPIC, rows

log = Log(Path(sys.argv[1]), LogOptions(free_bytes_min=0))
log.append(log.create_stream(TOPIC), rows(0, 3))
print("ready", flush=True)
sys.stdin.read()
"""


FORKING_WRITER = """
import os, sys
from pathlib import Path
from calve.wal import Log, LogOptions

log = Log(Path(sys.argv[1]), LogOptions(free_bytes_min=0), background=False)
if os.fork() == 0:
    print("child lives", flush=True)
sys.stdin.read()
"""


FORKED_CHILD = """
import os, sys
from pathlib import Path
from calve.errors import InvalidRequest
from calve.wal import Log, LogOptions
from tests.fakes.oracle import TOPIC, read_values, rows

def refused(call):
    try:
        call()
    except InvalidRequest:
        return True
    return False

log = Log(Path(sys.argv[1]), LogOptions(free_bytes_min=0), background=len(sys.argv) > 2)
stream = log.create_stream(TOPIC)
log.append(stream, rows(0))
log._leader._lead.acquire()  # as if another thread wrote at that moment
waits = os.pipe()
child = os.fork()
if child == 0:
    os.read(waits[0], 1)
    calls = [
        lambda: log.append(stream, rows(9)),
        lambda: log.submit(stream, rows(9)),
        lambda: log.delete_stream(stream),
        log.flush,
        log.rotate,
        lambda: log.next_offset(stream),
    ]
    all_refused = all([refused(call) for call in calls])
    log.close()
    log.close()
    os._exit(0 if all_refused else 1)
log._leader._lead.release()
log.append(stream, rows(1, 3))
os.write(waits[1], b"x")
assert os.waitpid(child, 0)[1] == 0
log.append(stream, rows(4))
log.close()
with Log(Path(sys.argv[1]), background=False) as log:
    print(read_values(log.reader(), TOPIC))
"""


def open_log(path: Path) -> Log:
    return Log(path, LogOptions(free_bytes_min=0), background=False)


@contextmanager
def another_writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with another_writer(tmp_path / "wal"):
        with pytest.raises(Conflict) as refused:
            open_log(tmp_path / "wal")
        assert "has a writer already" in refused.value.message


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path / "wal"), pytest.raises(Conflict):
        open_log(tmp_path / "wal")


def test_the_next_writer_takes_over_when_the_first_was_killed(tmp_path: Path) -> None:
    with another_writer(tmp_path / "wal") as process:
        process.kill()
        process.wait()
        with open_log(tmp_path / "wal") as log:
            assert log.append(log.stream(TOPIC), rows(3)).first == 3
            assert read_values(log.reader(), TOPIC) == [0, 1, 2, 3]


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Not even when its parent dies: the parent here is a process that forks and is killed."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", FORKING_WRITER, str(tmp_path / "wal")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "child lives\n"
        with pytest.raises(Conflict):
            open_log(tmp_path / "wal")
        parent.kill()
        parent.wait()
        open_log(tmp_path / "wal").close()


@pytest.mark.parametrize("background", [[], ["background"]], ids=["alone", "background"])
def test_a_forked_child_can_neither_write_nor_cut_the_log(
    tmp_path: Path, background: list[str]
) -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", FORKED_CHILD, str(tmp_path / "wal"), *background]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("[0, 1, 2, 3, 4]\n", 0), done.stderr


def test_readers_need_no_lock(tmp_path: Path) -> None:
    with another_writer(tmp_path / "wal"):
        from calve.wal import LogReader

        with LogReader(tmp_path / "wal") as reader:
            assert read_values(reader, TOPIC) == [0, 1, 2]
