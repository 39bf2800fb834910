"""The catalog cache: a time to live, readable age, clearable, bounded, never older than it says."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from calve.model import TableName
from calve.tables import cache as cache_module
from calve.tables.cache import TableCache

USERS, ORDERS = TableName.parse("users"), TableName.parse("orders")


class SettableClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds


class CountingCatalog:
    """Gives a new object for each load, as a catalog does."""

    def __init__(self) -> None:
        self.loads: list[TableName] = []
        self.properties: dict[str, str] = {}

    def load(self, name: TableName) -> Any:
        self.loads.append(name)
        return SimpleNamespace(
            number=len(self.loads), io=SimpleNamespace(properties=self.properties)
        )


def make(ttl_seconds: float = 300) -> tuple[TableCache, CountingCatalog, SettableClock]:
    catalog, clock = CountingCatalog(), SettableClock()
    return TableCache(catalog.load, ttl_seconds=ttl_seconds, clock=clock), catalog, clock


def test_a_table_is_loaded_once_while_it_lives_and_again_after() -> None:
    cache, catalog, clock = make()
    first = cache.table(USERS)
    clock.seconds = 299.9
    assert cache.table(USERS) is first
    clock.seconds = 300
    assert cache.table(USERS) is not first
    assert catalog.loads == [USERS, USERS]


def test_age_and_expiry_can_be_read() -> None:
    cache, _, clock = make()
    assert cache.info() is None
    cache.table(USERS)
    clock.seconds = 100
    cache.table(ORDERS)
    info = cache.info()
    assert info is not None
    assert (info.age_seconds, info.is_expired, info.tables) == (100, False, 2)
    clock.seconds = 301
    info = cache.info()
    assert info is not None
    assert info.is_expired


def test_clearing_and_forgetting() -> None:
    cache, catalog, _ = make()
    cache.table(USERS)
    cache.table(ORDERS)
    cache.forget(USERS)
    cache.table(USERS)
    cache.table(ORDERS)
    assert catalog.loads == [USERS, ORDERS, USERS]
    cache.clear()
    assert cache.info() is None


def test_no_time_to_live_means_no_cache() -> None:
    cache, catalog, _ = make(ttl_seconds=0)
    cache.table(USERS)
    cache.table(USERS)
    assert len(catalog.loads) == 2
    assert cache.info() is None


def test_the_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "TABLES_MAX", 2)
    cache, catalog, _ = make()
    third = TableName.parse("third")
    for name in (USERS, ORDERS, USERS, third, USERS):
        cache.table(name)
    assert catalog.loads == [USERS, ORDERS, third]
    cache.table(ORDERS)
    assert catalog.loads[-1] == ORDERS


def test_a_slow_load_does_not_replace_a_newer_one() -> None:
    clock = SettableClock()
    loads: list[str] = []

    def load(name: TableName) -> Any:
        loads.append("load")
        if len(loads) == 1:
            clock.seconds = 10
            cache.reload(name)
            return table("old")
        return table("new")

    cache = TableCache(load, ttl_seconds=300, clock=clock)
    assert cast("Any", cache.table(USERS)).name == "old"
    assert cast("Any", cache.table(USERS)).name == "new"


def table(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, io=SimpleNamespace(properties={}))


def test_a_table_is_loaded_again_before_the_keys_it_came_with_end() -> None:
    cache, catalog, clock = make()
    catalog.properties = {"s3.session-token-expires-at-ms": "100000"}
    first = cache.table(USERS)
    clock.seconds = 39
    assert cache.table(USERS) is first
    clock.seconds = 40
    assert cache.table(USERS) is not first
