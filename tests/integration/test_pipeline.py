"""The pipeline's driver, from rows that were taken in to tables: its tasks run in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    flags = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
    with site(make_settings(**flags)) as made:
        yield made


def test_acknowledged_rows_come_to_the_table_once(lake_site: Site) -> None:
    pipeline = lake_site.pipeline()
    end = lake_site.send("orders", [{"id": n, "name": f"n{n}"} for n in range(100)])
    assert pipeline.drain(30)
    assert lake_site.rows("orders") == [{"id": n, "name": f"n{n}"} for n in range(100)]
    assert lake_site.committed("orders") == end == 100
    end = lake_site.send("orders", [{"id": n, "name": "more"} for n in range(50)])
    assert pipeline.drain(30)
    lake_site.require_each_once("orders", end)
    assert pipeline.run_cycle().topics == 0
