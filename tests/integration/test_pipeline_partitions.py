"""Two ingest processes own a partition each: the rows of both come to one table, on Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from calve import Client
from calve.lake import Lake
from calve.pipeline.pipeline import Pipeline
from calve.state import open_state
from tests.conftest import MakeSettings
from tests.integration.spark_site import FLAGS
from tests.servers.ingest import IngestProcess

TURNS = 12
ROWS = 25
_ALL = "select *, _calve_partition from orders order by id"


def rows(partition: int, turn: int) -> list[dict[str, Any]]:
    """Ids that nobody else sends; from the middle on with a column that the other one has not."""
    first = (partition * TURNS + turn) * ROWS
    more = {f"of_{partition}": {"deep": [turn]}} if turn >= TURNS // 2 else {}
    return [{"id": first + n, "partition": partition, **more} for n in range(ROWS)]


class Producer(threading.Thread):
    """Sends its rows, each after the acknowledgement of those before."""

    def __init__(self, url: str, partition: int) -> None:
        super().__init__()
        self._url = url
        self._partition = partition
        self.is_under_way = threading.Event()
        self.is_done = False

    def run(self) -> None:
        with Client(self._url) as client:
            for turn in range(TURNS):
                client.produce("orders", rows(self._partition, turn)).result(60)
                self.is_under_way.set()
                time.sleep(0.05)
        self.is_done = True


@contextmanager
def running(pipeline: Pipeline) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=pipeline.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        pipeline.close()


@pytest.mark.usefixtures("spark_running")
def test_two_partitions_of_two_processes_come_to_one_table_once(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    data, flags = tmp_path / "lake", {"wal__free_bytes_min": 0}
    here = IngestProcess(data, **flags)
    there = IngestProcess(data, **flags, wal__path=tmp_path / "there", ingest__partition=1)
    with here, there:
        # The log of the first is the lake's own; that of the second is asked for over Flight.
        settings = make_settings(**FLAGS, pipeline__logs=there.url)
        with Client(here.url) as client:
            client.create_topic("orders", schema={"id": "long", "partition": "int"})
        producers = [Producer(here.url, 0), Producer(there.url, 1)]
        with Lake(settings) as lake, closing(open_state(settings)) as state:
            pipeline = Pipeline(settings, lake.spark(), state, lake.catalog)
            with running(pipeline):
                for each in producers:
                    each.start()
                assert producers[1].is_under_way.wait(30)
                there.kill()
                there.start()
                for each in producers:
                    each.join()
                    assert each.is_done
                require_once(lake)


def require_once(lake: Lake) -> None:
    expected = [row for number in range(2) for turn in range(TURNS) for row in rows(number, turn)]
    deadline = time.monotonic() + 60
    found: list[dict[str, Any]] = []
    while len(found) < len(expected):
        assert time.monotonic() < deadline, len(found)
        time.sleep(0.1)
        found = list(lake.sql(_ALL, fresh=False)) if has_table(lake) else []
    assert [row["id"] for row in found] == [row["id"] for row in expected]
    for row, wanted in zip(found, expected, strict=True):
        assert row["_calve_partition"] == row["partition"] == wanted["partition"]
        for name in ("of_0", "of_1"):
            assert row.get(name) == wanted.get(name)
    verified = lake.tables.verify_topic("orders")
    assert verified.is_sound, verified
    assert [each.rows for each in verified.partitions] == [TURNS * ROWS] * 2
    assert [each.log is None for each in verified.partitions] == [False, True]


def has_table(lake: Lake) -> bool:
    return lake.catalog.find_table("orders") is not None
