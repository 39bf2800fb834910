"""Calls over Flight with pyarrow alone, as somebody would make who has not heard of our client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from calve.errors import CalveError
from calve.protocol.problem import decoded, error_of

BATCH = pa.record_batch({"id": [1, 2], "name": ["a", "b"]})


def put(client: Any, *path: str, schema: pa.Schema = BATCH.schema) -> tuple[Any, Any]:
    writer, reader = client.do_put(flight.FlightDescriptor.for_path(*path), schema)
    return writer, reader


def answer(reader: Any) -> Any:
    content = reader.read()
    return None if content is None else json.loads(content.to_pybytes())


def told(writer: Any, reader: Any) -> Any:
    """The next answer; what the stream ended with if there is none."""
    found = answer(reader)
    if found is None:
        writer.close()  # raises it: pyarrow's reader says only that nothing more comes
    return found


def sent(client: Any, topic: str, batch: pa.RecordBatch, **metadata: object) -> Any:
    """One batch over a stream of its own; the answer."""
    writer, reader = put(client, topic, schema=batch.schema)
    writer.write_with_metadata(batch, json.dumps(metadata).encode() if metadata else b"")
    writer.done_writing()
    found = answer(reader)
    writer.close()
    return found


def rows(client: Any, topic: str, **ticket: object) -> list[dict[str, Any]]:
    content = json.dumps({"topic": topic, **ticket}).encode()
    table = client.do_get(flight.Ticket(content)).read_all()
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def act(client: Any, action: str, **body: object) -> Any:
    results = client.do_action(flight.Action(action, json.dumps(body).encode()))
    return json.loads(next(iter(results)).body.to_pybytes())


def refused(work: Callable[[], object]) -> CalveError:
    """The error of Calve's that a call ends with, as it came along with Flight's."""
    with pytest.raises(flight.FlightError) as raised:
        work()
    assert "Traceback" not in str(raised.value)
    problem = decoded(raised.value.extra_info)
    assert problem is not None
    return error_of(problem)
