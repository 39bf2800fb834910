"""Takes a number of topics through one cycle: prepared, written in one job, committed.

Two lanes run side by side: one for topics that are well, one for those that failed lately. A topic
that hangs is left behind by its lane, and is nobody's until it comes back. In the side lane it then
goes on by itself: a catalog that answers late has answered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
        self,
        preparation: Preparation,
        job: Job,
        commits: Commits,
        crew: Crew,
        reach: Reach,
        *,
        late_seconds_max: float = 0.0,
    ) -> None:
        """What was prepared later than its lane waited, but within `late_seconds_max`, is used."""
        self._preparation = preparation
        self._job = job
        self._commits = commits
        self._crew = crew
        self._reach = reach
        self._late_seconds_max = late_seconds_max
        self._writing = threading.Lock()  # one job of a lane at a time, late ones too

    def run(self, works: Sequence[TopicWork]) -> None:
        """Do what can be done for each of the topics, which the caller has taken.

        Unavailable if Spark itself failed: that is no topic's fault, and all of them tell it.
        """
        try:
            self._run(works, self._prepare)
            ready = [work for work in works if work.is_ready]
            if ready:
                self._write_or_tell(ready)
                self._run(ready, self._finish)
                for work in ready:
                    work.feed.health.is_slow = work.is_left
        finally:
            for work in works:
                work.leave()

    def _run(self, works: Sequence[TopicWork], step: Callable[[TopicWork], None]) -> None:
        self._crew.run(works, step, self._failed)
        for work in works:
            if work.leave_behind():
                self._left_behind(work)

    def _prepare(self, work: TopicWork) -> None:
        if not work.begin():
            return
        began = self._commits.clock.monotonic()
        with ExitStack() as held:
            held.callback(work.end)
            if not self._is_prepared(work):
                return
            if work.hand_over():
                held.pop_all()
            elif self._commits.clock.monotonic() - began <= self._late_seconds_max:
                self._finish_late(work)

    def _is_prepared(self, work: TopicWork) -> bool:
        """Whether there is something to write or to commit."""
        try:
            is_ready = self._preparation.prepare(work)
        except CalveError as error:
            self._fails(work, error)
            return False
        if not is_ready:
            work.feed.is_due_now = False
            work.feed.health.went_well()
        return is_ready

    def _finish_late(self, work: TopicWork) -> None:
        """The rest of the way alone: nobody waits for it, and nobody else takes it meanwhile."""
        try:
            self._write_or_tell([work])
        except CalveError as error:
            self._fails(work, error)
        else:
            self._commit(work)

    def _finish(self, work: TopicWork) -> None:
        if not work.begin():
            return
        try:
            self._commit(work)
        finally:
            work.end()

    def _commit(self, work: TopicWork) -> None:
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

    def _write_or_tell(self, works: Sequence[TopicWork]) -> None:
        self._reach("prepared")
        try:
            with self._writing:
                self._write(works)
        except Unavailable as error:
            for work in works:
                work.feed.health.held_up(error)
            raise
        self._reach("written")

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
        work.feed.health.is_slow = True
        seconds = self._crew.patience_seconds
        self._fails(
            work,
            Unavailable(
                f"the catalog or the store of table {work.topic.name} has not answered for "
                f"{seconds:g} seconds",
                hint="look whether they can be reached; the others go on without it, and its own "
                "rows come if there is an answer within a minute",
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
