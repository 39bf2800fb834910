"""A writer's connections to PostgreSQL: as many as its pool says, waited for, and counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from calve.errors import InvalidRequest, Unavailable
from calve.lake import Lake
from calve.settings import Settings
from calve.writer import (
    CatalogPoolConfig,
    RetryConfig,
    create_iceberg_writer,
    create_iceberg_writer_with_pool,
)
from tests.conftest import MakeSettings
from tests.contract.backends import postgres_uri
from tests.integration.test_connection_pool import own, wait_until
from tests.integration.writing import ids, rows
from tests.servers.postgres import Postgres


@pytest.fixture
def database(postgres_server: Postgres) -> Iterator[Postgres]:
    database = postgres_server.create_database()
    yield database
    database.drop_database()


@pytest.fixture
def settings(make_settings: MakeSettings, database: Postgres) -> Settings:
    return make_settings(catalog__uri=postgres_uri(database), catalog__pool__max_connections=7)


def test_a_pool_of_ones_own_is_used(settings: Settings, database: Postgres) -> None:
    pool = CatalogPoolConfig(min_connections=3, max_connections=4, connection_timeout_ms=10_000)
    with create_iceberg_writer_with_pool(settings, "acme", "sales", "orders", pool) as writer:
        assert writer.pool_config == pool
        wait_until(lambda: len(own(database)) == 3)
        writer.write_batch(rows(3))
    wait_until(lambda: own(database) == [])
    with Lake(settings) as lake:
        assert ids(lake, "acme.sales.orders") == [0, 1, 2]


def test_without_one_the_settings_say_how_many(settings: Settings, database: Postgres) -> None:
    with create_iceberg_writer(settings, "acme", "sales", "orders") as writer:
        assert writer.pool_config == CatalogPoolConfig(max_connections=7)
        wait_until(lambda: len(own(database)) == 1)


def test_many_threads_share_few_connections_and_their_waits_are_counted(
    settings: Settings, database: Postgres
) -> None:
    pool = CatalogPoolConfig(max_connections=2, connection_timeout_ms=30_000)
    with create_iceberg_writer_with_pool(settings, "acme", "sales", "orders", pool) as writer:
        writer.write_batch(rows(1))
        most = 0
        stop = threading.Event()

        def watch() -> None:
            nonlocal most
            while not stop.is_set():
                most = max(most, len(own(database)))

        def write(number: int) -> None:
            writer.clear_catalog_cache()
            writer.write_batch(rows(1, start=number))

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(12) as threads:
            list(threads.map(write, range(1, 37)))
        stop.set()
        watcher.join()
        stats = writer.stats
        assert most <= 2
        assert stats.pool_waits > 0
        assert stats.pool_wait_seconds > 0
        assert stats.transactions_committed == 37
    # Still to be read when nobody can be asked any more.
    assert writer.stats.pool_waits >= stats.pool_waits
    with Lake(settings) as lake:
        assert ids(lake, "acme.sales.orders") == list(range(37))


def test_a_pool_that_is_used_up_is_an_error_that_names_the_settings(settings: Settings) -> None:
    pool = CatalogPoolConfig(max_connections=1, connection_timeout_ms=200)
    retry = RetryConfig(max_attempts=2, initial_delay=0.01)
    with create_iceberg_writer(
        settings, "acme", "sales", "orders", pool=pool, retry=retry
    ) as writer:
        writer.write_batch(rows(1))
        writer.clear_catalog_cache()
        engine = writer._target._catalog().iceberg.engine  # type: ignore[attr-defined]
        with engine.connect(), pytest.raises(Unavailable) as refused:
            writer.write_batch(rows(1, start=1))
        assert "catalog.pool.max_connections" in str(refused.value)
        assert writer.stats.retries == 1
        assert writer.write_batch(rows(1, start=1)).snapshot_id is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_connections": 0}, "max_connections: 0"),
        ({"min_connections": -1}, "min_connections: -1"),
        ({"min_connections": 5, "max_connections": 4}, "5 is more than max_connections, 4"),
        ({"connection_timeout_ms": "3000"}, "connection_timeout_ms: '3000'"),
        ({"max_lifetime_seconds": 0}, "max_lifetime_seconds: 0"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        CatalogPoolConfig(**options)
