"""A change that is killed at any step leaves the table as it was, or as it was to be.

Whoever comes next sees in the table which of the two, and goes on from there.
"""

from __future__ import annotations

import shutil
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table import Table

from calve.changes import insert_rows
from calve.connections import Connections
from calve.model import TableName
from calve.settings import load_settings
from calve.tables.catalog import LakeCatalog
from calve.tables.orphans import remove_orphans
from calve.tables.schemas import define_table
from calve.writer import IcebergTableWriter
from tests.faults import killed_change
from tests.forks import FORKS


def opened(data: Path) -> LakeCatalog:
    return LakeCatalog(load_settings(flags={"data": str(data)}, environ={}).settings)


HINT = "version-hint.text"
State = tuple[list[str], int]
MORE = {"id": 20, "p": 1}


def state(catalog: LakeCatalog) -> State:
    """All rows, and how many snapshots; each of them can be read."""
    table = catalog.load_table("t")
    snapshots = [each.snapshot_id for each in table.metadata.snapshots]
    assert snapshots[-1] == table.metadata.current_snapshot_id
    rows = [table.scan(snapshot_id=each).to_arrow().to_pylist() for each in snapshots]
    return sorted(map(str, rows[-1])), len(snapshots)


def unneeded_files(catalog: LakeCatalog) -> set[Path]:
    """What lies in the table's directory and nothing of the table names, whatever Calve thinks."""
    table = catalog.load_table("t")
    place = path_of(table.location())
    return {path for path in place.rglob("*") if path.is_file()} - named_files(table)


def named_files(table: Table) -> set[Path]:
    """As PyIceberg tells it, and the hint for readers without a catalog, which names a version."""
    metadata = table.metadata
    named = {
        table.metadata_location,
        *(each.metadata_file for each in metadata.metadata_log),
        *(each.statistics_path for each in metadata.statistics),
        *(each.statistics_path for each in metadata.partition_statistics),
        *table.inspect.all_files()["file_path"].to_pylist(),
        *table.inspect.all_manifests()["path"].to_pylist(),
        *(each.manifest_list for each in metadata.snapshots),
    }
    return {path_of(each) for each in named} | {path_of(table.location()) / "metadata" / HINT}


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def go_on(data: Path, *, is_done: bool) -> None:
    """Another writer: it writes what the table does not have yet, and then rows of its own."""
    with Connections(load_settings(flags={"data": str(data)}, environ={}).settings) as lake:
        if not is_done:
            killed_change.write_transaction(lake)
        with IcebergTableWriter(lake, TableName.parse("t")) as writer:
            writer.write_batch([MORE])


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
    lake_with_rows: Path, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "steps"
    is_transaction = change == "transaction"
    with opened(lake_with_rows) as catalog:
        old = state(catalog)
        killed(lake_with_rows, change, None, report)
        new = state(catalog)
        assert old != new
        if is_transaction:
            go_on(lake_with_rows, is_done=True)
            after = state(catalog)
    steps = report.read_text().splitlines()
    left_over, ends = 0, []
    for kill_at in range(1, len(steps) + 1):
        shutil.rmtree(lake_with_rows)
        shutil.copytree(tmp_path / "before", lake_with_rows)
        killed(lake_with_rows, change, kill_at, report)
        with opened(lake_with_rows) as catalog:
            found = state(catalog)
            assert found in (old, new), f"killed at {steps[kill_at - 1]}"
            ends.append(found == new)
            left = unneeded_files(catalog)
            told = remove_orphans(catalog.load_table("t"), timedelta(), dry_run=True).files
            assert set(map(path_of, told)) == left, f"killed at {steps[kill_at - 1]}"
            left_over += len(left)
            if is_transaction:
                go_on(lake_with_rows, is_done=found == new)
            remove_orphans(catalog.load_table("t"), timedelta())
            assert not unneeded_files(catalog), f"killed at {steps[kill_at - 1]}"
            expected = after if is_transaction else found
            assert state(catalog) == expected, f"killed at {steps[kill_at - 1]}"
    with capsys.disabled():
        print(f"{change}: killed at {len(steps)} steps, {sum(ends)} after the commit")
    assert ends == sorted(ends)
    assert any(ends)
    assert not all(ends)
    assert left_over
