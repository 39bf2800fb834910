"""PostgreSQL's connections: every bound of `[catalog.pool]`, as the server itself sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException

import calve.postgres as postgres_module
from calve.errors import Denied, NotFound, Unavailable
from calve.lake import Lake
from calve.settings import Settings
from tests.contract.backends import postgres_uri
from tests.servers import faults
from tests.servers.fixtures import ServeTcpFront
from tests.servers.postgres import Postgres

USERS = pa.schema([("id", pa.int64())])
ROW = pa.table({"id": [1]}, schema=USERS)
MakeSettings = Callable[..., Settings]


@pytest.fixture
def database(postgres_server: Postgres) -> Iterator[Postgres]:
    database = postgres_server.create_database()
    yield database
    database.drop_database()


def own(database: Postgres) -> list[dict[str, Any]]:
    return [each for each in database.connections() if each["application_name"] == "calve"]


def wait_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = threading.Event()
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        deadline.wait(0.05)


def open_lake(make_settings: MakeSettings, database: Postgres, **pool: object) -> Lake:
    flags = {f"catalog__pool__{name}": value for name, value in pool.items()}
    return Lake(
        make_settings(catalog__uri=postgres_uri(database), retry__initial_delay_ms=10, **flags)
    )


def test_the_minimum_is_open_from_the_start(
    make_settings: MakeSettings, database: Postgres
) -> None:
    with open_lake(make_settings, database, min_connections=4):
        wait_until(lambda: len(own(database)) == 4)
    wait_until(lambda: own(database) == [])


def test_fifty_operations_at_once_share_the_maximum(
    make_settings: MakeSettings, database: Postgres
) -> None:
    most = 0
    stop = threading.Event()

    def watch() -> None:
        nonlocal most
        while not stop.is_set():
            most = max(most, len(own(database)))

    with open_lake(
        make_settings, database, min_connections=2, max_connections=5, connection_timeout_ms=30_000
    ) as lake:
        lake.catalog.create_table("users", USERS)
        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(50) as pool:
            loaded = list(pool.map(lambda _: lake.catalog.load_table("users"), range(300)))
        stop.set()
        watcher.join()
    assert len(loaded) == 300
    assert 2 < most <= 5


def test_idle_connections_above_the_minimum_are_closed(
    make_settings: MakeSettings, database: Postgres
) -> None:
    with open_lake(
        make_settings, database, min_connections=1, max_connections=6, idle_timeout_seconds=1
    ) as lake:
        lake.catalog.create_table("users", USERS)
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda _: lake.catalog.load_table("users"), range(200)))
        assert len(own(database)) > 1
        wait_until(lambda: len(own(database)) == 1)


def test_a_connection_is_replaced_at_the_end_of_its_life(
    make_settings: MakeSettings, database: Postgres
) -> None:
    with open_lake(make_settings, database, max_lifetime_seconds=1) as lake:
        lake.catalog.create_table("users", USERS)
        first = {each["pid"] for each in own(database)}

        def replaced() -> bool:
            lake.catalog.load_table("users")
            return not first & {each["pid"] for each in own(database)}

        wait_until(replaced)


def test_waiting_for_a_connection_ends_with_the_settings_to_raise(
    make_settings: MakeSettings, database: Postgres
) -> None:
    with open_lake(make_settings, database, max_connections=1, connection_timeout_ms=200) as lake:
        lake.catalog.create_table("users", USERS)
        engine = lake.catalog.iceberg.engine  # type: ignore[attr-defined]
        with engine.connect():
            started = time.monotonic()
            with pytest.raises(Unavailable) as refused:
                lake.catalog.load_table("users")
            assert time.monotonic() - started < 5
        assert "all 1 are in use" in str(refused.value)
        assert "catalog.pool.max_connections" in str(refused.value)
        assert "catalog.pool.connection_timeout_ms" in str(refused.value)
        assert lake.catalog.load_table("users").schema().column_names == ["id"]


def test_broken_connections_are_replaced_and_reads_repeated(
    make_settings: MakeSettings, database: Postgres, serve_tcp_front: ServeTcpFront
) -> None:
    front = serve_tcp_front(database.port)
    with open_lake(make_settings, database.through(front.port)) as lake:
        lake.catalog.create_table("users", USERS)
        for _ in range(3):
            front.disconnect()
            assert lake.catalog.load_table("users").schema().column_names == ["id"]
        front.faults.inject(faults.reset(), when=lambda data: b"SELECT iceberg_tables" in data)
        assert lake.catalog.load_table("users").schema().column_names == ["id"]
        assert front.faults.taken == 1


def test_connections_that_break_while_they_are_used_come_back(
    make_settings: MakeSettings, database: Postgres, serve_tcp_front: ServeTcpFront
) -> None:
    front = serve_tcp_front(database.port)
    few = {"min_connections": 1, "max_connections": 2, "connection_timeout_ms": 1000}
    with open_lake(make_settings, database.through(front.port), **few) as lake:
        lake.catalog.create_table("users", USERS)
        for _ in range(5):
            table = lake.catalog.load_table("users")
            front.faults.inject(faults.drop_answer(), when=lambda data: b"COMMIT" in data)
            with pytest.raises(CommitStateUnknownException):
                table.append(ROW)
        assert lake.catalog.load_table("users").schema().column_names == ["id"]


def test_a_commit_whose_answer_is_lost_has_an_unknown_outcome(
    make_settings: MakeSettings, database: Postgres, serve_tcp_front: ServeTcpFront
) -> None:
    front = serve_tcp_front(database.port)
    with open_lake(make_settings, database.through(front.port)) as lake:
        table = lake.catalog.create_table("users", USERS)
        front.faults.inject(faults.drop_answer(), when=lambda data: b"COMMIT" in data)
        with pytest.raises(CommitStateUnknownException):
            table.append(ROW)
        assert front.faults.taken == 1
        assert lake.catalog.load_table("users").scan().to_arrow().num_rows in (0, 1)


def test_a_server_that_falls_silent_is_an_error_and_not_a_hang(
    make_settings: MakeSettings,
    database: Postgres,
    serve_tcp_front: ServeTcpFront,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_module, "ANSWER_SECONDS_MAX", 0.5)
    front = serve_tcp_front(database.port)
    with open_lake(make_settings, database.through(front.port), connection_timeout_ms=1000) as lake:
        lake.catalog.create_table("users", USERS)
        front.faults.inject(faults.delay(30), times=faults.FOREVER)
        started = time.monotonic()
        with pytest.raises(Unavailable):
            lake.catalog.load_table("users")
        assert time.monotonic() - started < 25


def test_what_is_wrong_with_the_address_is_told(
    make_settings: MakeSettings, database: Postgres
) -> None:
    good = postgres_uri(database)
    cases = {
        good.replace(database.database, "nowhere"): NotFound,
        postgres_uri(database, password="canary"): Denied,
        good.replace(str(database.port), "1"): Unavailable,
    }
    for uri, kind in cases.items():
        with pytest.raises(kind) as refused:
            Lake(make_settings(catalog__uri=uri))
        assert "canary" not in str(refused.value)
        assert refused.value.hint
    assert "Connection refused" in str(refused.value)


def test_looking_at_a_database_without_a_lake_makes_none(
    make_settings: MakeSettings, database: Postgres
) -> None:
    settings = make_settings(catalog__uri=postgres_uri(database))
    with pytest.raises(NotFound, match="there is no lake in postgresql"):
        Lake(settings, create=False)
    assert database.query("select count(*) from pg_tables where schemaname = 'public'") == [(0,)]
    Lake(settings).close()
    Lake(settings, create=False).close()
