"""An offset commit that is killed at any step: whoever comes next goes on from what the table says."""

from __future__ import annotations

import shutil
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from calve.settings import load_settings
from calve.tables.catalog import LakeCatalog
from calve.tables.manifest_tiers import TIER_MANIFESTS_MAX
from calve.tables.orphans import remove_orphans
from tests.fakes import feed as feeding
from tests.faults import killed_change
from tests.forks import FORKS


def opened(data: Path) -> LakeCatalog:
    return LakeCatalog(load_settings(flags={"data": str(data)}, environ={}).settings)


def run(data: Path, what: str, kill_at: int | None, report: Path) -> None:
    arguments = (str(data), what, kill_at, str(report))
    process = FORKS.Process(target=killed_change.run, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == (0 if kill_at is None else -signal.SIGKILL)


@pytest.fixture
def fed_lake(tmp_path: Path) -> Path:
    """A table whose next commit merges manifests and forgets a snapshot."""
    data = tmp_path / "lake"
    with opened(data) as catalog:
        table = feeding.make_table(catalog, {"calve.snapshots.keep": "10"})
        for start in range(TIER_MANIFESTS_MAX - 1):
            table = feeding.feed(table, start, start + 1).table
        feeding.feed(table, TIER_MANIFESTS_MAX - 1, 20)
    shutil.copytree(data, tmp_path / "before")
    return data


@pytest.mark.parametrize(
    "what",
    [
        "commit",
        "find committed",
        pytest.param("commit on what was read before", marks=pytest.mark.torture),
    ],
)
def test_after_a_kill_at_any_step_every_offset_is_there_once(
    fed_lake: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "steps"
    run(fed_lake, what, None, report)
    steps = report.read_text().splitlines()
    ends = []
    for kill_at in range(1, len(steps) + 1):
        shutil.rmtree(fed_lake)
        shutil.copytree(tmp_path / "before", fed_lake)
        run(fed_lake, what, kill_at, report)
        with opened(fed_lake) as catalog:
            table = catalog.load_table("t")
            end = feeding.position(table).offset
            feeding.require_each_once(table, end)
            ends.append(end)
            feeding.feed(table, end, 30)
            remove_orphans(catalog.load_table("t"), timedelta())
            feeding.require_each_once(catalog.load_table("t"), 30)
    after = sum(end > 20 for end in ends)
    with capsys.disabled():
        print(f"{what}: killed at {len(steps)} steps, {after} after a commit")
    assert ends == sorted(ends)
    assert ends[0] == 20
    assert ends[-1] == (20 if what == "find committed" else 25)
