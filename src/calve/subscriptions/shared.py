"""Readings that share one read of a topic's newest rows, and read on their own while behind."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from calve.clock import SystemClock
from calve.subscriptions.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from calve.clock import Clock
    from calve.model import TableName
    from calve.subscriptions.batch import Batch
    from calve.subscriptions.reader import TopicReader
    from calve.subscriptions.reading import Reading
    from calve.subscriptions.start import Start

# What a reading asks for that can be shared.
_SHARED: Final = {
    "where": None,
    "columns": None,
    "partitions": None,
    "follow": True,
    "on_rollback": "fail",
}
_WAIT_SECONDS: Final = 0.25


class Fanout:
    """The tails of a process: one for each topic that somebody reads. Safe between threads."""

    def __init__(
        self,
        open_reader: Callable[..., TopicReader],
        *,
        age_seconds: float,
        clock: Clock | None = None,
    ) -> None:
        """`open_reader` is given a topic's name, a start and the options of a reader."""
        self._open_reader = open_reader
        self._age_seconds = age_seconds
        self.clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._tails: dict[TableName, tuple[Tail, int]] = {}  # with how many read it

    def read(self, topic: TableName, start: Start, **options: Any) -> Reading:
        """A reading that shares what it can: who wants some rows, or an end, reads alone."""
        if any(options.get(name) != usual for name, usual in _SHARED.items() if name in options):
            return self._open_reader(topic, start, **options)
        return SharedReading(self, topic, start)

    def own(self, topic: TableName, start: Start) -> TopicReader:
        return self._open_reader(topic, start)

    def join(self, topic: TableName) -> Tail:
        with self._lock:
            tail, count = self._tails.get(topic, (None, 0))
            if tail is None or tail.problem is not None:
                reader = self._open_reader(topic, "latest")
                tail, count = Tail(reader, age_seconds=self._age_seconds, clock=self.clock), 0
            self._tails[topic] = tail, count + 1
            return tail

    def leave(self, topic: TableName, tail: Tail) -> None:
        with self._lock:
            known, count = self._tails.get(topic, (None, 0))
            if known is tail and count > 1:
                self._tails[topic] = tail, count - 1
                return
            if known is tail:
                del self._tails[topic]
        if known is tail or tail.problem is not None:
            tail.close()

    def close(self) -> None:
        with self._lock:
            tails, self._tails = self._tails, {}
        for tail, _ in tails.values():
            tail.close()


class SharedReading:
    """A `Reading` of all rows of a topic. For one thread; another one may close it."""

    def __init__(self, fanout: Fanout, topic: TableName, start: Start) -> None:
        self._fanout = fanout
        self._topic = topic
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._turn = 0
        self._placements = 0
        with ExitStack() as opened:
            self._own: TopicReader | None = fanout.own(topic, start)
            opened.callback(self._own.close)
            self._positions = self._own.positions
            self._schema = self._own.schema
            self._tail = fanout.join(topic)
            opened.pop_all()

    @property
    def positions(self) -> dict[int, int]:
        return dict(self._positions)

    @property
    def is_done(self) -> bool:
        return self._is_closing.is_set()

    @property
    def is_shared(self) -> bool:
        """Whether it takes its rows from the read that all share."""
        return self._own is None

    @property
    def schema(self) -> pa.Schema:
        """That of the rows that came last."""
        return self._schema

    def ends(self) -> dict[int, int]:
        return self._tail.ends()

    def poll(self, timeout_seconds: float | None = None) -> Batch | None:
        """As of a `TopicReader`; also raises what ended the read that all share."""
        monotonic = self._fanout.clock.monotonic
        deadline = None if timeout_seconds is None else monotonic() + timeout_seconds
        while not self._is_closing.is_set():
            left = _WAIT_SECONDS
            if deadline is not None:
                left = max(0.0, min(left, deadline - monotonic()))
            if self._tail.problem is not None:
                raise self._tail.problem
            batch = self._step(left)
            if batch is not None:
                return batch
            if deadline is not None and monotonic() >= deadline:
                return None
        return None

    def seek(self, start: Start) -> None:
        own = self._fanout.own(self._topic, start)
        with self._lock:
            if not self._is_closing.is_set():
                own, self._own = self._own, own  # type: ignore[assignment]
                assert self._own is not None
                self._positions = self._own.positions
                self._placements += 1
        if own is not None:
            own.close()

    def go_to(self, positions: Mapping[int, int]) -> None:
        """What the shared read passed, it watches over itself; what was read alone is looked at."""
        with self._lock:
            own = self._own
        if own is not None:
            own.look()
        self.seek(positions)

    def close(self) -> None:
        with self._lock:
            if self._is_closing.is_set():
                return
            self._is_closing.set()
        self._tail.wake()
        if self._own is not None:
            self._own.close()
        self._fanout.leave(self._topic, self._tail)

    def _step(self, wait_seconds: float) -> Batch | None:
        """A batch, unless none came or somebody has placed it elsewhere meanwhile."""
        with self._lock:
            own, positions, placements = self._own, self._positions, self._placements
            if own is not None and self._tail.covers(positions):
                own.close()
                own = self._own = None
        if own is not None:
            batch = own.poll(wait_seconds)
            moved: Mapping[int, int] = own.positions
            is_behind = False
        else:
            batch, moved, is_behind = self._tail.take(positions, self._turn, wait_seconds)
            self._turn += 1
        with self._lock:
            if placements != self._placements:
                return None
            self._positions = dict(moved)
            if is_behind and not self._is_closing.is_set():
                self._own = self._fanout.own(self._topic, self._positions)
            if batch is not None:
                self._schema = batch.rows.schema
            return batch
