"""What one topic or one log suffers from stops nobody else: the pipeline's tasks run in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from calve.errors import Unavailable
from calve.pipeline.pipeline import Pipeline
from calve.pipeline.work import Piece, PieceDone
from calve.model import TableName
from calve.state.work import Progress, TopicPartition
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, run_here, site

AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}


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
