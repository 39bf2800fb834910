"""64 appending threads, killed at any moment: everything acknowledged is there, each row once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from calve.wal import LogReader
from calve.wal.files import OsFiles
from calve.wal.layout import LogLayout
from calve.wal.survey import survey
from tests.faults.killed_writer import TOPIC, last_notes

WRITER = Path(__file__).with_name("killed_writer.py")


def run_and_kill(log: Path, notes: Path, seconds: float) -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, str(WRITER), str(log), str(notes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "started\n"
        time.sleep(seconds)  # the moment of death is the test
        assert writer.poll() is None, writer.stdout.read()
        writer.send_signal(signal.SIGKILL)
        writer.wait()


def check(log: Path, notes: Path) -> int:
    """Compare the log, as the next writer leaves it, with the notes."""
    noted = [tuple(map(int, line.split())) for line in notes.read_text().splitlines()]
    with LogReader(log) as reader:
        stream = reader.stream(TOPIC)
        rows = [
            row
            for entry in reader.read(stream, 0)
            for row in zip(*(c.to_pylist() for c in entry.batch.columns), strict=True)  # type: ignore[union-attr]
        ]
    doubled = [row for row, count in Counter(rows).items() if count > 1]
    lost = [note for note in noted if rows[note[2] : note[2] + 1] != [(note[0], note[1])]]
    assert not doubled
    assert not lost
    for thread in range(64):
        sequences = [sequence for found, sequence in rows if found == thread]
        assert sequences == list(range(len(sequences))), "out of order, or a gap"
    return len(noted)


def torment(tmp_path: Path, rounds: int, seed: int) -> str:
    log, notes = tmp_path / "wal", tmp_path / "notes"
    notes.touch()
    moments = random.Random(seed)
    for _ in range(rounds):
        run_and_kill(log, notes, moments.uniform(0.02, 0.4))
        assert not survey(OsFiles(), LogLayout(log)).damages
    acknowledged = check(log, notes)
    assert len(last_notes(notes)) == 64
    return f"\n{rounds} kills, {acknowledged} acknowledged, 0 lost, 0 doubled"


def test_kills_lose_and_double_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = torment(tmp_path, rounds=8, seed=1)
    with capsys.disabled():
        print(told)


@pytest.mark.torture
def test_200_kills_lose_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = torment(tmp_path, rounds=200, seed=2)
    with capsys.disabled():
        print(told)
