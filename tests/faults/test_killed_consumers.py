"""Consumers and the service killed at random: nothing is skipped, and one at a time acknowledges."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from calve import Client
from calve.model import TableName
from calve.settings import load_settings
from calve.state import State, SubscriptionName, open_state
from tests.servers.ingest import IngestProcess
from tests.services import ROOT, environment, wait_until

BILLING = SubscriptionName(TableName.parse("orders"), "billing")
ROWS = 20
BATCH_ROWS = 2


class Line(NamedTuple):
    word: str
    token: int
    first: int
    next: int


class Consumers:
    """Two that want the same subscription."""

    def __init__(self, url: str, journal: Path) -> None:
        self._words = [sys.executable, "-m", "tests.faults.killed_consumer", url, str(journal)]
        self._running = [self._started(), self._started()]

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._words, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)

    def kill_one(self, number: int) -> None:
        self._end(self._running[number])
        self._running[number] = self._started()

    def close(self) -> None:
        for each in self._running:
            self._end(each)

    def revive(self) -> None:
        """One that gave up, as a supervisor would start it again."""
        for number, each in enumerate(self._running):
            if each.poll() is not None:
                self._running[number] = self._started()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()


class Progress:
    """Looks at what is acknowledged, which never becomes less."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._last = 0

    def look(self) -> int:
        now = self._state.positions(BILLING).get(0, 0)
        assert now >= self._last
        self._last = now
        return now


def killed_rounds(directory: Path, rounds: int, seed: int) -> str:
    choose = random.Random(seed)
    journal = directory / "journal"
    data = directory / "lake"
    with IngestProcess(data, wal__free_bytes_min=0) as service, Client(service.url) as producer:
        producer.produce("orders", [{"id": 0}]).result()
        state = open_state(load_settings(flags={"data": str(data)}, environ={}).settings)
        progress = Progress(state)
        consumers = Consumers(service.url, journal)
        try:
            wait_until(lambda: progress.look() == 1, 60)
            for number in range(rounds):
                for _ in range(ROWS // BATCH_ROWS):
                    producer.produce("orders", [{"id": n} for n in range(BATCH_ROWS)]).result()
                time.sleep(choose.uniform(0.0, 0.05))  # the moment of death is the test
                victim = number % 3 if rounds < 10 else choose.randrange(3)
                if victim == 2:
                    service.kill()
                    service.start()
                else:
                    consumers.kill_one(victim)
                progress.look()
                consumers.revive()
                if choose.random() < 0.9:  # mostly somebody is at work when death comes
                    before = progress.look()
                    end = ROWS * (number + 1) + 1
                    wait_until(lambda: progress.look() > before or progress.look() == end, 60)  # noqa: B023
            wait_until(lambda: progress.look() == ROWS * rounds + 1, 60)
        finally:
            consumers.close()
            state.close()
    lines = [Line(w, int(t), int(f), int(n)) for w, t, f, n in map(str.split, written(journal))]
    check(lines, ROWS * rounds + 1)
    tokens = {line.token for line in lines}
    acknowledged = sum(line.word == "done" for line in lines)
    return (
        f"\n{rounds} kills (seed {seed}), {len(tokens)} owners, {ROWS * rounds + 1} rows: none "
        f"skipped; {acknowledged} acknowledgements, none behind a later owner's, progress never back"
    )


def written(journal: Path) -> list[str]:
    return journal.read_text().splitlines()


def check(lines: list[Line], end: int) -> None:
    got: set[int] = set()
    done: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        if line.word == "got":
            got.update(range(line.first, line.next))
        else:
            # Whatever is done with, somebody has got.
            assert got >= set(range(line.next))
            done[line.token].append(line.next)
    assert got >= set(range(end))
    tokens = sorted(done)
    for earlier, later in pairwise(tokens):
        # Once the later owner had it, the earlier one could acknowledge nothing more.
        assert max(done[earlier]) <= min(done[later])


@pytest.mark.timeout(120)
def test_nothing_is_skipped_when_consumers_and_the_service_are_killed(tmp_path: Path) -> None:
    killed_rounds(tmp_path, rounds=3, seed=10)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_nothing_is_skipped_in_a_hundred_rounds_of_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = killed_rounds(tmp_path, rounds=100, seed=int(time.time()))
    with capsys.disabled():
        print(told)
