"""100 producers over Flight and HTTP while ingest is killed, or stopped: nothing is lost or doubled.

The oracle is beside the service: what each producer was told, in files that outlive everybody.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from calve.model import TableName
from calve.service.announcement import Addresses, running_service
from calve.service.orders import Order
from calve.service.role import Backoff
from calve.service.supervisor import Supervisor
from calve.wal import Log, LogOptions, LogReader
from tests.faults.ingest_producers import TOPIC, batch_rows
from tests.services import environment, settings_of, wait_until

PRODUCERS = Path(__file__).with_name("ingest_producers.py")
PROCESSES = 4
QUICKLY = Backoff(initial_seconds=0.02, max_seconds=0.1)

Row = tuple[int, int, int]


class Service(NamedTuple):
    """One ingest process with its supervisor, in a thread of this one."""

    supervisor: Supervisor
    flags: dict[str, object]
    words: list[str]

    def ready_pid(self) -> int | None:
        found = running_service(settings_of(Path(str(self.flags["data"])), **self._named()))
        return found.processes["ingest"] if found else None

    def _named(self) -> dict[str, object]:
        return {name.replace(".", "__"): value for name, value in self.flags.items() if "." in name}

    def kill(self) -> None:
        """End the ingest process with no warning, and return when the next one is ready."""
        before = self.ready_pid()
        assert before is not None
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.ready_pid() not in {before, None}, 60)


@contextmanager
def running(data: Path, partition: int = 0) -> Iterator[Service]:
    flags: dict[str, object] = {
        "data": str(data),
        "wal.path": str(data.parent / f"wal-{partition}"),
        "wal.segment_bytes_max": 1 << 20,
        "wal.free_bytes_min": 0,
        "ingest.partition": partition,
        "ingest.http_port": 0,
        "ingest.flight_port": 0,
        "ingest.otlp_grpc_port": 0,
        "ingest.otlp_http_port": 0,
        "log.level": "error",
    }
    named = {name.replace(".", "__"): value for name, value in flags.items() if "." in name}
    words: list[str] = []
    supervisor = Supervisor(
        settings_of(data, **named), Order(flags=flags), say=words.append, backoff=QUICKLY
    )
    supervisor.start()
    looking_after = threading.Thread(target=supervisor.run)
    looking_after.start()
    try:
        yield Service(supervisor, flags, words)
    finally:
        supervisor.stop()
        looking_after.join(60)
        supervisor.close()


@contextmanager
def producing(
    at: Addresses, notes: Path, count: int, *more: str, processes: int = PROCESSES
) -> Iterator[None]:
    """Producers in several processes; after the block each has brought its work to an end."""
    each = count // processes
    started = []
    words = notes.with_suffix(".err").open("ab")  # Arrow's client is loud when a service ends
    for number in range(processes):
        arguments = [at.flight, at.http, str(notes), str(number * each), str(each), *more]
        process = subprocess.Popen(
            [sys.executable, str(PRODUCERS), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            env=environment(),
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        started.append(process)
    try:
        yield
    finally:
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        codes = [process.wait(60) for process in started]
        for process in started:
            assert process.stdout is not None
            process.stdout.close()
        words.close()
    assert codes == [0] * processes, notes.with_suffix(".err").read_text()[-2_000:]


def in_log(wal: Path, partition: int) -> list[Row]:
    """Every row that was ever written, at the place of its offset."""
    Log(wal, LogOptions(free_bytes_min=0)).close()  # which finds what nobody had synced
    rows: list[Row] = []
    with LogReader(wal) as reader:
        for entry in reader.read(reader.stream(TableName.parse(TOPIC), partition), 0):
            assert entry.batch is not None
            assert entry.first_offset == len(rows), "offsets are dense"
            columns = [entry.batch.column(name) for name in ("producer", "sequence", "row")]
            rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return rows


def noted(notes: Path) -> set[tuple[int, int, int, int]]:
    return {
        tuple(map(int, line.split()))  # type: ignore[misc]
        for line in notes.read_text().splitlines()
    }


def check(wal: Path, notes: Path, partition: int = 0) -> int:
    """Hold the log against the notes; how many batches were acknowledged."""
    rows, acknowledged = in_log(wal, partition), noted(notes)
    assert not [row for row, count in Counter(rows).items() if count > 1], "doubled"
    for producer, sequence, first, end in acknowledged:
        sent = [tuple(row.values()) for row in batch_rows(producer, sequence)]
        assert rows[first:end] == sent, "lost, or elsewhere than was said"
    sequences: dict[int, list[int]] = {}
    for producer, sequence, row in rows:
        if row == 0:
            sequences.setdefault(producer, []).append(sequence)
    for found in sequences.values():
        assert found == list(range(len(found))), "out of order, or a gap"
    assert len({(producer, sequence) for producer, sequence, *_ in acknowledged}) == len(
        acknowledged
    ), "a repeat was told other offsets"
    return len(acknowledged)


def torment(tmp_path: Path, *, rounds: int, producers: int, seed: int) -> str:
    notes = tmp_path / "notes"
    moments = random.Random(seed)
    with (
        running(tmp_path / "lake") as service,
        producing(service.supervisor.addresses, notes, producers),
    ):
        for _ in range(rounds):
            time.sleep(moments.uniform(0.1, 1.5))  # the moment of death is the test
            service.kill()
        wait_until(lambda: len({p for p, *_ in noted(notes)}) == producers, 60)
    acknowledged = check(tmp_path / "wal-0", notes)
    return f"\n{rounds} kills, {producers} producers, {acknowledged} batches acknowledged"


def torment_two(tmp_path: Path, *, rounds: int, producers: int, seed: int) -> str:
    """Two ingest processes, each with a partition and a log of its own, over one state."""
    moments = random.Random(seed)
    notes = [tmp_path / "notes-0", tmp_path / "notes-1"]
    with ExitStack() as stack:
        services = [stack.enter_context(running(tmp_path / "lake", each)) for each in (0, 1)]
        with ExitStack() as sending:
            for service, file in zip(services, notes, strict=True):
                at = service.supervisor.addresses
                sending.enter_context(producing(at, file, producers // 2, processes=2))
            for _ in range(rounds):
                time.sleep(moments.uniform(0.1, 1.5))
                moments.choice(services).kill()
    counts = [check(tmp_path / f"wal-{each}", notes[each], each) for each in (0, 1)]
    return f"\n{rounds} kills of two, {producers} producers, {counts} batches acknowledged"


def tell(capsys: pytest.CaptureFixture[str], told: str) -> None:
    with capsys.disabled():
        print(told)


def test_kills_of_ingest_lose_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(capsys, torment(tmp_path, rounds=3, producers=100, seed=1))


def test_kills_of_two_partitions_lose_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(capsys, torment_two(tmp_path, rounds=2, producers=20, seed=2))


@pytest.mark.torture
def test_50_kills_of_ingest_lose_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(capsys, torment(tmp_path, rounds=50, producers=100, seed=3))


@pytest.mark.torture
def test_50_kills_of_two_partitions_lose_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(capsys, torment_two(tmp_path, rounds=50, producers=100, seed=4))


def test_a_stop_under_load_answers_whatever_it_took_in(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with (
        running(tmp_path / "lake") as service,
        producing(service.supervisor.addresses, notes, 100, "once"),
    ):
        wait_until(lambda: notes.exists() and len({p for p, *_ in noted(notes)}) == 100, 60)
        service.supervisor.stop()
        wait_until(lambda: service.supervisor.has_ended, 60)
    assert check(tmp_path / "wal-0", notes) >= 100
    told = {(producer, sequence) for producer, sequence, *_ in noted(notes)}
    appended = {(producer, sequence) for producer, sequence, _ in in_log(tmp_path / "wal-0", 0)}
    assert appended == told, "somebody has got no answer"
