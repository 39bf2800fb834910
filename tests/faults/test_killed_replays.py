"""A replay that is killed at any step, and run again, lands each row exactly once."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import calve
from calve.ingest.dead_letters.rounds import round_under_way
from calve.lake import Lake
from calve.model import TableName
from calve.topics import TopicChange, TopicSpec
from calve.wal import Rejected
from tests.fakes.small_pipeline import drain
from tests.faults import killed_replay
from tests.forks import FORKS

ORDERS = TableName.parse("orders")
LETTERS = 6
# All steps take minutes; those around the log are always among them.
KILLS_MAX = 20


def make_lake(data: Path) -> Path:
    """With dead letters that fit by now, and one that never will; a log cannot be copied."""
    with calve.open(data) as lake:
        spec = TopicSpec(schema={"id": "long"}, on_unknown_column="dead_letter")
        lake.intake.create_topic(ORDERS, spec)
        bodies = [b'{"id": %d, "x": 1}' % number for number in range(LETTERS)]
        bad = [Rejected(body, "application/x-ndjson", "no column x") for body in bodies]
        lake.intake.submit(ORDERS, [*bad, Rejected(b"never", "application/x-ndjson", "no")]).wait()
        lake.intake.alter_topic(ORDERS, TopicChange(on_unknown_column="ignore"))
        drain(lake.intake, lake.catalog, ORDERS)
    return data


def killed(data: Path, kill_at: int | None, report: Path) -> None:
    process = FORKS.Process(target=killed_replay.run, args=(str(data), kill_at, str(report)))
    process.start()
    process.join(60)
    assert process.exitcode == (0 if kill_at is None else -signal.SIGKILL)


def require_each_once(lake: Lake) -> None:
    drain(lake.intake, lake.catalog, ORDERS)
    ids = [row["id"] for row in lake.sql("select id from orders order by id", fresh=False)]
    assert ids == list(range(LETTERS))
    left = lake.dead_letters("orders").list()
    assert left.count == 1
    assert lake.dead_letters("orders").original(left.letters[0].offset) == b"never"
    found = lake.tables.verify_topic("orders")
    assert found.is_sound
    assert found.rows + found.dead_letters == LETTERS + 1


def test_a_killed_replay_that_is_run_again_lands_each_row_once(tmp_path: Path) -> None:
    report = tmp_path / "steps"
    whole = make_lake(tmp_path / "whole")
    killed(whole, None, report)
    steps = report.read_text().splitlines()
    with calve.open(whole) as lake:
        require_each_once(lake)
    at_log = [at for at, step in enumerate(steps, 1) if step in killed_replay.LOG_STEPS]
    kills = {*range(1, len(steps) + 1, -(-len(steps) // KILLS_MAX)), *at_log}
    interrupted = 0
    for kill_at in sorted(kills):
        data = make_lake(tmp_path / "lake")
        killed(data, kill_at, report)
        with calve.open(data) as lake:
            drain(lake.intake, lake.catalog, ORDERS)
            assert lake.tables.verify_topic("orders").is_sound, f"at {steps[kill_at - 1]}"
            letters = lake.catalog.load_table(ORDERS.dead_letters)
            interrupted += round_under_way(letters.properties) is not None
            lake.dead_letters("orders").replay(all=True)
            require_each_once(lake)
        shutil.rmtree(data)
    print(f"a replay of {len(steps)} steps: {len(kills)} kills, {interrupted} in a round")
    assert interrupted > len(kills) // 4
