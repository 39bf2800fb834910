"""What a reader knows of its topic, its table and its log, and how old that may be.

The order of looks matters. The log is looked at after the table, so that it is never behind what
the table says; the topic after the log, so that no row is newer than its columns.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from calve.errors import NotFound
from calve.sources.joining import log_behind
from calve.subscriptions.shape import Shaper
from calve.subscriptions.watch import Seen, TableWatch, has_lost_rows
from calve.topics.registry import TopicRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from calve.clock import Clock
    from calve.model import TableName
    from calve.sources.logs import Logs
    from calve.sources.source_log import ReadableLog
    from calve.state import State
    from calve.subscriptions.shape import Shape
    from calve.subscriptions.stats import Counts
    from calve.tables.catalog import LakeCatalog
    from calve.topics.topic import Topic


_HEARING_SECONDS: Final = 0.02


class World:
    """For one thread."""

    def __init__(  # noqa: PLR0913
        self,
        name: TableName,
        *,
        catalog: LakeCatalog,
        state: State,
        logs: Logs,
        counts: Counts,
        clock: Clock,
        where: str | None,
        columns: Sequence[str] | None,
    ) -> None:
        self._name = name
        self._state = state
        self._registry = TopicRegistry(state)
        self._watch = TableWatch(catalog, name, counts)
        self._logs = logs
        self._clock = clock
        self._shaper = Shaper(where, columns)
        self._changes = state.change_count()
        self.topic: Topic = self._registry.topic(name)
        self.seen = self._watch.look()
        self._seen_at = clock.monotonic()
        self._ahead: Future[tuple[float, Seen]] | None = None
        self._is_due = False  # since a look failed
        self.losses = 0  # another number whenever rows may have been taken out of the table
        self._generation: int | None = None
        self.refresh()

    @property
    def age_seconds(self) -> float:
        """How long ago the table was looked at; for ever, if the last look failed."""
        return math.inf if self._is_due else self._clock.monotonic() - self._seen_at

    @property
    def partitions(self) -> list[int]:
        return sorted({*self.topic.partitions, *self.seen.positions})

    def look_ahead(self, pool: Executor, wake: Callable[[], None]) -> None:
        """Begin a look at the table while rows are read: a catalog may be far away."""
        if self._ahead is None:
            self._ahead = pool.submit(self._looked, self.seen)
            self._ahead.add_done_callback(lambda _: wake())

    @property
    def is_looking_ahead(self) -> bool:
        return self._ahead is not None

    @property
    def has_looked_ahead(self) -> bool:
        return self._ahead is not None and self._ahead.done()

    def _looked(self, before: Seen) -> tuple[float, Seen]:
        at = self._clock.monotonic()
        return at, self._watch.look(before)

    def look(self, judge: Callable[[Seen, Seen], None], *, takes_ahead: bool = False) -> None:
        """Look at the table again; what `judge` does not bear, has not been seen.

        With `takes_ahead`, a look that was begun before will do.
        """
        ahead, self._ahead, self._is_due = self._ahead, None, True
        if takes_ahead and ahead is not None and not ahead.cancel():
            at, found = ahead.result()
        else:
            at, found = self._looked(self.seen)
        judge(self.seen, found)
        self.losses += has_lost_rows(self.seen, found)
        self.seen, self._seen_at, self._is_due = found, at, False
        self.refresh()

    def refresh(self) -> bool:
        """Look at the log again; whether it has become longer."""
        generation = self._logs.refresh()
        if generation == self._generation:
            return False
        self._generation = generation
        changes = self._state.change_count()
        if changes != self._changes:
            self._take_over(self._registry.topic(self._name))
            self._changes = changes
        return True

    def _take_over(self, topic: Topic) -> None:
        if topic.id != self.topic.id:
            raise NotFound(
                f"topic {self._name} was deleted and made again",
                hint="its rows are others now: open the reader anew",
            )
        self.topic = topic

    def shape(self) -> Shape:
        return self._shaper.shape(self.topic, self.seen.table)

    def heard_log(self, partition: int) -> ReadableLog | None:
        """The same, once a service elsewhere that may have it was heard of."""
        while partition in self.topic.partitions:
            log = self.log(partition)
            if log is not None:
                return log
            time.sleep(_HEARING_SECONDS)
            self.refresh()
        return None

    def log(self, partition: int) -> ReadableLog | None:
        """The partition's log; None if it has none, or while a service elsewhere is being asked.

        Unavailable or Conflict says why it cannot be read.
        """
        return log_behind(self._logs, self.topic, partition, self.seen.positions.get(partition))

    def close(self) -> None:
        self._shaper.close()
        self._logs.close()
        self._state.close()
