"""Whatever is done to a table, in any order, it holds what a plain model of it holds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from calve.manager import IcebergManager
from calve.settings import load_settings
from tests.property.table_machine import TableMachine

SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[IcebergManager]:
    chosen = load_settings(flags={"data": str(tmp_path / "lake")}, environ={}).settings
    with IcebergManager(chosen) as manager:
        yield manager


def run(machine: object, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]
        settings=settings(max_examples=examples, stateful_step_count=steps, **SETTINGS),  # type: ignore[arg-type]
    )


def test_a_table_is_what_its_model_is(manager: IcebergManager) -> None:
    run(partial(TableMachine, manager), examples=12, steps=20)


@pytest.mark.torture
def test_a_table_is_what_its_model_is_for_long(manager: IcebergManager) -> None:
    run(partial(TableMachine, manager), examples=2000, steps=60)
