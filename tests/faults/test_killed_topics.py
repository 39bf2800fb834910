"""A topic that was being made or deleted when its process was killed: the next opening mends it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from calve.ingest import Intake
from calve.model import TableName
from tests.conftest import MakeSettings

ORDERS = TableName.parse("orders")
BATCH = pa.record_batch({"id": [7]})

MAKING = {
    "topic kept, stream not made": 0,
    "stream made, not bound": 0,
    "bound, no rows": 0,
    "grown, no rows": 1,
}
DELETING = ("topic forgotten, stream there", "stream gone, still remembered")


def kill(data: str, moment: str) -> None:
    command = [sys.executable, "-m", "tests.faults.killed_topic", data, moment]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", MAKING)
def test_a_topic_that_was_being_made_goes_on(make_settings: MakeSettings, moment: str) -> None:
    settings = make_settings()
    kill(str(settings.data), moment)
    with Intake(settings) as intake:
        assert intake.problems == {}
        topic_id = intake.topics.topic(ORDERS).id
        first = MAKING[moment]
        assert intake.submit(ORDERS, BATCH).wait() == (first, first + 1, False)
        topic = intake.topics.topic(ORDERS)
        assert topic.id == topic_id
        assert [stream.id for stream in intake.log.streams] == [topic.partitions[0].stream_id]
    with Intake(settings) as intake:
        assert intake.problems == {}
        assert intake.offsets(ORDERS).durable == first + 1


@pytest.mark.parametrize("moment", DELETING)
@pytest.mark.parametrize("opens_between", [True, False])
def test_a_topic_that_was_being_deleted_is_gone(
    make_settings: MakeSettings, moment: str, opens_between: bool
) -> None:
    settings = make_settings()
    kill(str(settings.data), moment)
    if opens_between:
        with Intake(settings) as intake:
            assert intake.topics.list() == []
            assert intake.log.streams == []
    with Intake(settings) as intake:
        assert intake.submit(ORDERS, BATCH).wait() == (0, 1, False)
        assert [entry.batch.to_pylist() for entry in intake.read(ORDERS, 0) if entry.batch] == [
            [{"id": 7}]
        ]
        assert len(intake.log.streams) == 1
