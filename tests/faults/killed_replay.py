"""A process that replays dead letters and is killed at one of its steps.

A step is a call of the catalog, of the file system, or of the log: an append, before and after it
is durable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb  # noqa: F401  loaded before the fork

from calve.ingest.dead_letters import plan
from calve.lake import Lake
from calve.settings import load_settings
from calve.wal.pending import PendingAppend
from tests.faults.killed_change import Steps, watch

LOG_STEPS = frozenset({"submit", "submitted", "durable"})


def watch_log(lake: Lake, steps: Steps) -> None:
    submit, wait = lake.intake.submit, PendingAppend.wait

    def watched_submit(*arguments: Any, **options: Any) -> Any:
        steps.step("submit")
        pending = submit(*arguments, **options)
        steps.step("submitted")
        return pending

    def watched_wait(pending: PendingAppend, *arguments: Any) -> Any:
        done = wait(pending, *arguments)
        steps.step("durable")
        return done

    lake.intake.submit = watched_submit  # type: ignore[method-assign]
    PendingAppend.wait = watched_wait  # type: ignore[method-assign,assignment]


def run(data: str, kill_at: int | None, report: str) -> None:
    steps = Steps(kill_at)
    plan.ROUND_ROWS_MAX, plan.CHUNK_ROWS_MAX = 4, 3  # type: ignore[misc]
    with Lake(load_settings(flags={"data": data}, environ={}).settings) as lake:
        watch(lake.catalog, steps)
        watch_log(lake, steps)
        lake.dead_letters("orders").replay(all=True)
    Path(report).write_text("\n".join(steps.seen))
