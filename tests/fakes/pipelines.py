"""A pipeline over a lake of a test, with tasks in this process or on Spark; and what tables hold."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from calve.clock import Clock
from calve.ingest import Intake
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.pipeline.task import work_on
from calve.pipeline.work import Piece, PieceDone
from calve.settings import Settings
from calve.sources.entries import Sources
from calve.state import State, open_state
from calve.tables.catalog import LakeCatalog
from calve.topics import TopicSpec

OFFSETS = ("_calve_partition", "_calve_offset")


def run_here(_: object, pieces: Sequence[Piece], *, tasks_max: int) -> list[PieceDone]:
    """What Spark's tasks do, in this process."""
    assert tasks_max > 0
    with Sources() as sources:
        return [work_on(piece, sources) for piece in pieces]


@dataclass
class Site:
    """A lake with an intake, a state and a catalog, on which pipelines are tried."""

    settings: Settings
    intake: Intake
    state: State
    catalog: LakeCatalog

    def pipeline(self, **options: Any) -> Pipeline:
        options = {"session": None, "run_pieces": run_here, **options}
        return Pipeline(
            options.pop("settings", self.settings),
            state=self.state,
            catalog=options.pop("catalog", self.catalog),
            **options,
        )

    def run_until_crash(self, step: str) -> None:
        """Run a pipeline that ends when it reaches a step, which it does."""
        pipeline = self.pipeline(reach=crash_at(step))
        try:
            for _ in range(20):
                pipeline.run_cycle()
        except Crash:
            return
        raise AssertionError(f"never reached: {step}")

    def send(self, topic: str, *batches: pa.RecordBatch | list[dict[str, Any]]) -> int:
        """Rows, acknowledged; the end of them."""
        end = 0
        for each in batches:
            batch = pa.RecordBatch.from_pylist(each) if isinstance(each, list) else each
            end = self.intake.submit(TableName.parse(topic), batch).wait().end or end
        return end

    def create(self, topic: str, **spec: Any) -> None:
        self.intake.create_topic(TableName.parse(topic), TopicSpec(**spec))

    def table(self, name: str) -> Table:
        return self.catalog.load_table(name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Without Calve's columns, in the order of offsets; rows that have none come first."""
        found = self.table(name).scan().to_arrow().to_pylist()
        found.sort(key=lambda row: tuple(-1 if row[at] is None else row[at] for at in OFFSETS))
        return [
            {key: value for key, value in row.items() if not key.startswith("_calve_")}
            for row in found
        ]

    def offsets(self, name: str, partition: int = 0) -> list[int]:
        found = self.table(name).scan(selected_fields=OFFSETS).to_arrow().to_pylist()
        return sorted(row[OFFSETS[1]] for row in found if row[OFFSETS[0]] == partition)

    def data_files(self, name: str) -> list[str]:
        """The names of those that lie below the table, whether it knows them or not."""
        root = Path(self.table(name).location().removeprefix("file://"))
        return sorted(path.name for path in root.rglob("*.parquet"))

    def committed(self, topic: str, partition: int = 0) -> int:
        found = self.intake.topics.topic(TableName.parse(topic))
        known = self.state.committed(found.id, partition)
        return known.offset if known else 0

    def require_each_once(self, topic: str, end: int, partition: int = 0) -> None:
        """Every offset is in the topic's table or among its dead letters, once."""
        found = Counter(self.offsets(topic, partition))
        letters = TableName.parse(topic).dead_letters
        if self.catalog.find_table(letters) is not None:
            found.update(self.offsets(str(letters), partition))
        assert sorted(found.elements()) == list(range(end))


@contextmanager
def site(settings: Settings, *, clock: Clock | None = None) -> Iterator[Site]:
    state = open_state(settings)
    with Intake(settings, clock=clock) as intake, LakeCatalog(settings) as catalog:
        try:
            yield Site(settings, intake, state, catalog)
        finally:
            state.close()


def let_side_lane_end() -> None:
    """Wait for what pipelines of this process do for topics that failed."""
    for thread in threading.enumerate():
        if thread.name == "calve-side-lane":
            thread.join()


class Crash(BaseException):
    """Stands for the end of the process at some step."""


def crash_at(point: str) -> Callable[[str], None]:
    """End the pipeline when it reaches a step."""

    def reach(reached: str) -> None:
        if reached == point:
            raise Crash(point)

    return reach
