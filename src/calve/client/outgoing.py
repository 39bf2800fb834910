"""Batches on their way, and their numbers: by these the service knows a batch that it has.

A service refuses no batch that it has, and the log takes no sequence of a producer after a gap. So
neither a batch that was refused nor any behind it has been appended, and those may move up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calve.client.pieces import Batch, Piece
from calve.protocol import PutMetadata


@dataclass(slots=True)
class Outgoing:
    """A batch with its number among those of its producer."""

    batch: Batch
    metadata: PutMetadata
    is_doubtful: bool = False  # it was sent, and nobody knows what became of it

    @property
    def pieces(self) -> list[Piece]:
        return [share.piece for share in self.batch.shares]

    @property
    def is_numbered_by_user(self) -> bool:
        return self.batch.shares[0].piece.sequence is not None

    @property
    def since(self) -> float:
        return self.batch.shares[0].piece.since

    def apart(self) -> list[Batch]:
        """The same rows, as a batch for each call of `produce`."""
        found = []
        start = 0
        for share in self.batch.shares:
            found.append(Batch(self.batch.rows.slice(start, share.row_count), [share]))
            start += share.row_count
        return found


class Numbering:
    """Gives batches their numbers. Not safe to share between threads."""

    def __init__(self, *, sender_id: str, producer: str) -> None:
        self._sender_id = sender_id
        self._producer = producer  # the user's
        self._lives = 0
        self._next_sequence = 0

    def numbered(self, batch: Batch) -> Outgoing:
        sequence = batch.shares[0].piece.sequence
        if sequence is not None:
            return Outgoing(batch, PutMetadata(self._producer, sequence))
        number, self._next_sequence = self._next_sequence, self._next_sequence + 1
        return Outgoing(batch, PutMetadata(self._name, number))

    @property
    def _name(self) -> str:
        return f"{self._sender_id}.{self._lives}" if self._lives else self._sender_id

    def moved_up(self, refused: Outgoing, behind: Sequence[Outgoing]) -> list[Outgoing]:
        """Those behind a batch that was refused, with the numbers that they have without it."""
        if refused.is_numbered_by_user:
            return list(behind)
        assert refused.metadata.sequence is not None
        self._next_sequence = refused.metadata.sequence
        return [self.numbered(outgoing.batch) for outgoing in behind]

    def under_another_name(self, left: Sequence[Outgoing]) -> list[Outgoing]:
        """For when the service expects another sequence than the next, or nobody knows which."""
        self._lives += 1
        self._next_sequence = 0
        return [self.numbered(outgoing.batch) for outgoing in left]
