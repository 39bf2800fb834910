"""What one topic or one log suffers from stops nobody else: the pipeline's tasks run in this process."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from calve.errors import Unavailable
from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.pipeline.work import Piece, PieceDone
from calve.settings import Settings
from calve.state.work import Progress, TopicPartition
from calve.tables.catalog import LakeCatalog
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, run_here, site

AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}

ELSEWHERE = {**AT_ONCE, "ingest__partition": 1, "ingest__flight_port": 0}
SECONDS = 30.0


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        yield made


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": each} for each in ids]


def told(made: Site, topic: str, partition: int = 0) -> Progress:
    found = made.intake.topics.topic(TableName.parse(topic))
    return made.state.progress().partitions[TopicPartition(found.id, partition)]


class Spark:
    """Tasks in this process; a job fails with a poisonous topic in it, or as a whole."""

    def __init__(self, *poisonous: str) -> None:
        self.poisonous = set(poisonous)
        self.is_gone = False
        self.jobs: list[list[str]] = []

    def __call__(
        self, session: object, pieces: Sequence[Piece], *, tasks_max: int
    ) -> Sequence[PieceDone]:
        topics = [str(piece.topic.name) for piece in pieces]
        self.jobs.append(topics)
        if self.is_gone or self.poisonous.intersection(topics):
            raise Unavailable("Spark: the Python worker crashed")
        return run_here(session, pieces, tasks_max=tasks_max)


def run_first_cycles(pipeline: Pipeline) -> None:
    """One that asks the tables how far they are, one that writes what waits."""
    pipeline.run_cycle()
    time.sleep(0.01)
    pipeline.run_cycle()


def test_a_topic_that_takes_its_job_down_stops_no_other(lake_site: Site) -> None:
    topics = [f"t{number}" for number in range(20)]
    spark = Spark("t3", "t17")
    pipeline = lake_site.pipeline(run_pieces=spark)
    for topic in topics:
        lake_site.send(topic, rows(0))
    run_first_cycles(pipeline)
    for topic in topics:
        assert lake_site.committed(topic) == (0 if topic in spark.poisonous else 1)
    assert len([job for job in spark.jobs if job]) < len(topics), "not each of them alone"
    spark.jobs.clear()
    for topic in topics:
        lake_site.send(topic, rows(1))
    assert not pipeline.drain(1)
    well = [job for job in spark.jobs if len(job) > len(spark.poisonous)]
    assert [set(job) for job in well] == [set(topics) - spark.poisonous], "the others together"
    assert "takes the Spark job down: Spark: the Python worker" in str(told(lake_site, "t3").error)
    assert "calve pipeline skip t3 --to 2" in str(told(lake_site, "t3").hint)
    assert told(lake_site, "t4").error is None
    spark.poisonous = set()
    assert pipeline.drain(30)
    for topic in topics:
        lake_site.require_each_once(topic, 2)


def test_a_spark_that_is_gone_is_no_topics_fault_and_is_told(lake_site: Site) -> None:
    topics = [f"t{number}" for number in range(20)]
    spark = Spark()
    spark.is_gone = True
    pipeline = lake_site.pipeline(run_pieces=spark)
    for topic in topics:
        lake_site.send(topic, rows(0))
    with pytest.raises(Unavailable, match="the Python worker crashed"):
        run_first_cycles(pipeline)
    assert len(spark.jobs) == 2, "one, and another to see whether Spark does anything"
    for topic in topics:
        assert told(lake_site, topic).error == "Spark: the Python worker crashed"
        assert told(lake_site, topic).failures == 0
    spark.is_gone = False
    assert pipeline.run_cycle().commits == 20
    assert pipeline.drain(30)
    assert told(lake_site, "t0").error is None


class SlowCatalog(LakeCatalog):
    """Answers for some tables later than a lane waits for them."""

    def __init__(self, settings: Settings, *slow: str) -> None:
        super().__init__(settings)
        self.slow = set(slow)
        self.seconds = 0.0

    def find_table(self, name: TableName | str) -> Table | None:
        if str(name) in self.slow:
            time.sleep(self.seconds)
        return super().find_table(name)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr("calve.pipeline.pipeline.PATIENCE_SECONDS", 0.2)
    return 0.2


def test_a_topic_whose_catalog_always_answers_late_gets_its_rows_and_delays_no_other(
    lake_site: Site, patience: float
) -> None:
    topics = ("slow", "slower", "quick")
    with SlowCatalog(lake_site.settings, "slow", "slower") as catalog:
        catalog.seconds = 4 * patience
        pipeline = lake_site.pipeline(catalog=catalog)
        for topic in topics:
            lake_site.send(topic, rows(0))
        assert pipeline.drain(SECONDS)
        assert told(lake_site, "slow").error is None
        for number in range(1, 4):
            for topic in topics:
                lake_site.send(topic, rows(number))
            time.sleep(0.01)
            assert pipeline.run_cycle().topics == 1, "the slow ones stay beside the others"
            assert lake_site.committed("quick") == number + 1
            assert pipeline.drain(SECONDS)
        for topic in topics:
            lake_site.require_each_once(topic, 4)
        catalog.seconds = 0
        lake_site.send("slow", rows(4))
        assert pipeline.drain(SECONDS)
        lake_site.send("slow", rows(5))
        run_until(pipeline, lambda: pipeline.run_cycle().commits == 1)  # among the others again


def test_what_a_catalog_answers_after_too_long_is_asked_again(
    lake_site: Site, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.pipeline.pipeline.LATE_SECONDS_MAX", 2 * patience)
    with SlowCatalog(lake_site.settings, "slow") as catalog:
        catalog.seconds = 3 * patience
        pipeline = lake_site.pipeline(catalog=catalog)
        lake_site.send("slow", rows(0))
        assert not pipeline.drain(10 * patience)
        assert lake_site.committed("slow") == 0
        assert told(lake_site, "slow").error == (
            f"the catalog or the store of table slow has not answered for {patience} seconds"
        )
        catalog.seconds = 0
        assert pipeline.drain(SECONDS)
        lake_site.require_each_once("slow", 1)


@pytest.fixture
def elsewhere(make_settings: MakeSettings, tmp_path: Path) -> Settings:
    """Of a process that takes rows into partition 1, with a log of its own."""
    path = str(tmp_path / "elsewhere")
    return make_settings(**ELSEWHERE, wal__path=path)


def submit(intake: Intake, topic: str, *sent: dict[str, Any]) -> None:
    intake.submit(TableName.parse(topic), pa.RecordBatch.from_pylist(list(sent))).wait()


def run_until(pipeline: Pipeline, is_so: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        pipeline.run_cycle()
        time.sleep(0.01)


def test_a_partition_whose_log_is_nowhere_stops_alone(lake_site: Site, elsewhere: Settings) -> None:
    lake_site.send("orders", rows(0))
    with Intake(elsewhere) as intake:
        submit(intake, "orders", *rows(1))
    pipeline = lake_site.pipeline()
    run_until(pipeline, lambda: lake_site.committed("orders", 0) == 1)
    lake_site.send("orders", rows(2))
    run_until(pipeline, lambda: lake_site.committed("orders", 0) == 2)
    assert not pipeline.drain(0.1), "the other partition may have rows"
    assert "is not in" in str(told(lake_site, "orders", 1).error)
    assert told(lake_site, "orders", 0).error is None


def test_a_partition_whose_log_becomes_unreadable_stops_alone_until_it_is_back(
    lake_site: Site, elsewhere: Settings, make_settings: MakeSettings
) -> None:
    lake_site.send("orders", rows(0))
    with Intake(elsewhere) as intake:
        submit(intake, "orders", *rows(1))
    path = Path(str(elsewhere.wal.path))
    pipeline = lake_site.pipeline(settings=make_settings(**AT_ONCE, pipeline__logs=str(path)))
    assert pipeline.drain(SECONDS)
    away = path.rename(path.with_name("away"))
    lake_site.send("orders", rows(2))
    run_until(pipeline, lambda: lake_site.committed("orders", 0) == 2)
    assert not pipeline.drain(0.1)
    assert told(lake_site, "orders", 1).error
    assert told(lake_site, "orders", 0).error is None
    shutil.copytree(away, path)
    assert pipeline.drain(SECONDS)
    assert told(lake_site, "orders", 1).error is None


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of something that listens and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=100)) as listener:
        yield f"grpc://127.0.0.1:{listener.getsockname()[1]}"


def test_a_service_that_is_silent_holds_up_nobody(
    lake_site: Site,
    elsewhere: Settings,
    silent: str,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("calve.sources.remote_log._ANSWER_SECONDS", 2.0)
    with Intake(elsewhere) as intake:
        for number in range(3):
            submit(intake, f"far{number}", *rows(1))
    settings = make_settings(**AT_ONCE, pipeline__freshness_ms=1, pipeline__logs=silent)
    with closing(lake_site.pipeline(settings=settings)) as pipeline:
        for number in range(20):
            lake_site.send("near", rows(number))
            begun = time.monotonic()
            run_until(pipeline, lambda sent=number + 1: lake_site.committed("near") == sent)
            assert time.monotonic() - begun < 1
            time.sleep(0.1)
        run_until(pipeline, lambda: "did not answer" in str(told(lake_site, "far0", 1).error))
        assert told(lake_site, "near").error is None


def test_a_service_that_was_gone_is_heard_again(
    lake_site: Site,
    elsewhere: Settings,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("calve.sources.remote_log._ASK_SECONDS", 0.05)
    with Intake(elsewhere) as intake:
        with FlightServer(intake) as server:
            submit(intake, "far", *rows(0))
            settings = make_settings(**AT_ONCE, pipeline__logs=server.url)
            port = server.url.rpartition(":")[2]
            pipeline = lake_site.pipeline(settings=settings)
            assert pipeline.drain(SECONDS)
        with closing(pipeline):
            submit(intake, "far", *rows(1))
            run_until(pipeline, lambda: told(lake_site, "far", 1).error)
            again = make_settings(**{**ELSEWHERE, "ingest__flight_port": int(port)})
            with FlightServer(intake, again):
                run_until(pipeline, lambda: lake_site.committed("far", 1) == 2)
                assert pipeline.drain(SECONDS)
    assert told(lake_site, "far", 1).error is None


def test_rows_from_elsewhere_are_never_newer_than_the_topic_that_they_are_read_with(
    lake_site: Site,
    elsewhere: Settings,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("calve.sources.remote_log._ASK_SECONDS", 0.01)
    works = lake_site.state.pipeline_orders
    sent = 1

    def pipeline_orders() -> Any:
        """In the middle of a look: after the topics, before the logs of partitions."""
        nonlocal sent
        if sent < 10:
            submit(intake, "orders", {"id": sent, f"new{sent}": "x"})
            sent += 1
            time.sleep(0.1)
        return works()

    with Intake(elsewhere) as intake, FlightServer(intake) as server:
        submit(intake, "orders", *rows(0))
        settings = make_settings(**AT_ONCE, pipeline__logs=server.url)
        with closing(lake_site.pipeline(settings=settings)) as pipeline:
            assert pipeline.drain(SECONDS)
            monkeypatch.setattr(lake_site.state, "pipeline_orders", pipeline_orders)
            run_until(pipeline, lambda: lake_site.committed("orders", 1) == 10)
    assert lake_site.catalog.find_table("orders__dead_letters") is None
    found = lake_site.rows("orders")
    assert [row[f"new{row['id']}"] for row in found[1:]] == ["x"] * 9
