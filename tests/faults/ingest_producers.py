"""A process with many producers, which note what was acknowledged until they are told to stop.

    ingest_producers.py FLIGHT HTTP NOTES FIRST COUNT [once]

Every other one sends over Flight, with several batches under way, the rest over HTTP. A producer
sends its batches in order under its own sequences. Whatever breaks is sent again under the same
sequence, until it is acknowledged; with `once` the producer ends instead. A note is one write of
`producer sequence first end`, after the acknowledgement; what is written outlives the process.
Standard input's end is the sign to stop: what is under way is brought to its end.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

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


class Notes:
    """One write for each acknowledgement."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def of(self, producer: int, next_sequence: list[int]) -> Note:
        def note(sequence: int, first: int, end: int) -> None:
            os.write(self._descriptor, f"{producer} {sequence} {first} {end}\n".encode())
            next_sequence[0] = sequence + 1

        return note


def produce(
    door: Door, notes: Notes, producer: int, ending: threading.Event, *, once: bool
) -> None:
    pause = random.Random(producer)
    next_sequence = [0]
    note = notes.of(producer, next_sequence)
    while not ending.is_set():
        # The last that was acknowledged goes again: a repeat, which appends nothing.
        first = max(0, next_sequence[0] - 1)
        try:
            door.send(first, ending.is_set, note)
        except Broken:
            if once:
                return
            time.sleep(pause.uniform(0.05, 0.2))


def main() -> None:
    flight_url, http_url, path, first, count, *rest = sys.argv[1:]
    notes, ending = Notes(path), threading.Event()
    threads = []
    for producer in range(int(first), int(first) + int(count)):
        door: Door = HttpDoor(http_url, producer)
        if producer % 2:
            door = FlightDoor(flight_url, producer, window=1 if rest else WINDOW)
        threads.append(
            threading.Thread(
                target=produce, args=(door, notes, producer, ending), kwargs={"once": bool(rest)}
            )
        )
    for thread in threads:
        thread.start()
    print("started", flush=True)
    sys.stdin.read()
    ending.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    threading.excepthook = lambda failure: (print(failure, file=sys.stderr), os._exit(3))
    main()
