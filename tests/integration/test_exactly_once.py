"""The example that stores offsets with results: killed at any place, it counts each row once."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import calve
from calve.subscriptions import Batch, Subscription
from tests.servers.postgres import Postgres

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "exactly_once.py"


class Killed(Exception):
    """As if the process had ended there."""


@pytest.fixture
def database(postgres_server: Postgres) -> Iterator[str]:
    made = postgres_server.create_database()
    yield made.url.replace("+psycopg", "")
    made.drop_database()


def produce(directory: Path, first: int, count: int) -> None:
    rows = [{"country": "no" if n % 2 else "it", "cents": n} for n in range(first, first + count)]
    with calve.open(directory) as lake:
        for start in range(0, count, 3):  # several batches
            lake.produce("orders", rows[start : start + 3])


def totals(database: str) -> dict[str, int]:
    with psycopg.connect(database) as connection:
        return dict(connection.execute("select country, cents from totals").fetchall())


def test_each_row_counts_once_whatever_was_acknowledged(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    run = example["main"]
    produce(tmp_path, 0, 9)
    acknowledge = Subscription.ack

    def killed_before(*_: object) -> bool:
        raise Killed

    def killed_half_way(self: Subscription, batch: Batch) -> bool:
        acknowledge(self, batch, batch.first_offset + 2)
        raise Killed

    for kill in (killed_before, killed_half_way, killed_before):
        monkeypatch.setattr(Subscription, "ack", kill)
        with pytest.raises(Killed):
            run(database, str(tmp_path))
    monkeypatch.undo()
    produce(tmp_path, 9, 4)
    run(database, str(tmp_path))
    run(database, str(tmp_path))
    assert totals(database) == {
        "no": sum(n for n in range(13) if n % 2),
        "it": sum(n for n in range(13) if not n % 2),
    }
