"""Schemathesis: requests that the OpenAPI document allows, and many that it does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.serving import Serving

ROOT = Path(__file__).parents[2]
SECONDS = 25
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance,allow_header_conformance"
)


@contextmanager
def pipeline(service: Serving) -> Iterator[None]:
    """Moves every committed offset, so that a flush comes to its end."""
    stop = threading.Event()
    intake = service.intake

    def run() -> None:
        while not stop.wait(0.02):
            for topic in intake.topics.list():
                binding = topic.partitions.get(0)
                if binding is None:
                    continue
                durable = intake.log.next_offset(intake.log.stream(topic.name, 0))
                intake.state.publish_committed(topic.id, 0, log_id=binding.log_id, offset=durable)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_whatever_is_sent_the_answer_is_what_the_document_says(
    service: Serving, tmp_path: Path
) -> None:
    service.send("events", b'{"id":1,"name":"Ada"}').raise_for_status()
    command = [
        *(sys.executable, "-c", "import schemathesis.cli; schemathesis.cli.schemathesis()"),
        *("run", f"{service.url}/openapi.json", "--checks", CHECKS, "--max-time", str(SECONDS)),
        *("--generation-deterministic", "--suppress-health-check", "all", "--no-color"),
        *("--exclude-path-regex", "/stream$"),  # which do not end
        *("--phases", "examples,coverage,fuzzing", "--warnings", "off"),
    ]
    with pipeline(service):
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                "SCHEMATHESIS_HOOKS": "tests.integration.schemathesis_hooks",
            },
        )
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:]
    # To a topic of its own: what became of the others is left to chance.
    assert service.send("afterwards", b'{"id":2}').status_code == 200
