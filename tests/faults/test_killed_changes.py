"""A change that is killed at any step leaves the table as it was, or as it was to be."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from calve.changes import insert_rows
from calve.settings import load_settings
from calve.tables.catalog import LakeCatalog
from calve.tables.orphans import remove_orphans
from calve.tables.schemas import define_table
from tests.faults import killed_change

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.faults.killed_change"])


def opened(data: Path) -> LakeCatalog:
    return LakeCatalog(load_settings(flags={"data": str(data)}, environ={}).settings)


def state(catalog: LakeCatalog) -> tuple[list[tuple[int, int]], int]:
    table = catalog.load_table("t")
    rows = table.scan().to_arrow().to_pylist()
    for snapshot in table.metadata.snapshots:
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    return sorted((row["id"], row["p"]) for row in rows), len(table.metadata.snapshots)


def killed(data: Path, change: str, kill_at: int | None, report: Path) -> None:
    arguments = (str(data), change, kill_at, str(report))
    process = FORKS.Process(target=killed_change.run, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == (0 if kill_at is None else -signal.SIGKILL)


@pytest.fixture
def lake_with_rows(tmp_path: Path) -> Path:
    data = tmp_path / "lake"
    defined = define_table({"id": "long", "p": "long"}, partition_by=["p"])
    with opened(data) as catalog:
        catalog.create_table("t", defined.schema, partition_spec=defined.partition_spec)
        insert_rows(catalog, "t", [{"id": n, "p": n % 2} for n in range(4)])
        insert_rows(catalog, "t", [{"id": 5, "p": 0}])
    shutil.copytree(data, tmp_path / "before")
    return data


@pytest.mark.parametrize("change", killed_change.CHANGES)
def test_a_killed_change_leaves_the_old_or_the_new_state(
    lake_with_rows: Path, tmp_path: Path, change: str
) -> None:
    report = tmp_path / "steps"
    with opened(lake_with_rows) as catalog:
        old = state(catalog)
    killed(lake_with_rows, change, None, report)
    steps = report.read_text().splitlines()
    with opened(lake_with_rows) as catalog:
        new = state(catalog)
    assert old != new
    left_over, ends = 0, []
    for kill_at in range(1, len(steps) + 1):
        shutil.rmtree(lake_with_rows)
        shutil.copytree(tmp_path / "before", lake_with_rows)
        killed(lake_with_rows, change, kill_at, report)
        with opened(lake_with_rows) as catalog:
            found = state(catalog)
            assert found in (old, new), f"killed at {steps[kill_at - 1]}"
            ends.append(found == new)
            table = catalog.load_table("t")
            left_over += len(remove_orphans(table, timedelta(), dry_run=True).files)
            remove_orphans(table, timedelta())
            assert state(catalog) == found
            assert not remove_orphans(table, timedelta(), dry_run=True).files
    print(f"{change}: killed at {len(steps)} steps, {sum(ends)} after the commit")
    assert ends == sorted(ends)
    assert any(ends)
    assert not all(ends)
    assert left_over
