"""Open files of a service: bounded, however many topics it has, and enough for its connections."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pyarrow as pa
import pytest

from calve.ingest import Intake
from calve.model import TableName
from calve.topics import TopicSpec
from tests.conftest import MakeSettings

LIMITED = """
import logging, resource, sys
logging.basicConfig(level=logging.WARNING)
from calve.service.open_files import allow_open_files
from calve.settings.tree import IngestSettings
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(allow_open_files(IngestSettings(http_connections_max=1000, streams_max=100)))
"""


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.torture)])
def test_topics_take_no_files_of_their_own(make_settings: MakeSettings, count: int) -> None:
    names = [TableName.parse(f"topic_{number}") for number in range(count)]
    batch = pa.record_batch({"id": [1]})
    with Intake(make_settings()) as intake:
        intake.create_topic(names[0], TopicSpec(schema={"id": "long"}))
        intake.submit(names[0], batch).wait()
        intake.offsets(names[0])
        before = psutil.Process().num_fds()
        for name in names[1:]:
            intake.topics.create(name, TopicSpec(schema={"id": "long"}))
            intake.submit(name, batch).wait()
            assert intake.offsets(name).durable == 1
        assert psutil.Process().num_fds() <= before + 8


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "is_warned"),
    [(256, 4096, 2012, False), (256, 800, 800, True), (4096, 4096, 4096, False)],
)
def test_the_limit_is_raised_as_far_as_it_goes(
    soft: int, hard: int, allowed: int, is_warned: bool
) -> None:
    line = [sys.executable, "-c", LIMITED, str(soft), str(hard)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == allowed
    assert ("LimitNOFILE" in done.stderr) is is_warned
