"""TopicReader: every row of a topic from any place on, in order, once each, as long as one likes.

History comes from the table and the newest rows from the log; where the one ends and the other
begins is not to be seen. Progress is an offset of each partition, so that compaction, expiry and
the end of the process change nothing.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from calve.clock import SystemClock
from calve.errors import Conflict, InvalidRequest, NotFound
from calve.subscriptions.cursor import IDLE, Cursor, Means, Step
from calve.subscriptions.polled import Polled
from calve.subscriptions.start import checked_start, first_offset_since
from calve.subscriptions.stats import Counts
from calve.subscriptions.watch import set_back
from calve.subscriptions.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from calve.clock import Clock
    from calve.model import TableName
    from calve.settings.tree import ReaderSettings
    from calve.sources.logs import Logs
    from calve.state import State
    from calve.subscriptions.batch import Batch
    from calve.subscriptions.memory import HistoryMemory
    from calve.subscriptions.start import Start
    from calve.subscriptions.stats import ReaderStats
    from calve.subscriptions.waiting import Waiting
    from calve.subscriptions.watch import Seen, SetBack
    from calve.tables.catalog import LakeCatalog
    from calve.tables.offset_plan import OffsetPlanner

OnRollback: TypeAlias = Literal["fail", "skip", "from"]
# Of the time that what is known of the table may be old: then a look begins beside the reading.
_EARLY_SHARE: Final = 0.75


class TopicReader(Polled["Batch"]):
    """An iterator of batches. A context manager, for one thread; another one may close it."""

    def __init__(  # noqa: PLR0913
        self,
        name: TableName,
        start: Start = "earliest",
        *,
        catalog: LakeCatalog,
        state: State,
        logs: Logs,
        planner: OffsetPlanner,
        settings: ReaderSettings,
        waiting: Waiting,
        memory: HistoryMemory | None = None,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        follow: bool = True,
        on_rollback: OnRollback = "fail",
        clock: Clock | None = None,
    ) -> None:
        """`state`, `logs` and `waiting` are closed with the reader, also when it cannot be made."""
        self._counts = Counts()
        self._settings = settings
        self._poll_seconds = settings.poll_interval_ms / 1000
        self._clock = clock or SystemClock()
        self._wanted = None if partitions is None else frozenset(partitions)
        self._on_rollback = _checked_policy(on_rollback)
        self._follows = follow
        self._is_closing = threading.Event()
        self._lock = threading.Lock()
        self._next = 0
        self._cursors: list[Cursor] = []
        self._told: Seen | None = None  # the table after a rollback that failed the reader
        self._left_at: dict[int, int] | None = None  # where it was closed
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = waiting
        with ExitStack() as closing:
            closing.callback(waiting.close)
            closing.callback(state.close)
            closing.callback(logs.close)
            start = checked_start(start)
            self._world = World(
                name,
                catalog=catalog,
                state=state,
                logs=logs,
                counts=self._counts,
                clock=self._clock,
                where=where,
                columns=columns,
            )
            workers = max(1, min(settings.max_concurrent_reads, settings.prefetch_size))
            pool = ThreadPoolExecutor(workers, thread_name_prefix="calve-reader")
            closing.callback(pool.shutdown, wait=True, cancel_futures=True)
            self._means = Means(planner, pool, self._counts, self._look, memory, waiting.wake)
            self._world.shape()  # so that a condition that is none is refused here
            self._require_partitions()
            self._place(start)
            closing.pop_all()
        self._pool = pool

    @property
    def topic(self) -> str:
        return str(self._world.topic.name)

    @property
    def positions(self) -> dict[int, int]:
        """The offset, by partition, that is read next: where another reader would go on."""
        if self._left_at is not None:
            return dict(self._left_at)
        return {each.partition: each.position for each in self._cursors}

    @property
    def schema(self) -> pa.Schema:
        """That of the rows now; a later batch may have another."""
        with self._lock:
            return self._world.shape().handed_schema

    def ends(self) -> dict[int, int]:
        """The offset, by partition, that the next row will get."""
        with self._lock:
            if self._is_closing.is_set():
                raise _closed()
            self._world.refresh()
            return {partition: self._end(partition) for partition in self._partitions()}

    @property
    def stats(self) -> ReaderStats:
        return self._counts.now

    @property
    def is_done(self) -> bool:
        """Whether a reader that does not follow has handed out everything, or it was closed."""
        if self._is_closing.is_set():
            return True
        return not self._follows and all(each.is_done for each in self._cursors)

    def poll(self, timeout_seconds: float | None = None) -> Batch | None:
        """The next batch, waiting for one if need be.

        None when the time is over, or when there will be no more: `is_done` tells.
        """
        waiting_since = self._clock.monotonic()
        while True:
            self._waiting.begin()
            with self._lock:
                step = IDLE if self._is_closing.is_set() else self._step()
            if step.batch is not None or self.is_done:
                return step.batch
            waited = self._clock.monotonic() - waiting_since
            if timeout_seconds is not None and waited >= timeout_seconds:
                return None
            if step.has_moved:
                continue
            left = self._seconds_until_look
            if timeout_seconds is not None:
                left = min(left, timeout_seconds - waited)
            self._waiting.wait(waited, left)

    def seek(self, start: Start) -> None:
        """Go on from another place; the same words as for the start.

        A rollback that nobody was told of yet is told before, where it is to fail the reader.
        """
        checked = checked_start(start)
        with self._lock:
            if self._is_closing.is_set():
                raise _closed()
            self._world.look(self._judge_move)
            self._place(checked)
            self._told = None

    def go_to(self, positions: Mapping[int, int]) -> None:
        """The same without a look at the table: what was not noticed yet, `poll` will."""
        with self._lock:
            if self._is_closing.is_set():
                raise _closed()
            self._world.refresh()
            self._place(positions)

    def look(self) -> None:
        """Look at the table now, and act on a rollback by the policy, as `poll` does at times."""
        with self._lock:
            if not self._is_closing.is_set():
                self._look()

    def close(self) -> None:
        """End it; a `poll` under way in another thread returns None."""
        self._is_closing.set()
        self._waiting.close()
        with self._lock:
            if self._pool is None:
                return
            pool, self._pool = self._pool, None
            for each in self._cursors:
                each.drop_plan()
            pool.shutdown(wait=True, cancel_futures=True)
            self._world.close()
            # They hold each other: what they hold is let go of now, and not some day.
            self._left_at = self.positions
            self._cursors = []
            del self._means

    def __repr__(self) -> str:
        return f"TopicReader({self.topic!r}, positions={self.positions})"

    def _step(self) -> Step:
        """One step in the partition whose turn it is, or in the next that has something."""
        self._counts.add(polls=1)
        self._know_more()
        for _ in self._cursors:
            cursor = self._cursors[self._next % len(self._cursors)]
            self._next += 1
            step = cursor.step()
            if step.has_moved:
                self._counts.add(batches=step.batch is not None)
                return step
        return IDLE

    def _know_more(self) -> None:
        """Look at the table when it is time for that, else at the log alone."""
        world = self._world
        if world.has_looked_ahead or world.age_seconds >= self._poll_seconds:
            self._look(takes_ahead=True)
            if world.age_seconds >= self._poll_seconds:  # nobody came for what it found
                self._look()
            return
        if self._seconds_until_look <= 0 and not world.is_looking_ahead:
            assert self._pool is not None
            world.look_ahead(self._pool, self._waiting.wake)
        if world.refresh():
            self._add_partitions()

    @property
    def _seconds_until_look(self) -> float:
        """Until a look at the table is to begin; once it has, until its result is waited for."""
        share = 1.0 if self._world.is_looking_ahead else _EARLY_SHARE
        return self._poll_seconds * share - self._world.age_seconds

    def _look(self, *, takes_ahead: bool = False) -> None:
        self._world.look(self._judge, takes_ahead=takes_ahead)
        self._told = None
        self._add_partitions()

    def _judge(self, before: Seen, after: Seen) -> None:
        """Act on a rollback of rows that were passed already, by the policy."""
        found = [
            (each, set_back(before, after, each.partition, each.position)) for each in self._cursors
        ]
        passed = [(cursor, back) for cursor, back in found if back is not None]
        if passed and self._on_rollback == "fail":
            self._told = after
            raise self._rolled_back(*passed[0])
        if self._on_rollback == "from":
            for cursor, back in passed:
                cursor.seek(back.lowest)

    def _judge_move(self, before: Seen, after: Seen) -> None:
        """Whoever goes elsewhere leaves it at what he was told of; a place wins over a policy."""
        if self._on_rollback == "fail":
            self._judge(self._told or before, after)

    def _rolled_back(self, cursor: Cursor, back: SetBack) -> Conflict:
        name, number, here = self._world.topic.name, cursor.partition, self.positions
        return Conflict(
            f"the table of topic {name} was rolled back: rows of partition {number} from offset "
            f"{back.lowest} on were taken out, and this reader has come to {cursor.position}",
            hint=f"`reader.seek({here})` leaves it at that, "
            f"`reader.seek({here | {number: back.lowest}})` reads again what comes again; "
            'on_rollback="skip" or "from" does so by itself',
            context={
                "partition": str(number),
                "position": str(cursor.position),
                "lowest": str(back.lowest),
                "committed": str(back.committed),
            },
        )

    def _partitions(self) -> list[int]:
        return [p for p in self._world.partitions if self._wanted is None or p in self._wanted]

    def _require_partitions(self) -> None:
        known = self._world.partitions
        for partition in sorted(self._wanted or ()):
            if partition not in known:
                raise NotFound(
                    f"topic {self._world.topic.name} has no partition {partition}",
                    hint=f"its partitions are {', '.join(map(str, known)) or 'none yet'}",
                )

    def _add_partitions(self) -> None:
        """Those that are new are read from their first row on, whatever the start was."""
        known = {each.partition for each in self._cursors}
        for partition in self._partitions():
            if partition not in known and self._follows:
                self._cursors.append(Cursor(self._world, self._means, partition, 0))
        self._share_out()

    def _place(self, start: Start) -> None:
        """Put a cursor at the start in every partition, or change nothing if one cannot be."""
        places = {partition: self._offset(partition, start) for partition in self._partitions()}
        for each in self._cursors:
            each.drop_plan()
        self._cursors = [
            Cursor(self._world, self._means, partition, offset)
            for partition, offset in places.items()
        ]
        if not self._follows:
            for each in self._cursors:
                each.stop = self._end(each.partition)
        self._share_out()

    def _share_out(self) -> None:
        for each in self._cursors:
            each.ahead_max = max(1, self._settings.prefetch_size // len(self._cursors))

    def _end(self, partition: int) -> int:
        log = self._world.heard_log(partition)
        durable = log.durable if log is not None else 0
        return max(durable, self._world.seen.committed(partition))

    def _offset(self, partition: int, start: Start) -> int:
        if start == "earliest":
            return 0
        if start == "latest":
            return self._end(partition)
        if isinstance(start, datetime):
            return self._offset_at(partition, start)
        offset = start if isinstance(start, int) else _named(start, partition)
        end = self._end(partition)
        if offset > end:
            raise InvalidRequest(
                f"there is no offset {offset} yet: partition {partition} of topic "
                f"{self._world.topic.name} ends at {end}",
                hint="`latest` waits for the rows that come next",
                context={"end": str(end)},
            )
        return offset

    def _offset_at(self, partition: int, moment: datetime) -> int:
        log, seen = self._world.heard_log(partition), self._world.seen
        found = self._end(partition)
        if log is not None:
            found = log.offset_at(moment)
            if found > log.first:
                return found
        if seen.table is None:
            return found
        earlier = first_offset_since(
            self._means.planner,
            seen.table,
            partition,
            seen.committed(partition),
            moment,
            self._counts,
        )
        return found if earlier is None else min(earlier, found)


def _named(start: Start, partition: int) -> int:
    """Partitions that are not named are new to whoever names the others."""
    assert not isinstance(start, int | str | datetime)
    places: Mapping[int, int] = start
    return places.get(partition, 0)


def _closed() -> InvalidRequest:
    return InvalidRequest("the reader has been closed", hint="open another one")


def _checked_policy(given: OnRollback) -> OnRollback:
    if given in get_args(OnRollback):
        return given
    raise InvalidRequest(f"on_rollback is {given!r}", hint='use "fail", "skip" or "from"')
