"""A pipeline that dies where it is told to.

    python -m tests.faults.killed_pipeline FLAGS [POINT COUNT]

It says `ready` once Spark is there, and kills itself when it comes to the point for the so-manieth
time; a point whose name begins with `worker` kills a Python worker of Spark's instead, once. It takes
no lease, and notes each commit in a file of its own. It ends when standard input does, with
everything that waited in the tables.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.update import AddSchemaUpdate

from calve.log import configure_logs
from calve.pipeline import job
from calve.pipeline.pipeline import Pipeline
from calve.pipeline.task import PieceTask
from calve.settings import load_settings
from calve.spark.session import LakeSpark
from calve.state import open_state
from calve.tables.catalog import LakeCatalog
from tests.faults.noted_producers import Notes

# A table grows in the commit that brings the first rows with the new column.
GROWTH_POINTS = ("before growth", "grown")
DRIVER_POINTS = (
    *("planned", "table made", "prepared", "written", "before commit"),
    *("committed", "dead letters committed", "published"),
    *GROWTH_POINTS,
)
WORKER_POINTS = ("worker before files", "worker after files")
_DRAIN_SECONDS = 120.0


class Fate:
    """Counts how often a point was reached, and ends the process there."""

    def __init__(self, point: str, count: int, commits: Notes) -> None:
        self._point = point
        self._left = count
        self._commits = commits
        self._lock = threading.Lock()

    def reach(self, point: str) -> None:
        if point == "committed":
            self._commits.write(point)
        if point != self._point:
            return
        with self._lock:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


class DyingTask:
    """Spark's task, which takes its worker down with it, the first time that there are rows."""

    def __init__(self, task: PieceTask, point: str, mark: str) -> None:
        self._task = task
        self._point = point
        self._mark = mark

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._point == WORKER_POINTS[0]:
            self._die_once()
        done = list(self._task(numbers))
        if self._point == WORKER_POINTS[1]:
            self._die_once()
        yield from done

    def _die_once(self) -> None:
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def main(flags: str, point: str = "", count: str = "0") -> None:
    settings = load_settings(flags=json.loads(flags), environ={}).settings
    configure_logs(settings)
    beside = Path(settings.data).with_name
    mark = beside(f"worker-{os.getpid()}")
    fate = Fate(point, int(count), Notes(str(beside(f"commits-{os.getpid()}"))))
    made, send = LakeCatalog.create_table, Table._do_commit

    def create_table(*arguments: Any, **options: Any) -> Any:
        table = made(*arguments, **options)
        fate.reach("table made")
        return table

    def do_commit(table: Table, updates: tuple[Any, ...], requirements: tuple[Any, ...]) -> None:
        grows = any(isinstance(each, AddSchemaUpdate) for each in updates)
        reach = fate.reach if grows else partial(str)
        reach(GROWTH_POINTS[0])
        send(table, updates, requirements)
        reach(GROWTH_POINTS[1])

    def task(pieces: Sequence[Sequence[bytes]]) -> DyingTask:
        return DyingTask(PieceTask(pieces), point, str(mark))

    with (
        patch.object(LakeCatalog, "create_table", create_table),
        patch.object(Table, "_do_commit", do_commit),
        patch.object(job, "PieceTask", task),
        LakeCatalog(settings) as catalog,
        closing(open_state(settings)) as state,
        closing(LakeSpark(settings)) as spark,
    ):
        ending = threading.Event()
        threading.Thread(target=until_input_ends, args=(ending,), daemon=True).start()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        pipeline = Pipeline(settings, spark.session, state, catalog, reach=fate.reach)
        print("ready", flush=True)
        pipeline.run(ending)
        is_drained = pipeline.drain(_DRAIN_SECONDS)
        progress = {
            str(at): msgspec.to_builtins(each) for at, each in state.progress().partitions.items()
        }
        assert is_drained, progress
    print("drained", flush=True)


def until_input_ends(ending: threading.Event) -> None:
    sys.stdin.read()
    ending.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
