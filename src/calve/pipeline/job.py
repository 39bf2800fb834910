"""One Spark job for the pieces of a cycle: spread over tasks, and what became of each.

Needs no more of the session than DataFrames, so that a remote one does too.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import msgspec

from calve.pipeline.task import PieceTask
from calve.pipeline.work import PieceDone
from calve.spark.translate import translating_spark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from calve.pipeline.work import Piece

_DONE: Final = msgspec.msgpack.Decoder(PieceDone)
# What a piece costs before its first row, as bytes of the log; and a row of unknown size.
_PIECE_BYTES: Final = 512 * 1024
_ROW_BYTES: Final = 100


def run_pieces(
    session: SparkSession, pieces: Sequence[Piece], *, tasks_max: int
) -> list[PieceDone]:
    """Write the data files of all pieces, in at most so many tasks; in the order of the pieces.

    A piece that fails says so in its outcome. Unavailable if the job did not come to its end: what
    its tasks have written is then left for orphan removal. Without pieces there is a job all the
    same, which tells whether Spark is there.
    """
    tasks = [
        [msgspec.msgpack.encode(piece) for piece in task] for task in spread(pieces, tasks_max)
    ] or [[]]
    with translating_spark():
        numbers = session.range(0, len(tasks), 1, len(tasks))
        done = numbers.mapInArrow(PieceTask(tasks), "done binary").toArrow()
    found = {each.number: each for each in map(_DONE.decode, done.column(0).to_pylist())}
    return [found[piece.number] for piece in pieces]


def spread(pieces: Sequence[Piece], tasks_max: int) -> list[list[Piece]]:
    """The pieces of each task: the largest first, each to the task that has the least to do."""
    tasks: list[list[Piece]] = [[] for _ in range(min(tasks_max, len(pieces)))]
    loads = [(0, number) for number in range(len(tasks))]
    for piece in sorted(pieces, key=_cost, reverse=True):
        load, number = heapq.heappop(loads)
        tasks[number].append(piece)
        heapq.heappush(loads, (load + _cost(piece), number))
    return tasks


def _cost(piece: Piece) -> int:
    return _PIECE_BYTES + (piece.log_bytes or _ROW_BYTES * (piece.end - piece.start))
