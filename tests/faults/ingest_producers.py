"""A process with many producers, which note what was acknowledged until they are told to stop.

    ingest_producers.py FLIGHT HTTP NOTES FIRST COUNT [once]

Every other one sends over Flight, with several batches under way, the rest over HTTP. A producer
sends its batches in order under its own sequences. Whatever breaks is sent again under the same
sequence, until it is acknowledged; with `once` the producer ends instead. A note is
`producer sequence first end`, after the acknowledgement. Told to stop, a producer brings what is
under way to its end.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from tests.faults.noted_producers import Notes, run_producers

TOPIC = "orders"
WINDOW = 4
_TIMEOUT_SECONDS = 20.0

Note = Callable[[int, int, int], None]


class Broken(Exception):
    """The service did not answer; nobody knows what it did."""


def batch_rows(producer: int, sequence: int) -> list[dict[str, int]]:
    """A few rows that nobody else sends; how many follows from the two."""
    count = 1 + (producer + sequence) % 5
    return [{"producer": producer, "sequence": sequence, "row": row} for row in range(count)]


class Door(Protocol):
    def send(self, first: int, until: Callable[[], bool], note: Note) -> None:
        """Send batches from a sequence on, until told; Broken when the service is gone."""
        ...


class FlightDoor:
    """Pyarrow's own client, with several batches under way on one stream.

    When a write fails, Arrow's client throws away the answers that nobody has read yet: who wants
    to have every answer has one batch under way at a time.
    """

    def __init__(self, url: str, producer: int, window: int) -> None:
        self._url = url
        self._producer = producer
        self._window = window

    def send(self, first: int, until: Callable[[], bool], note: Note) -> None:
        try:
            with flight.connect(self._url) as client:
                self._stream(client, first, until, note)
        except pa.ArrowException as error:
            raise Broken from error

    def _stream(self, client: Any, first: int, until: Callable[[], bool], note: Note) -> None:
        schema = pa.schema([(name, pa.int64()) for name in batch_rows(0, 0)[0]])
        options = flight.FlightCallOptions(timeout=_TIMEOUT_SECONDS)
        descriptor = flight.FlightDescriptor.for_path(TOPIC)
        writer, reader = client.do_put(descriptor, schema, options=options)
        waiting: deque[int] = deque()
        sequence = first
        while not until() or waiting:
            if not until() and len(waiting) < self._window:
                self._write(writer, schema, sequence)
                waiting.append(sequence)
                sequence += 1
            else:
                note(waiting.popleft(), *self._answer(reader))
        writer.close()

    def _write(self, writer: Any, schema: pa.Schema, sequence: int) -> None:
        rows = pa.RecordBatch.from_pylist(batch_rows(self._producer, sequence), schema)
        sender = {"producer": f"p{self._producer}", "sequence": sequence}
        writer.write_with_metadata(rows, json.dumps(sender).encode())

    @staticmethod
    def _answer(reader: Any) -> tuple[int, int]:
        answered = reader.read()
        answer = json.loads(answered.to_pybytes()) if answered else {}
        if answer.get("end") is None:
            raise Broken
        return answer["first"], answer["end"]


class HttpDoor:
    def __init__(self, url: str, producer: int) -> None:
        self._address = urlsplit(url)
        self._producer = producer

    def send(self, first: int, until: Callable[[], bool], note: Note) -> None:
        host, port = self._address.hostname, self._address.port
        assert host is not None
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
        sequence = first
        try:
            while not until():
                answer = self._post(connection, sequence)
                note(sequence, answer["first"], answer["end"])
                sequence += 1
        except (OSError, http.client.HTTPException) as error:
            raise Broken from error
        finally:
            connection.close()

    def _post(self, connection: http.client.HTTPConnection, sequence: int) -> Any:
        body = "".join(f"{json.dumps(row)}\n" for row in batch_rows(self._producer, sequence))
        headers = {
            "Content-Type": "application/x-ndjson",
            "Calve-Producer": f"p{self._producer}",
            "Calve-Sequence": str(sequence),
        }
        connection.request("POST", f"/v1/topics/{TOPIC}/rows", body, headers)
        response = connection.getresponse()
        content = response.read()
        if response.status in {429, 503}:
            raise Broken
        assert response.status == http.HTTPStatus.OK, content
        return json.loads(content)


def produce(
    door: Door, notes: Notes, producer: int, ending: threading.Event, *, once: bool
) -> None:
    pause = random.Random(producer)
    last = 0

    def note(sequence: int, first: int, end: int) -> None:
        nonlocal last
        notes.write(producer, sequence, first, end)
        last = sequence

    while not ending.is_set():
        try:
            # The last that was acknowledged goes again: a repeat, which appends nothing.
            door.send(last, ending.is_set, note)
        except Broken:
            if once:
                return
            time.sleep(pause.uniform(0.05, 0.2))


def main(flight_url: str, http_url: str, path: str, first: str, count: str, *rest: str) -> None:
    notes = Notes(path)

    def producing(producer: int) -> Callable[[threading.Event], None]:
        door: Door = HttpDoor(http_url, producer)
        if producer % 2:
            door = FlightDoor(flight_url, producer, window=1 if rest else WINDOW)
        return partial(produce, door, notes, producer, once=bool(rest))

    run_producers(map(producing, range(int(first), int(first) + int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
