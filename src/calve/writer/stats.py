"""What a writer has done so far, in numbers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from calve.tables.catalogs.sql import PoolWaits


@dataclass(frozen=True, slots=True)
class WriterStats:
    """One moment's counts since the writer was made. Those of a pool are of all who share it.

    `rolled_back_because` has a count for each reason: `requested`, `closed`, or the name of the
    error. A transaction is undecided when its commit got no answer and its outcome stayed unknown.
    `pieces` are what batches were split into, `piece_bytes_max` the largest of them in memory.
    """

    transactions_begun: int = 0
    transactions_committed: int = 0
    transactions_rolled_back: int = 0
    transactions_undecided: int = 0
    rolled_back_because: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    batches: int = 0
    split_batches: int = 0
    pieces: int = 0
    rows: int = 0
    piece_bytes_max: int = 0
    rewritten_transactions: int = 0
    retries: int = 0
    backoff_seconds: float = 0.0
    pool_waits: int = 0
    pool_wait_seconds: float = 0.0


class WriterCounters:
    """Counts for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = WriterStats()

    def count(self, name: str) -> None:
        self._add(**{name: 1})

    def waited(self, seconds: float) -> None:
        self._add(retries=1, backoff_seconds=seconds)

    def took_batch(self, *, rows: int, pieces: int, bytes_max: int) -> None:
        with self._lock:
            most = max(self._stats.piece_bytes_max, bytes_max)
            self._stats = replace(self._stats, piece_bytes_max=most)
        self._add(batches=1, rows=rows, pieces=pieces, split_batches=int(pieces > 1))

    def rolled_back(self, reason: str) -> None:
        self._add(transactions_rolled_back=1)
        with self._lock:
            known = self._stats.rolled_back_because
            more = MappingProxyType({**known, reason: known.get(reason, 0) + 1})
            self._stats = replace(self._stats, rolled_back_because=more)

    def stats(self, pool: PoolWaits) -> WriterStats:
        with self._lock:
            return replace(self._stats, pool_waits=pool.waits, pool_wait_seconds=pool.seconds)

    def _add(self, **more: float) -> None:
        with self._lock:
            summed = {name: getattr(self._stats, name) + value for name, value in more.items()}
            self._stats = replace(self._stats, **summed)
