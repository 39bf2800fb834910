"""A restored catalog whose topic has partitions in the logs of several processes: the rows come again from each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.errors import Conflict, NotFound, Unavailable
from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.manager import IcebergManager
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.settings import Settings
from calve.tables.positions import committed_position
from calve.wal import Rejected
from tests.commands import run_command
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site

ORDERS = TableName.parse("orders")
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
SMALL_SEGMENTS = {"wal__hot_window_seconds": 0, "wal__segment_bytes_max": 65536}
LARGE = "x" * 20_000
COPIED, COMMITTED = 6, 10


@dataclass
class Two:
    """A lake with a second process, which takes partition 1 in; `settings` name both logs."""

    first: Site
    second: Intake
    settings: Settings

    def fill(self, pipeline: Pipeline, *, bad_after: int | None = None) -> str:
        """Rows of both partitions, and a topic's table that then has less than all of them.

        Where the metadata is of the table that had them.
        """
        copied = ""
        for number in range(COMMITTED):
            self.first.send("orders", [{"id": number, "text": LARGE}])
            row = pa.RecordBatch.from_pylist([{"id": 100 + number, "text": LARGE}])
            self.second.submit(ORDERS, row).wait()
            if number == bad_after:
                bad = Rejected(b"{", "application/x-ndjson", "no row")
                self.second.submit(ORDERS, [bad]).wait()
            assert pipeline.drain(30)
            if number == COPIED - 1:
                copied = self.first.table("orders").metadata_location
        newer = self.first.table("orders").metadata_location
        self.bring(copied)
        return newer

    def bring(self, metadata_location: str) -> None:
        """Have the catalog know another state of the table."""
        name = self.first.table("orders").name()
        self.first.catalog.iceberg.drop_table(name)
        self.first.catalog.iceberg.register_table(name, metadata_location)

    def reached(self) -> list[int]:
        """How far the table is with each partition, as a flush and the logs go by."""
        topic = self.first.intake.topics.topic(ORDERS)
        return [self.first.state.reached(topic.id, partition) for partition in (0, 1)]

    def roll_back(self, settings: Settings | None = None, log: Path | None = None) -> None:
        with IcebergManager(settings or self.settings) as manager:
            current = manager.get_current_snapshot("orders")
            assert current is not None
            manager.rollback("orders", current.id, replay=True, log=log)

    def require_all(self, pipeline: Pipeline) -> None:
        assert pipeline.drain(30)
        self.first.require_each_once("orders", COMMITTED, partition=0)
        self.first.require_each_once("orders", COMMITTED, partition=1)


@pytest.fixture
def two(make_settings: MakeSettings, tmp_path: Path) -> Iterator[Two]:
    other = str(tmp_path / "second")
    here = {"wal__path": other, "ingest__partition": 1, "ingest__flight_port": 0}
    second = make_settings(**AT_ONCE, **SMALL_SEGMENTS, **here)
    both = make_settings(**AT_ONCE, pipeline__logs=other)
    with site(make_settings(**AT_ONCE)) as first, Intake(second) as intake:
        yield Two(first, intake, both)


def stopped(two: Two) -> Pipeline:
    pipeline = two.first.pipeline(settings=two.settings)
    two.fill(pipeline)
    late = two.first.pipeline(settings=two.settings)
    assert not late.drain(0.5)
    return late


@pytest.mark.parametrize("named", ["none", "own", "other"])
def test_rows_of_all_partitions_come_again(two: Two, named: str) -> None:
    pipeline = stopped(two)
    own, other = two.first.intake.log.directory, two.second.log.directory
    two.roll_back(log={"none": None, "own": own, "other": other}[named])
    for partition in (0, 1):
        position = committed_position(two.first.table("orders"), partition)
        assert position is not None
        assert position.offset == COPIED
        assert position.checksum
    two.require_all(pipeline)


def test_rows_of_all_partitions_come_again_where_no_log_of_its_own_is(
    two: Two, make_settings: MakeSettings, tmp_path: Path
) -> None:
    """As on a machine that only runs the pipeline."""
    pipeline = stopped(two)
    logs = f"{two.first.intake.log.directory},{two.second.log.directory}"
    bare = make_settings(**AT_ONCE, wal__path=str(tmp_path / "none"), pipeline__logs=logs)
    two.roll_back(bare)
    two.require_all(pipeline)


def test_rows_come_again_of_a_process_elsewhere(two: Two, make_settings: MakeSettings) -> None:
    pipeline = stopped(two)
    with FlightServer(two.second) as server:
        two.roll_back(make_settings(**AT_ONCE, pipeline__logs=server.url))
    position = committed_position(two.first.table("orders"), 1)
    assert position is not None
    assert (position.offset, position.checksum) == (COPIED, "")
    two.require_all(pipeline)


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_replay_is_refused_where_another_log_has_let_go(
    two: Two, make_settings: MakeSettings, *, is_elsewhere: bool
) -> None:
    two.fill(two.first.pipeline(settings=two.settings))
    assert two.second.trim() > 0
    with FlightServer(two.second) as server:
        elsewhere = make_settings(**AT_ONCE, pipeline__logs=server.url)
        with pytest.raises(Conflict, match="no longer in the log, which begins at"):
            two.roll_back(elsewhere if is_elsewhere else None)
    assert two.first.committed("orders", 0) == COMMITTED
    assert two.first.committed("orders", 1) == COMMITTED


def test_a_replay_is_refused_with_the_way_out_where_a_log_is_not_named(
    two: Two, make_settings: MakeSettings
) -> None:
    stopped(two)
    with pytest.raises(Unavailable, match="partition 1 of topic orders is in log") as missing:
        two.roll_back(make_settings(**AT_ONCE))
    assert "pipeline.logs" in str(missing.value.hint)
    assert two.first.committed("orders", 0) == COMMITTED
    with pytest.raises(NotFound):
        two.roll_back(log=Path("/nowhere/at/all"))


def test_a_replay_that_dead_letters_forbid_tells_how_to_keep_the_rows_of_all_partitions(
    two: Two,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    two.fill(two.first.pipeline(settings=two.settings), bad_after=COPIED + 1)
    with pytest.raises(Conflict, match=r"rows of partition 1 .* among the dead letters") as refusal:
        two.roll_back()
    question = re.search(r'`calve sql "(.*)" --output rows.parquet`', str(refusal.value.hint))
    assert question is not None
    kept = str(tmp_path / "rows.parquet")
    words = ["calve", "sql", question[1], "--output", kept, "--data", str(two.settings.data)]
    logs = ["--set", f"pipeline.logs={two.second.log.directory}"]
    assert run_command([*words, *logs], monkeypatch, capsys).code == 0
    ids = sorted(row["id"] for row in pq.read_table(kept).to_pylist())
    assert ids == [*range(COPIED, COMMITTED), *range(100 + COPIED, 100 + COMMITTED)]


@pytest.mark.parametrize("fed", [0, 1])
def test_a_flush_ends_when_the_newer_catalog_is_back_also_with_a_partition_that_got_no_rows(
    two: Two, fed: int
) -> None:
    pipeline = two.first.pipeline(settings=two.settings)
    newer = two.fill(pipeline)
    if fed == 0:
        two.first.send("orders", [{"id": 1, "text": "new"}])
    else:
        two.second.submit(ORDERS, pa.RecordBatch.from_pylist([{"id": 1, "text": "new"}])).wait()
    assert not pipeline.drain(0.5)
    assert two.reached() == [COPIED, COPIED], "no log lets go of what the table lacks"
    two.bring(newer)
    assert pipeline.drain(30)
    assert two.reached() == [COMMITTED + (fed == 0), COMMITTED + (fed == 1)]
    assert two.first.intake.flush(ORDERS, 5).committed == COMMITTED + (fed == 0)
