"""What all tests share: settings that nothing outside a test can change, and one Spark per run."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

import hypothesis
import pytest

from calve.errors import mask_with
from calve.lake import Lake
from calve.settings import Settings, load_settings
from calve.spark.conf import kinds_of
from calve.spark.jars import Jar, JarCache, needed_jars, pinned_jars
from tests.class_data import ClassData
from tests.servers.needs import needed
from tests.servers.postgres import Postgres
from tests.servers.rest import Rest

pytest_plugins = ["tests.contract.matrix", "tests.pages", "tests.servers.fixtures"]

# The same examples in every run, so that a change is judged by itself; `--hypothesis-profile=search`
# looks for new ones.
hypothesis.settings.register_profile("repeat", derandomize=True)
hypothesis.settings.register_profile("search", derandomize=False)
hypothesis.settings.load_profile("repeat")

# Every JVM here lives for seconds or minutes, and would spend half of them compiling its code well.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
CLASS_DATA = ClassData()

MakeSettings = Callable[..., Settings]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file run side by side with those of others, and all with Spark in one process."""
    for item in items:
        group = "spark" if needs_spark(item) else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))


def needs_spark(item: pytest.Item) -> bool:
    return "spark_running" in getattr(item, "fixturenames", ())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have no later search for garbage go through all that was imported and collected."""
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        CLASS_DATA.make_for(sum(map(needs_spark, session.items)))
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    CLASS_DATA.use()


def pytest_unconfigure() -> None:
    CLASS_DATA.close()


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command sends its logs to the standard error of its time, which ends with the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    mask_with(None)


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    """Settings for a lake in this test's directory, from flags alone."""

    def make(**flags: object) -> Settings:
        named = {name.replace("__", "."): value for name, value in flags.items()}
        return load_settings(flags={"data": str(tmp_path / "lake"), **named}, environ={}).settings

    return make


QUICK_RETRIES: Final = {"retry__initial_delay_ms": 10, "retry__max_delay_ms": 50}


class MakeCatalogSettings(Protocol):
    def __call__(self, kind: str, **flags: object) -> Settings: ...


@pytest.fixture
def catalog_settings(
    make_settings: MakeSettings, request: pytest.FixtureRequest
) -> MakeCatalogSettings:
    """Settings for a lake in one of the catalogs."""

    def make(kind: str, **flags: object) -> Settings:
        if kind == "postgres":
            database: Postgres = request.getfixturevalue("postgres_database")
            return make_settings(**{"catalog__uri": database.url} | QUICK_RETRIES | flags)
        if kind == "rest":
            server: Rest = request.getfixturevalue("rest_server")
            # The server's catalog is shared by the whole run; a place of our own is not.
            place = f"{server.warehouse.rstrip('/')}/{uuid4().hex}"
            rest = {"catalog__type": "rest", "catalog__uri": server.uri, "storage__dsn": place}
            return make_settings(**rest | QUICK_RETRIES | flags)
        return make_settings(**QUICK_RETRIES | flags)

    return make


@pytest.fixture
def lake(make_settings: MakeSettings) -> Iterator[Lake]:
    with Lake(make_settings()) as lake:
        yield lake


@pytest.fixture(scope="session")
def more_jars() -> list[Path]:
    """Those that only some kinds of catalog and store need: `make setup` does not fetch them."""
    settings = load_settings(environ={}).settings
    assert settings.cache is not None
    cache = JarCache(settings.cache)
    jars = [jar for jar in pinned_jars() if jar not in needed_jars(kinds_of(settings))]
    with needed(_fetched(cache, cache.missing(jars))):
        return cache.verified_paths(jars)


@pytest.fixture(scope="session")
def spark_running(
    tmp_path_factory: pytest.TempPathFactory, more_jars: list[Path]
) -> Iterator[None]:
    """Keeps the process's Spark alive, so that each lake of a test gets a session at once.

    It has the jars of every kind of catalog and store, whichever lake came first.
    """
    data = tmp_path_factory.mktemp("spark-holder")
    flags = {"spark.conf.spark.jars": ",".join(map(str, more_jars))}
    with Lake(load_settings(flags={"data": str(data), **flags}, environ={}).settings) as holder:
        holder.spark()
        yield


@contextmanager
def _fetched(cache: JarCache, jars: list[Jar]) -> Iterator[None]:
    for jar in jars:
        cache.fetch(jar, progress=lambda _: None)
    yield


@pytest.fixture
def spark_lake(lake: Lake, spark_running: None) -> Lake:
    """A lake of this test's own, with Spark at hand."""
    return lake
