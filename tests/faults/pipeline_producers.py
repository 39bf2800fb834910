"""Producers that note every id that was acknowledged, until standard input ends.

    pipeline_producers.py FLIGHT HTTP NOTES

Some send over Flight with the client, some over HTTP. Among the rows over HTTP are bad ones, which
are to be set aside. From time to time there are new columns, and new topics. A note is
`topic first count`, after the acknowledgement: the ids from `first` on are in.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from calve import Client
from calve.client.posting import Poster
from tests.faults.noted_producers import Notes, run_producers

ORDERS = "orders"
SCHEMA = {"id": "long", "at": "timestamptz", "amount": "double"}
BURSTS_MAX = 12
_IDS = 1_000_000_000
_BATCH_ROWS = 50
_STEP_TURNS = 20  # a turn takes a tenth of a second or more
_STEPS_MAX = 300
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def rows_of(first: int, turn: int) -> list[dict[str, Any]]:
    """Rows with ids that nobody else sends, and every few seconds a column that is new.

    It stands by itself or inside of another, in turns.
    """
    step = min(turn // _STEP_TURNS, _STEPS_MAX)
    place: dict[str, Any] = {"all": [turn]}
    more: dict[str, Any] = {"place": place}
    (place if step % 2 else more)[f"c{step}"] = turn
    return [
        {"id": first + n, "at": _BEGIN + timedelta(hours=turn), "amount": n / 4, **more}
        for n in range(_BATCH_ROWS)
    ]


def over_flight(url: str, notes: Notes, number: int, ending: threading.Event) -> None:
    with Client(url) as client:
        for turn in range(_IDS // _BATCH_ROWS):
            if ending.is_set():
                return
            first = number * _IDS + turn * _BATCH_ROWS
            topic = ORDERS if turn % 3 else f"burst{min(turn // 30, BURSTS_MAX)}"
            client.produce(topic, rows_of(first, turn)).result()
            notes.write(topic, first, _BATCH_ROWS)
            ending.wait(0.1)


def over_http(url: str, notes: Notes, number: int, ending: threading.Event) -> None:
    with Poster(url, ORDERS, sets_aside=True) as poster:
        for turn in range(_IDS // _BATCH_ROWS):
            if ending.is_set():
                return
            first = number * _IDS + turn * _BATCH_ROWS
            rows = rows_of(first, turn)
            rows[turn % _BATCH_ROWS]["amount"] = "many"
            body = "".join(f"{json.dumps(row, default=datetime.isoformat)}\n" for row in rows)
            poster.post(body.encode(), "application/x-ndjson")
            notes.write(ORDERS, first, _BATCH_ROWS)
            ending.wait(0.2)


def main(flight: str, http: str, path: str) -> None:
    with Client(flight) as client:
        client.create_topic(ORDERS, schema=SCHEMA, partition_by=["day(at)"], sort_by=["id"])
    notes = Notes(path)
    doors = [*[partial(over_flight, flight)] * 3, *[partial(over_http, http)] * 2]
    run_producers(partial(send, notes, number) for number, send in enumerate(doors))


if __name__ == "__main__":
    main(*sys.argv[1:])
