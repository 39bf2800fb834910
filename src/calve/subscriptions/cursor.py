"""Reads one partition from an offset on: from the table what is committed, from the log the rest.

The table decides about every offset below its committed one: a row that was removed on purpose is
not delivered because a log still has it. The position moves to the end of what was looked at, not
to the last row seen, so that nothing is waited for that is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import CalveError
from calve.sources.joining import gap
from calve.sources.source_log import Trimmed
from calve.subscriptions.batch import Batch
from calve.subscriptions.history import Ahead, History, Source
from calve.subscriptions.memory import NoRoom

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    import pyarrow as pa

    from calve.sources.source_log import ReadableLog
    from calve.subscriptions.memory import HistoryMemory
    from calve.subscriptions.shape import Shape
    from calve.subscriptions.stats import Counts
    from calve.subscriptions.world import World
    from calve.tables.offset_plan import OffsetPlanner


# What a consumer that stands still holds of the log.
_RUN_BYTES: Final = 1 << 20


class Means(NamedTuple):
    """What cursors of one reader share."""

    planner: OffsetPlanner
    pool: Executor
    counts: Counts
    look: Callable[[], None]  # at the table, whatever its age
    memory: HistoryMemory | None  # that is shared with other readers
    wake: Callable[[], None]


class _Plan(NamedTuple):
    """A read of the table that is under way, and what it was planned for."""

    history: History
    end: int
    shape: Shape
    snapshot_id: int | None
    losses: int

    def holds(self, losses: int, shape: Shape) -> bool:
        return self.losses == losses and self.shape is shape and not self.history.is_taken_away


class Step(NamedTuple):
    """A batch, or only whether offsets without rows were passed, or a plan was made anew."""

    batch: Batch | None
    has_moved: bool


IDLE: Final = Step(None, has_moved=False)


class Cursor:
    """For one thread."""

    def __init__(self, world: World, means: Means, partition: int, position: int) -> None:
        self.partition = partition
        self.position = position
        self.stop: int | None = None
        self.ahead_max = 1
        self._world = world
        self._means = means
        self._plan: _Plan | None = None

    @property
    def is_done(self) -> bool:
        return self.stop is not None and self.position >= self.stop

    def seek(self, position: int) -> None:
        self.position = position
        self.drop_plan()

    def step(self) -> Step:
        """Move over some offsets, with the rows that they have, unless there are none yet."""
        if self.is_done:
            return IDLE
        if self._is_in_table():
            try:
                return Step(self._from_table(), has_moved=True)
            except NoRoom:
                is_to_be_read_again = self._plan is not None and self._plan.history.is_taken_away
                return Step(None, has_moved=is_to_be_read_again)
        log = self._world.log(self.partition)
        return IDLE if log is None else self._from_log(log)

    def _is_in_table(self) -> bool:
        return self.position < self._world.seen.committed(self.partition)

    def _from_table(self) -> Batch | None:
        plan = self._plan = self._current_plan()
        try:
            part = plan.history.next()
        except CalveError:
            # Whatever was to come next in it did not: it is read once more from the position on.
            self.drop_plan()
            # Files go when a table is compacted and its old snapshots expire.
            self._means.look()
            if self._world.seen.snapshot_id == plan.snapshot_id:
                raise
            return None
        if part is None:
            self.drop_plan()
            self.position = max(self.position, plan.end)
            return None
        first, self.position = self.position, part.end
        rows = plan.shape.chosen(part.rows.to_batches())
        self._means.counts.add(history_rows=rows.num_rows)
        return self._batch(first, rows)

    def _current_plan(self) -> _Plan:
        """The plan, if what it was made for still holds; else a new one from here on."""
        world, plan = self._world, self._plan
        shape = world.shape()
        if plan is not None and plan.holds(world.losses, shape):
            return plan
        self.drop_plan()
        table = world.seen.table
        assert table is not None
        end = world.seen.committed(self.partition)
        if self.stop is not None:
            end = min(end, self.stop)
        files = self._means.planner.files(
            table, self.partition, self.position, end, condition=shape.condition
        )
        history = History(
            Source(table, shape.schema, shape.needed, self.partition),
            files,
            self.position,
            end,
            ahead=Ahead(self._means.pool, self.ahead_max, self._means.memory, self._means.wake),
            counts=self._means.counts,
        )
        return _Plan(history, end, shape, world.seen.snapshot_id, world.losses)

    def _from_log(self, log: ReadableLog) -> Step:
        durable = log.durable
        # Before its first offset and behind what the table has there never was a row.
        self.position = max(self.position, log.begins_at)
        end = durable if self.stop is None else min(durable, self.stop)
        if self.position >= end:
            return IDLE
        try:
            run = log.run(self.position, end, _RUN_BYTES)
        except Trimmed:
            self._follow_trimmed(log)
            return Step(None, has_moved=True)
        start, self.position = self.position, run[-1].end_offset
        rows = self._world.shape().of_log(run, self.partition)
        self._means.counts.add(tail_rows=rows.num_rows)
        return Step(self._batch(start, rows), has_moved=True)

    def _follow_trimmed(self, log: ReadableLog) -> None:
        """The log lets go only of what the table has: which is to be seen there now."""
        self._means.look()
        if not self._is_in_table():
            raise gap(
                self._world.topic.name,
                self.partition,
                offset=self.position,
                first=log.first,
                committed=self._world.seen.committed(self.partition),
            )

    def _batch(self, first: int, rows: pa.Table) -> Batch | None:
        batch = Batch(str(self._world.topic.name), self.partition, first, self.position, rows)
        return batch if len(batch) else None

    def drop_plan(self) -> None:
        if self._plan is not None:
            self._plan.history.close()
            self._plan = None
