"""One stream at a time speaks for a producer of a topic: the one that came last.

A connection that broke may leave a stream behind that still has batches to submit, while its
producer is back over another one. Once that has begun, the old one can append nothing more: so
what the new one is told of the producer's sequence stays true.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeAlias

from calve.errors import Conflict

if TYPE_CHECKING:
    from calve.model import TableName

Key: TypeAlias = "tuple[TableName, str]"
_PER_STREAM_MAX: Final = 256


class Turn:
    """Who speaks for a producer. Its lock is held while a batch is submitted."""

    __slots__ = ("lock", "speaker")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.speaker: object = None

    def require(self, speaker: object, producer: str) -> None:
        """With the lock held: Conflict if another stream has taken over."""
        if self.speaker is not speaker:
            raise Conflict(
                f"another stream has begun to speak for producer {producer!r}",
                hint="send the batches of a producer over one stream at a time",
            )


class Turns:
    """All turns of a server, as long as somebody has them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[Key, tuple[Turn, int]] = {}  # with how many streams hold each

    def hold(self, key: Key) -> Turn:
        with self._lock:
            turn, holders = self._turns.get(key) or (Turn(), 0)
            self._turns[key] = (turn, holders + 1)
            return turn

    def let_go(self, key: Key) -> None:
        with self._lock:
            turn, holders = self._turns[key]
            if holders > 1:
                self._turns[key] = (turn, holders - 1)
            else:
                del self._turns[key]


class Speaker:
    """The turns of one stream. Not safe to share between threads."""

    def __init__(self, turns: Turns, name: TableName) -> None:
        self.name = name
        self._all = turns
        self._mine: dict[str, Turn] = {}

    def turn(self, producer: str) -> Turn:
        """The producer's turn, taken over when this stream first speaks for it."""
        found = self._mine.get(producer)
        if found is None:
            if len(self._mine) >= _PER_STREAM_MAX:
                self.close()
            found = self._mine[producer] = self._all.hold((self.name, producer))
            with found.lock:
                found.speaker = self
        return found

    def close(self) -> None:
        while self._mine:
            producer, _ = self._mine.popitem()
            self._all.let_go((self.name, producer))
