"""Whatever is done to a table, in any order, it holds what a plain model of it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from calve.lake import Lake
from calve.manager import IcebergManager
from calve.settings import load_settings
from tests.property.table_machine import TableMachine
from tests.property.table_model import Columns, Row, expected_rows, seen_rows
from tests.property.table_strategies import VALUES

SETTINGS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
# Iceberg's Spark has no times of day.
SPARK_TYPES = [kind for kind in VALUES if kind != "time"]
SPARK_SNAPSHOTS = 4


class SparkMachine(TableMachine):
    """At the end of each life of a table, Spark tells it too."""

    def __init__(self, manager: IcebergManager, spark: SparkSession) -> None:
        super().__init__(manager, SPARK_TYPES)
        self.spark = spark

    def check_elsewhere(self) -> None:
        self._check_frame(self.spark.table(self.name), self.model.columns, self.model.rows())
        for snapshot_id, state in list(self.model.snapshots.items())[-SPARK_SNAPSHOTS:]:
            frame = self.spark.read.option("versionAsOf", snapshot_id).table(self.name)
            self._check_frame(frame, state.columns, state.rows)

    def _check_frame(self, frame: Any, columns: Columns, expected: tuple[Row, ...]) -> None:
        # Arrow rows cannot be made of a struct that is missing and has a required field.
        nullable = self.spark.createDataFrame([], _nullable(frame.schema))
        table = nullable.unionByName(frame).toArrow()
        assert table.column_names == [column.name for column in columns]
        assert seen_rows(table.to_pylist(), columns) == expected_rows(expected, columns)


def _nullable(kind: Any) -> Any:
    """Spark's type without anything required in it."""
    text = re.sub(r'"(nullable|containsNull|valueContainsNull)":false', r'"\1":true', kind.json())
    return StructType.fromJson(json.loads(text))


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[IcebergManager]:
    chosen = load_settings(flags={"data": str(tmp_path / "lake")}, environ={}).settings
    with IcebergManager(chosen) as manager:
        yield manager


@pytest.fixture
def spark_machine(spark_lake: Lake) -> Iterator[Callable[[], SparkMachine]]:
    with IcebergManager(spark_lake.settings) as manager:
        yield partial(SparkMachine, manager, spark_lake.spark())


def run(machine: Callable[[], TableMachine], *, lives: int, steps: int) -> None:
    chosen = settings(max_examples=lives, stateful_step_count=steps, **SETTINGS)
    run_state_machine_as_test(machine, settings=chosen)  # type: ignore[arg-type]


def test_a_table_is_what_its_model_is(manager: IcebergManager) -> None:
    run(partial(TableMachine, manager), lives=14, steps=22)


def test_spark_sees_what_the_model_is(spark_machine: Callable[[], SparkMachine]) -> None:
    run(spark_machine, lives=3, steps=12)


@pytest.mark.torture
def test_a_table_is_what_its_model_is_for_long(manager: IcebergManager) -> None:
    run(partial(TableMachine, manager), lives=2000, steps=60)


@pytest.mark.torture
def test_spark_sees_what_the_model_is_for_long(
    spark_machine: Callable[[], SparkMachine],
) -> None:
    run(spark_machine, lives=200, steps=30)
