"""Rows that wait to be sent, until enough have come together or have waited long enough."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calve.client.pieces import Piece


class Waiting:
    """Not safe to share between threads: its owner has the lock."""

    def __init__(self, *, linger_seconds: float, rows_max: int, bytes_max: int) -> None:
        self._linger_seconds = linger_seconds
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._pieces: deque[Piece] = deque()
        self._rows = 0
        self._bytes = 0
        self._is_hurried = False

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._count(piece, 1)

    def put_back(self, pieces: Sequence[Piece]) -> None:
        """What was taken and could not be sent is first again, and lingers no more."""
        for piece in reversed(pieces):
            self._pieces.appendleft(piece)
            self._count(piece, 1)
        self._is_hurried = True

    def hurry(self) -> None:
        """Have all that waits now linger no longer."""
        self._is_hurried = bool(self._pieces)

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a batch."""
        return self._rows >= self._rows_max or self._bytes >= self._bytes_max

    @property
    def linger_left_seconds(self) -> float:
        """How much longer it may wait for more; 0 if it is to be sent."""
        if self._is_hurried or self.is_full or not self._pieces:
            return 0.0
        return max(self._pieces[0].since + self._linger_seconds - time.monotonic(), 0.0)

    def taken(self) -> list[Piece]:
        """As many pieces as make one batch, in order."""
        found: list[Piece] = []
        rows = size_bytes = 0
        while self._pieces:
            piece = self._pieces[0]
            rows += piece.part.num_rows
            size_bytes += piece.size_bytes
            if found and (rows > self._rows_max or size_bytes > self._bytes_max):
                break
            found.append(self._pieces.popleft())
            self._count(piece, -1)
        self._is_hurried = self._is_hurried and bool(self._pieces)
        return found

    def all_taken(self) -> list[Piece]:
        found = list(self._pieces)
        self._pieces.clear()
        self._rows = self._bytes = 0
        return found

    def _count(self, piece: Piece, sign: int) -> None:
        self._rows += sign * piece.part.num_rows
        self._bytes += sign * piece.size_bytes
