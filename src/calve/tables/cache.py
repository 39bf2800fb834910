"""Loaded tables kept for a while, so that repeated work on one table asks the catalog once.

A cached table may be older than the catalog's. That is harmless to a commit, which asserts what it
was based on, and not to a reader, who therefore loads afresh. Bounded by number; the least
recently used goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyiceberg.table import Table

from calve.clock import Clock
from calve.model import TableName

TABLES_MAX: Final = 1_000

_KEYS_END_MS: Final = "s3.session-token-expires-at-ms"
_KEYS_MARGIN_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The age of the oldest cached table, and whether it has outlived its time."""

    age_seconds: float
    is_expired: bool
    tables: int


class TableCache:
    def __init__(self, load: Callable[[TableName], Table], *, ttl_seconds: float, clock: Clock):
        self._load = load
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._loaded: OrderedDict[TableName, tuple[float, Table]] = OrderedDict()

    def table(self, name: TableName) -> Table:
        """The table, at most as old as the time to live."""
        with self._lock:
            held = self._loaded.get(name)
            if held and not self._is_expired(held[0]) and not self._is_locked_out(held[1]):
                self._loaded.move_to_end(name)
                return held[1]
        return self.reload(name)

    def reload(self, name: TableName) -> Table:
        """The table as the catalog has it now."""
        loaded_at = self._clock.monotonic()
        table = self._load(name)
        if self._ttl_seconds > 0:
            self._keep(name, loaded_at, table)
        return table

    def held(self, name: TableName) -> Table | None:
        """The table if it is here, however old."""
        with self._lock:
            found = self._loaded.get(name)
            return found[1] if found else None

    def age_seconds(self, name: TableName) -> float | None:
        """How long ago the table was loaded or changed here; None if it is not here."""
        with self._lock:
            found = self._loaded.get(name)
        return None if found is None else self._clock.monotonic() - found[0]

    def keep(self, name: TableName, table: Table) -> None:
        """Have a table that was loaded, or changed, just now."""
        if self._ttl_seconds > 0:
            self._keep(name, self._clock.monotonic(), table)

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._loaded.pop(name, None)

    def clear(self) -> None:
        with self._lock:
            self._loaded.clear()

    def info(self) -> CacheInfo | None:
        """None while nothing is cached."""
        with self._lock:
            if not self._loaded:
                return None
            oldest = min(loaded_at for loaded_at, _ in self._loaded.values())
            return CacheInfo(
                age_seconds=self._clock.monotonic() - oldest,
                is_expired=self._is_expired(oldest),
                tables=len(self._loaded),
            )

    def _is_expired(self, loaded_at: float) -> bool:
        return self._clock.monotonic() - loaded_at >= self._ttl_seconds

    def _is_locked_out(self, table: Table) -> bool:
        """Whether the keys that the catalog handed out with the table are about to end."""
        ends_ms = table.io.properties.get(_KEYS_END_MS)
        if not ends_ms:
            return False
        left_seconds = int(ends_ms) / 1000 - self._clock.now().timestamp()
        return left_seconds <= _KEYS_MARGIN_SECONDS

    def _keep(self, name: TableName, loaded_at: float, table: Table) -> None:
        with self._lock:
            held = self._loaded.get(name)
            # A slow load that began earlier must not replace a newer one.
            if held is None or held[0] <= loaded_at:
                self._loaded[name] = (loaded_at, table)
                self._loaded.move_to_end(name)
            while len(self._loaded) > TABLES_MAX:
                self._loaded.popitem(last=False)
