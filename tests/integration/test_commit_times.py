"""A clock that was set back keeps nothing out of a table, and the table from nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
from pyiceberg.table import Table
from pyiceberg.types import LongType

from calve.lake import Lake
from calve.tables.references import create_tag
from calve.tables.snapshots import move_main
from tests.conftest import MakeCatalogSettings
from tests.fakes.feed import feed, make_table, require_each_once

DAY_SECONDS = timedelta(days=1).total_seconds()


class _Ahead:
    """What PyIceberg takes a snapshot's time from."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return time.time() + self._seconds


@contextmanager
def clock_ahead(seconds: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyiceberg.table.snapshots.time", _Ahead(seconds))
        yield


def jump_and_go_on(lake: Lake) -> None:
    """Commit with a clock that is a day ahead for a while; all kinds of changes after it."""
    table = make_table(lake.catalog)
    table = feed(table, 0, 10).table
    with clock_ahead(DAY_SECONDS):
        table = feed(table, 10, 20).table
    head = table.metadata.current_snapshot_id
    table = feed(table, 20, 30).table
    create_tag(table, "before")
    table.update_schema().add_column("more", LongType()).commit()
    assert head is not None
    move_main(table, head)
    move_main(table, table.refs()["before"].snapshot_id)
    feed(lake.catalog.load_table("t"), 30, 40)


def require_times_in_order(table: Table) -> None:
    """As Iceberg's Java library wants them, without the minute that it overlooks."""
    metadata = table.metadata
    for log in (metadata.snapshot_log, metadata.metadata_log):
        times = [each.timestamp_ms for each in log] + [metadata.last_updated_ms]
        assert all(before <= after for before, after in pairwise(times)), times


def test_a_tables_times_never_go_back(lake: Lake) -> None:
    jump_and_go_on(lake)
    table = lake.catalog.load_table("t")
    require_times_in_order(table)
    require_each_once(table, 40)


def test_spark_reads_a_table_whose_clock_was_set_back(spark_lake: Lake) -> None:
    jump_and_go_on(spark_lake)
    name = ".".join((spark_lake.settings.catalog.name, *spark_lake.catalog.load_table("t").name()))
    assert spark_lake.spark().table(name).count() == 40


def test_rows_get_to_a_rest_catalog_while_the_clock_is_behind(
    catalog_settings: MakeCatalogSettings,
) -> None:
    """Its server refuses a snapshot that is more than a minute older than the newest."""
    with Lake(catalog_settings("rest")) as lake:
        table = feed(make_table(lake.catalog), 0, 10).table
        with clock_ahead(-DAY_SECONDS):
            table = feed(table, 10, 20).table
        feed(table, 20, 30)
        require_each_once(lake.catalog.load_table("t"), 30)
