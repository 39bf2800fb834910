"""Takes a number of topics through one cycle: prepared, written in one job, committed.

Two lanes run side by side: one for topics that are well, one for those that failed lately. A topic
that hangs is left behind by its lane, and is nobody's until it comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from calve.errors import CalveError, Conflict, Unavailable, unexpected
from calve.pipeline.work import PieceDone
from calve.protocol import problem_of

if TYPE_CHECKING:
    from calve.pipeline.commits import Commits
    from calve.pipeline.crew import Crew
    from calve.pipeline.lane_work import TopicWork
    from calve.pipeline.prepare import Preparation
    from calve.pipeline.work import Piece

    Job: TypeAlias = Callable[[Sequence[Piece]], Sequence[PieceDone]]
    Reach: TypeAlias = Callable[[str], None]

_LOG: Final = logging.getLogger(__name__)


class Lane:
    def __init__(
        self, preparation: Preparation, job: Job, commits: Commits, crew: Crew, reach: Reach
    ) -> None:
        self._preparation = preparation
        self._job = job
        self._commits = commits
        self._crew = crew
        self._reach = reach

    def run(self, works: Sequence[TopicWork]) -> None:
        """Do what can be done for each of the topics, which the caller has taken.

        Unavailable if Spark itself failed: that is no topic's fault, and all of them tell it.
        """
        try:
            self._run(works, self._prepare)
            ready = [work for work in works if work.is_ready]
            if ready:
                self._reach("prepared")
                self._write_or_tell(ready)
                self._reach("written")
                self._run(ready, self._finish)
        finally:
            for work in works:
                work.leave()

    def _run(self, works: Sequence[TopicWork], step: Callable[[TopicWork], None]) -> None:
        self._crew.run(works, step, self._failed)
        for work in works:
            if work.is_worked_on:
                self._left_behind(work)

    def _prepare(self, work: TopicWork) -> None:
        if not work.begin():
            return
        try:
            self._preparation.prepare(work)
            if not work.is_ready:
                work.feed.is_due_now = False
                work.feed.health.went_well()
        except CalveError as error:
            work.is_ready = False
            self._fails(work, error)
        finally:
            work.end()

    def _finish(self, work: TopicWork) -> None:
        if not work.begin():
            return
        work.feed.is_due_now = False
        try:
            self._commits.finish(work)
            work.feed.health.went_well()
        except Conflict as error:
            _LOG.info("%s: written again: %s", work.topic.name, error.message)
            work.feed.is_due_now = True
            work.feed.health.overtaken(error)
        except CalveError as error:
            self._fails(work, error)
        finally:
            work.end()

    def _write_or_tell(self, works: Sequence[TopicWork]) -> None:
        try:
            self._write(works)
        except Unavailable as error:
            for work in works:
                work.feed.health.held_up(error)
            raise

    def _write(self, works: Sequence[TopicWork]) -> None:
        parts = [part for work in works for part in work.parts if part.pieces]
        numbered = [piece for part in parts for piece in part.pieces]
        pieces = [msgspec.structs.replace(each, number=n) for n, each in enumerate(numbered)]
        done = iter(self._written(pieces) if pieces else ())
        for part in parts:
            part.done = [next(done) for _ in part.pieces]

    def _written(self, pieces: Sequence[Piece]) -> Sequence[PieceDone]:
        """What became of each; where one takes its job down, the others are written without it."""
        try:
            return self._job(pieces)
        except Unavailable as error:
            self._job(())  # which tells whether Spark does anything at all
            _LOG.warning("a job of %s pieces failed: %s", len(pieces), error.message)
            if len(pieces) == 1:
                return [_takes_its_job_down(pieces[0], error)]
        half = len(pieces) // 2
        return [*self._written(pieces[:half]), *self._written(pieces[half:])]

    def _failed(self, work: TopicWork, error: Exception) -> None:
        _LOG.error("%s: unexpected", work.topic.name, exc_info=error)
        work.feed.health.failed(unexpected(error))

    @staticmethod
    def _fails(work: TopicWork, error: CalveError) -> None:
        _LOG.warning("%s stops: %s", work.topic.name, error.message, extra={"hint": error.hint})
        work.feed.health.failed(error)

    def _left_behind(self, work: TopicWork) -> None:
        work.leave()
        self._fails(
            work,
            Unavailable(
                f"the catalog or the store of table {work.topic.name} does not answer",
                hint="look whether they can be reached; the others go on without it",
            ),
        )


def _takes_its_job_down(piece: Piece, error: CalveError) -> PieceDone:
    blamed = Unavailable(
        f"writing the rows of {piece.topic.name}, partition {piece.partition}, from offset "
        f"{piece.start} to before {piece.end} takes the Spark job down: {error.message}",
        hint="look at the memory of Spark's workers; `calve pipeline skip "
        f"{piece.topic.name} --to {piece.end}` sets these rows aside",
    )
    return PieceDone(number=piece.number, problem=problem_of(blamed))
