"""The store of one table fails while tasks write its data files: the topics beside it in the same
job go on, that one is tried ever more seldom, says why, and loses and doubles nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from calve.maintenance.verify import verify_topic
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.state.work import Progress, TopicPartition
from calve.tables.orphans import remove_orphans
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, let_side_lane_end, site
from tests.integration.spark_site import SparkSite
from tests.servers.faults import FOREVER, Fault, refuse, reset
from tests.servers.fixtures import ServeFront
from tests.servers.s3 import S3

TOPICS = ("a", "broken", "c")
ROWS = 2_000


def batch(start: int) -> pa.RecordBatch:
    """What is too much for a store that has little room."""
    blobs = [os.urandom(64) for _ in range(ROWS)]
    return pa.record_batch({"id": list(range(start, start + ROWS)), "blob": blobs})


def send(made: Site, start: int) -> None:
    for topic in TOPICS:
        made.send(topic, batch(start))


def data_of(made: Site) -> Path:
    return Path(made.table("broken").location().removeprefix("file://")) / "data"


@contextmanager
def in_place_of(data: Path, place: Path) -> Iterator[None]:
    aside = data.with_name("aside")
    data.rename(aside)
    try:
        data.symlink_to(place)
        yield
    finally:
        data.unlink()
        for written in place.glob("*.parquet"):
            written.rename(aside / written.name)
        aside.rename(data)


@contextmanager
def denied(data: Path) -> Iterator[None]:
    """Nobody may write there, not even who may everything."""
    with in_place_of(data, Path("/sys/kernel")):
        yield


@contextmanager
def gone(data: Path) -> Iterator[None]:
    """As a disk that is not mounted, with something else where it was."""
    file = data.with_name("file")
    file.touch()
    with in_place_of(data, file):
        yield


@contextmanager
def full(data: Path) -> Iterator[None]:
    """A disk with room for the beginning of a file."""
    disk = data.with_name("disk")
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk has to be mounted")
    try:
        with in_place_of(data, disk):
            yield
    finally:
        subprocess.run(["umount", str(disk)], check=True)
        disk.rmdir()


def told_of(made: Site, topic: str) -> Progress:
    topic_id = made.intake.topics.topic(TableName.parse(topic)).id
    return made.state.progress().partitions[TopicPartition(topic_id, 0)]


def require_isolated(made: Site, pipeline: Pipeline, turn: int, seconds: float = 30) -> Progress:
    """The others get in, and the one that failed says so."""
    deadline = time.monotonic() + seconds
    wanted = ROWS * (turn + 1)
    while made.committed("a") < wanted or made.committed("c") < wanted:
        assert time.monotonic() < deadline
        pipeline.run_cycle()
    while not made.state.progress().partitions or not told_of(made, "broken").error:
        assert time.monotonic() < deadline
        pipeline.drain(0.1)
    assert made.committed("broken") == ROWS
    told = told_of(made, "broken")
    assert not told_of(made, "a").error
    assert told.next_try_at is not None
    return told


def require_whole(made: Site, turns: int) -> None:
    for topic in TOPICS:
        made.require_each_once(topic, ROWS * turns)
        assert [row["id"] for row in made.rows(topic)] == list(range(ROWS * turns))
        assert verify_topic(made.catalog, topic, own_log=made.settings.wal.path).is_sound
        assert not remove_orphans(made.table(topic), timedelta(), dry_run=True).files


@pytest.mark.parametrize(
    ("breaks", "advice"),
    [(denied, "permissions"), (gone, "look at the disk"), (full, "make room")],
)
def test_a_store_that_fails_stops_its_own_topic_alone_until_it_is_well(
    both: SparkSite, breaks: Callable[[Path], AbstractContextManager[None]], advice: str
) -> None:
    made = both.site
    pipeline = both.pipeline()
    send(made, 0)
    assert pipeline.drain(60)
    with breaks(data_of(made)):
        send(made, ROWS)
        first = require_isolated(made, pipeline, 1)
        assert advice in str(first.hint)
        send(made, 2 * ROWS)
        second = require_isolated(made, pipeline, 2)
        while second.failures <= first.failures:
            pipeline.drain(0.1)
            second = told_of(made, "broken")
        let_side_lane_end()
    assert pipeline.drain(60)
    assert not told_of(made, "broken").error
    require_whole(made, 3)


@pytest.mark.parametrize(
    "fault", [refuse(403), refuse(503), reset()], ids=["denied", "not now", "cut off"]
)
def test_so_does_an_s3_that_fails(
    make_settings: MakeSettings, s3_server: S3, serve_front: ServeFront, fault: Fault
) -> None:
    front = serve_front(s3_server.port)
    settings = make_settings(
        **QUICK_RETRIES,
        wal__free_bytes_min=0,
        pipeline__flush_interval_ms=1,
        storage__dsn=f"s3://{s3_server.bucket}/{uuid4().hex}",
        storage__endpoint=front.url,
        storage__region=s3_server.region,
        storage__path_style=True,
        storage__access_key_id=s3_server.keys.access_key,
        storage__secret_access_key=s3_server.keys.secret_key,
    )
    with site(settings) as made:
        pipeline = made.pipeline()
        send(made, 0)
        assert pipeline.drain(60)
        front.faults.inject(
            fault,
            when=lambda request: "/broken/data/" in request.path and request.method != "GET",
            times=FOREVER,
        )
        send(made, ROWS)
        require_isolated(made, pipeline, 1)
        let_side_lane_end()
        front.forget()
        assert pipeline.drain(60)
        require_whole(made, 2)
