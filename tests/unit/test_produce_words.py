"""What `calve produce` says of rows that were under way when something failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

from calve.client.delivery import Delivered, Delivery
from calve.errors import CalveError, InvalidRequest, NotFound, UnknownOutcome
from tests.commands import run_command

PIECE_ROWS = 10_000


class Slow:
    """A client of a service that says what became of each piece, or nothing of it, in the end."""

    def __init__(self, outcomes: list[Delivered | CalveError | None]) -> None:
        self._outcomes = iter(outcomes)

    def produce(self, _: str, rows: Any) -> Delivery:
        assert rows.num_rows == PIECE_ROWS
        outcome = next(self._outcomes)

        def decide() -> None:
            if outcome is not None and not delivery.is_done:
                delivery.piece_done(outcome)

        delivery = Delivery(decide)
        return delivery

    def describe_topic(self, topic: str) -> dict[str, Any]:
        raise NotFound(f"there is no topic {topic}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


IN = Delivered(0, PIECE_ROWS)
REFUSED = InvalidRequest("not these")
UNKNOWN = UnknownOutcome("nobody knows")


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([IN, IN], ["20,000 rows are durable before that, up to offset 10000"]),
        (
            [IN, REFUSED, IN],
            [
                "20,000 rows are durable of the first 30,000 of the file, up to offset 10000",
                "rows 10,001 to 20,000 of the file did not come in: not these",
            ],
        ),
        (
            [IN, UNKNOWN, None],
            [
                "10,000 rows are durable of the first 30,000 of the file, up to offset 10000",
                "it is not known whether rows 10,001 to 30,000 of the file came in",
            ],
        ),
        ([REFUSED], ["rows 1 to 10,000 of the file did not come in: not these"]),
    ],
)
def test_what_was_under_way_is_waited_for_and_told(
    outcomes: list[Delivered | CalveError | None],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def batches(*_: object) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": list(range(len(outcomes) * PIECE_ROWS))})
        raise InvalidRequest("a bad row")

    monkeypatch.setattr("calve.cli.produce.client_of", lambda *_: Slow(outcomes))
    monkeypatch.setattr("calve.cli.produce.file_batches", batches)
    monkeypatch.setattr("calve.cli.produce._FINISH_SECONDS", 0.0)
    command = ["calve", "produce", "events", "--server", "grpc://here"]
    command += ["--data", "rows.ndjson", "--lake", str(tmp_path)]
    run = run_command(command, monkeypatch, capsys)
    assert run.code == 3
    _, *told = run.err.splitlines()
    assert told == [*words, "error: a bad row"]
