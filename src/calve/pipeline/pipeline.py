"""The pipeline's driver: turns what waits in logs into commits of tables, cycle after cycle.

A cycle looks for topics that are due, writes the rows of all of them in one Spark job, and commits
each table. Whatever dies, and however many do the same at once, a row is in its table once: the
table's own commit decides. Nothing that has to last is kept here.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from calve.access.tickets import KEY_NAME, TicketSigner
from calve.clock import Clock, SystemClock
from calve.errors import CalveError, Unavailable
from calve.pipeline.backlog import Backlog
from calve.pipeline.commits import Commits
from calve.pipeline.crew import Crew
from calve.pipeline.dead_letters import DeadLetterCommits
from calve.pipeline.job import run_pieces
from calve.pipeline.lane import Lane
from calve.pipeline.prepare import Preparation
from calve.pipeline.progress import ProgressReports
from calve.pipeline.publish import Publishing
from calve.pipeline.tables import TopicTables
from calve.pipeline.waits import LATE_SECONDS_MAX, PATIENCE_SECONDS
from calve.sources.logs import Logs
from calve.spark.conf import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from calve.pipeline.lane_work import TopicWork
    from calve.pipeline.work import Piece, PieceDone
    from calve.settings import Settings
    from calve.state import State
    from calve.tables.catalog import LakeCatalog

_LOG: Final = logging.getLogger(__name__)
_LOCAL_TASKS: Final = re.compile(r"local\[(\d+)[,\]]")
_DRAIN_PAUSE_SECONDS: Final = 0.05
_NAMED_MAX: Final = 10


class RunPieces(Protocol):
    """Writes the data files of pieces, on Spark."""

    def __call__(
        self, session: SparkSession, pieces: Sequence[Piece], *, tasks_max: int
    ) -> Sequence[PieceDone]: ...


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle did; topics that failed or were slow lately run beside it, uncounted."""

    topics: int = 0
    commits: int = 0
    rows: int = 0
    dead_letters: int = 0
    has_more: bool = False  # such as rows of which a sample was written first

    @property
    def goes_on(self) -> bool:
        """Whether the next cycle is to follow at once."""
        return self.commits > 0 or self.has_more


class Pipeline:
    """One driver. `run_cycle`, `run` and `drain` are for one thread."""

    def __init__(  # noqa: PLR0913
        self,
        settings: Settings,
        session: SparkSession,
        state: State,
        catalog: LakeCatalog,
        *,
        clock: Clock | None = None,
        flight: str | None = None,
        run_pieces: RunPieces = run_pieces,
        reach: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`flight` is where executors ask for rows that do not see the log's directory.

        `reach` is told the steps of a cycle by name, for whoever tests what dies when.
        """
        self._settings = settings
        self._clock = clock or SystemClock()
        self._tasks_max = tasks_of(settings)
        self._logs = Logs(settings, flight=flight)
        self._backlog = Backlog(
            settings, state, self._logs, tasks_max=self._tasks_max, clock=self._clock
        )
        self._progress = ProgressReports(settings, state, self._clock)
        self._reach = reach
        tables, letters = TopicTables(catalog, state), DeadLetterCommits(catalog)
        publishing = Publishing(state, catalog)
        preparation = Preparation(
            tables,
            letters,
            publishing,
            tasks_max=self._tasks_max,
            clock=self._clock,
            signer=_signer(settings, state, self._clock),
        )
        commits = Commits(settings, tables, letters, publishing, self._clock, reach)

        def lane(tasks_max: int, late_seconds_max: float = 0.0) -> Lane:
            crew = Crew(settings.pipeline.concurrent_batches, patience_seconds=PATIENCE_SECONDS)
            job = partial(run_pieces, session, tasks_max=tasks_max)
            return Lane(preparation, job, commits, crew, reach, late_seconds_max=late_seconds_max)

        self._lane = lane(self._tasks_max)
        # One task at a time: the others must have the rest of Spark, whatever becomes of it.
        self._side_lane = lane(1, LATE_SECONDS_MAX)
        self._side: threading.Thread | None = None

    def run_cycle(self) -> CycleReport:
        """Do what is due. Unavailable if Spark did not do its part; the next cycle may."""
        works = self._backlog.look()
        self._reach("planned")
        aside = [work for work in works if work.feed.health.goes_aside]
        well = [work for work in works if not work.feed.health.goes_aside]
        self._begin_side(aside)
        try:
            if well:
                self._lane.run(well)
        except Unavailable:
            self._progress.publish(self._backlog.feeds, at_once=True)
            raise
        self._progress.publish(self._backlog.feeds)
        return CycleReport(
            topics=len(well),
            commits=sum(work.commits for work in well),
            rows=sum(work.rows for work in well),
            dead_letters=sum(work.dead_letters for work in well),
            has_more=any(work.feed.is_due_now for work in well),
        )

    def run(self, until: threading.Event) -> None:
        """Cycle after cycle, until the event is set.

        Unavailable when Spark has failed as often in a row as `[retry]` allows.
        """
        failures = 0
        while not until.is_set():
            try:
                report = self.run_cycle()
                failures = 0
            except Unavailable as error:
                failures += 1
                if failures >= self._settings.retry.max_attempts:
                    raise
                _LOG.warning("a cycle failed: %s", error.message)
                report = CycleReport()
            if not report.goes_on:
                until.wait(self._settings.pipeline.cycle_interval_ms / 1000)

    def drain(self, timeout_seconds: float) -> bool:
        """Bring everything that waits into the tables; whether that was done in time.

        Topics that are paused are not waited for.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        self._backlog.is_draining = True
        pause = threading.Event()
        try:
            while True:
                report = self.run_cycle()
                if self._backlog.is_empty():
                    self._tell_of_held_back()
                    return True
                if self._clock.monotonic() >= deadline:
                    return False
                if not report.goes_on:
                    pause.wait(_DRAIN_PAUSE_SECONDS)
        finally:
            self._backlog.is_draining = False
            self._progress.publish(self._backlog.feeds, at_once=True)

    def close(self) -> None:
        self._logs.close()

    def _tell_of_held_back(self) -> None:
        names = self._backlog.held_back()
        if names:
            shown = ", ".join(map(str, names[:_NAMED_MAX]))
            more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
            _LOG.info("paused, and not waited for: %s%s; their rows stay in the log", shown, more)

    def _begin_side(self, works: Sequence[TopicWork]) -> None:
        """Try topics that failed or were slow lately, beside the others."""
        if not works:
            return
        if self._side is not None and self._side.is_alive():
            for work in works:
                work.leave()
            return
        self._side = threading.Thread(
            target=self._run_side, args=(works,), name="calve-side-lane", daemon=True
        )
        self._side.start()

    def _run_side(self, works: Sequence[TopicWork]) -> None:
        try:
            self._side_lane.run(works)
        except CalveError as error:
            _LOG.warning("topics that failed could not be tried: %s", error.message)
            for work in works:
                work.feed.health.failed(error)


def tasks_of(settings: Settings) -> int:
    """How many tasks run at once: as many as a local Spark has cores, else as the settings say."""
    found = _LOCAL_TASKS.match(settings.spark.master)
    if found:
        return int(found[1])
    if is_local(settings):
        return (os.cpu_count() or 1) if "*" in settings.spark.master else 1
    return settings.pipeline.concurrent_batches


def _signer(settings: Settings, state: State, clock: Clock) -> TicketSigner | None:
    token = settings.pipeline.token
    if token is None and not settings.auth.required:
        return None
    return TicketSigner(state.signing_key(KEY_NAME), clock, token)
