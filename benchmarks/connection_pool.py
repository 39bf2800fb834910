"""What a pool and a cache save when a catalog is asked again and again.

    make bench, or: .venv/bin/python -m benchmarks.connection_pool

The claims: with 8 and with 32 operations at once on PostgreSQL, the pool is at least twice as fast
as a connection for each operation; and a cached table is loaded at least ten times faster than an
uncached one on a REST catalog. Both sides of a ratio are measured in the same run, by turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from calve.lake import Lake
from calve.settings import Settings, load_settings
from calve.tables.catalogs.sql import EngineCatalog
from tests.contract.backends import postgres_uri
from tests.servers import postgres, rest

ROUNDS = 5
OPERATIONS = 256
CONCURRENCY = (1, 8, 32)
USERS = pa.schema([("id", pa.int64())])


def settings(directory: Path, **flags: object) -> Settings:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return load_settings(flags={"data": str(directory), **named}, environ={}).settings


def per_second(work: Callable[[], object], *, concurrency: int) -> float:
    with ThreadPoolExecutor(concurrency) as pool:
        started = time.perf_counter()
        list(pool.map(lambda _: work(), range(OPERATIONS)))
        return OPERATIONS / (time.perf_counter() - started)


def pool(directory: Path) -> None:
    with postgres.serve() as server:
        uri = postgres_uri(server)
        held = settings(directory, catalog__uri=uri, catalog__pool__max_connections=10)
        with Lake(held) as lake:
            lake.catalog.create_table("users", USERS)
            pooled = lake.catalog.iceberg
            engine = create_engine(
                uri.replace("postgresql", "postgresql+psycopg"), poolclass=NullPool
            )
            each = EngineCatalog(held.catalog.name, engine, {"uri": uri}, retry=held.retry)
            print_head("operations at once", "pooled/s", "one each/s")
            for concurrency in CONCURRENCY:
                print_pool_row(pooled, each, concurrency)
            each.close()


def print_head(what: str, ours: str, theirs: str) -> None:
    print(f"{what:<20}{ours:>12}{theirs:>12}{'ratio':>8}   must reach")


def print_pool_row(pooled: Catalog, each: Catalog, concurrency: int) -> None:
    """The namespace look-up: one round trip to the database, nothing read from files."""
    rates: dict[str, list[float]] = {"pooled": [], "each": []}
    for _ in range(ROUNDS):
        for name, catalog in (("pooled", pooled), ("each", each)):
            rate = per_second(
                lambda catalog=catalog: catalog.namespace_exists(("default", "default")),  # type: ignore[misc]
                concurrency=concurrency,
            )
            rates[name].append(rate)
    with_pool, without = (statistics.median(rates[name]) for name in ("pooled", "each"))
    wanted = "2.0" if concurrency >= 8 else "-"
    print(
        f"{concurrency:<20}{with_pool:>12.0f}{without:>12.0f}{with_pool / without:>8.1f}   {wanted}"
    )


def cache(directory: Path) -> None:
    with (
        rest.serve() as server,
        Lake(settings(directory, catalog__type="rest", catalog__uri=server.uri)) as lake,
    ):
        lake.catalog.create_table("users", USERS)
        lake.catalog.cached_table("users")
        rates: dict[str, list[float]] = {"cached": [], "uncached": []}
        for _ in range(ROUNDS):
            rates["cached"].append(
                per_second(lambda: lake.catalog.cached_table("users"), concurrency=1)
            )
            rates["uncached"].append(
                per_second(lambda: lake.catalog.load_table("users"), concurrency=1)
            )
        fast, slow = (statistics.median(rates[name]) for name in ("cached", "uncached"))
        print()
        print_head("table loads on REST", "cached/s", "uncached/s")
        print(f"{'':<20}{fast:>12.0f}{slow:>12.0f}{fast / slow:>8.0f}   10")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        pool(Path(directory, "pool"))
        cache(Path(directory, "cache"))


if __name__ == "__main__":
    main()
