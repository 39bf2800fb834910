"""The table that a writer writes to: found, remembered for a while, and made if it is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, TypeVar

from calve.clock import Clock
from calve.errors import Conflict, InvalidRequest, NotFound, Unavailable
from calve.model import TableName
from calve.retry import retried
from calve.settings import RetrySettings
from calve.tables.cache import CacheInfo, TableCache
from calve.tables.catalog import LakeCatalog
from calve.tables.catalogs.sql import PoolWaits
from calve.tables.commit import FRESH_SECONDS

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_T = TypeVar("_T")


class TargetTable:
    """Safe to share between threads; each gets a copy of the table, which commits change."""

    def __init__(
        self,
        catalog: Callable[[], LakeCatalog],
        name: TableName,
        *,
        ttl_seconds: float,
        clock: Clock,
        on_wait: Callable[[float], None],
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._clock = clock
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._cache = self._new_cache(ttl_seconds)

    def remember_for(self, ttl_seconds: float) -> None:
        with self._lock:
            self._cache = self._new_cache(ttl_seconds)

    def current(self, retry: RetrySettings) -> Table | None:
        """The table, as old as the cache allows; None if there is none yet."""
        try:
            return copy(self._tried(lambda: self._cache.table(self.name), retry))
        except NotFound:
            return None

    def newest(self, table: Table) -> Table:
        """The table as the last commit here left it, or as given if that is another one."""
        held = self._cache.held(self.name)
        if held is None or held.metadata.table_uuid != table.metadata.table_uuid:
            held = table
        return copy(held)

    def is_fresh(self) -> bool:
        """Whether the table that is remembered was seen a moment ago."""
        age_seconds = self._cache.age_seconds(self.name)
        return age_seconds is not None and age_seconds < FRESH_SECONDS

    def create(self, schema: Schema, retry: RetrySettings) -> Table:
        """The new table, or the one that somebody else has made just before."""
        if not schema.fields:
            raise InvalidRequest(
                f"the table {self.name} does not exist, and the rows have no value to make a "
                "column from",
                hint="write rows with values first, or create the table with its columns",
            )
        try:
            made = self._tried(lambda: self._catalog().create_table(self.name, schema), retry)
        except Conflict:
            made = self._tried(lambda: self._cache.reload(self.name), retry)
        self.keep(made)
        return copy(made)

    def keep(self, table: Table) -> None:
        self._cache.keep(self.name, copy(table))

    def forget(self) -> None:
        self._cache.forget(self.name)

    def cache_info(self) -> CacheInfo | None:
        return self._cache.info()

    def pool_waits(self) -> PoolWaits:
        return self._catalog().pool_waits()

    def _new_cache(self, ttl_seconds: float) -> TableCache:
        return TableCache(
            lambda name: self._catalog().load_table(name),
            ttl_seconds=ttl_seconds,
            clock=self._clock,
        )

    def _tried(self, work: Callable[[], _T], retry: RetrySettings) -> _T:
        return retried(
            work, retry, lambda error: isinstance(error, Unavailable), on_wait=self._on_wait
        )
