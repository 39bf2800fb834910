"""What all tests share: settings that nothing outside a test can change, and one Spark per run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calve.lake import Lake
from calve.settings import Settings, load_settings

MakeSettings = Callable[..., Settings]


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    """Settings for a lake in this test's directory, from flags alone."""

    def make(**flags: object) -> Settings:
        named = {name.replace("__", "."): value for name, value in flags.items()}
        return load_settings(flags={"data": str(tmp_path / "lake"), **named}, environ={}).settings

    return make


@pytest.fixture
def lake(make_settings: MakeSettings) -> Iterator[Lake]:
    with Lake(make_settings()) as lake:
        yield lake


@pytest.fixture(scope="session")
def spark_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the process's Spark alive, so that each lake of a test gets a session at once."""
    data = tmp_path_factory.mktemp("spark-holder")
    with Lake(load_settings(flags={"data": str(data)}, environ={}).settings) as holder:
        holder.spark()
        yield


@pytest.fixture
def spark_lake(lake: Lake, spark_running: None) -> Lake:
    """A lake of this test's own, with Spark at hand."""
    return lake
