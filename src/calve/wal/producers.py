"""What the log remembers of its producers, so that a retry is not appended twice.

Per stream and producer: the offsets of the last 256 sequences. A sequence begins at 0 and has no
gaps. How many producers are remembered is bounded; the one that was silent longest is forgotten,
and is told so when it comes back. Holds no locks and does no input or output.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SEQUENCES_KEPT: Final = 256


class ProducerKey(NamedTuple):
    stream: int
    producer: str


class OffsetPair(NamedTuple):
    first: int
    end: int


class History:
    """The newest sequences of one producer."""

    __slots__ = ("_ends", "_firsts", "last_sequence")

    def __init__(self, last_sequence: int = -1, firsts: bytes = b"", ends: bytes = b"") -> None:
        self.last_sequence = last_sequence
        self._firsts = array("Q", firsts)
        self._ends = array("Q", ends)

    def add(self, sequence: int, offsets: OffsetPair) -> None:
        """Remember an append. After a repair, one may come in pieces or be missing."""
        if sequence == self.last_sequence and self._ends:
            self._ends[-1] = offsets.end
            return
        if sequence != self.last_sequence + 1:
            del self._firsts[:], self._ends[:]  # they are found by counting back
        self.last_sequence = sequence
        self._firsts.append(offsets.first)
        self._ends.append(offsets.end)
        if len(self._firsts) >= 2 * SEQUENCES_KEPT:
            del self._firsts[:-SEQUENCES_KEPT]
            del self._ends[:-SEQUENCES_KEPT]

    def find(self, sequence: int) -> OffsetPair | None:
        """The offsets of a sequence that was appended, or None when that is too long ago."""
        back = self.last_sequence - sequence + 1
        if back > min(len(self._firsts), SEQUENCES_KEPT):
            return None
        return OffsetPair(self._firsts[-back], self._ends[-back])

    def columns(self) -> tuple[bytes, bytes]:
        return (
            self._firsts[-SEQUENCES_KEPT:].tobytes(),
            self._ends[-SEQUENCES_KEPT:].tobytes(),
        )


class ProducerMemory:
    def __init__(self, producers_max: int) -> None:
        self._producers_max = producers_max
        self._histories: OrderedDict[ProducerKey, History] = OrderedDict()

    def __len__(self) -> int:
        return len(self._histories)

    def last_sequence(self, key: ProducerKey) -> int:
        history = self._histories.get(key)
        return -1 if history is None else history.last_sequence

    def find(self, key: ProducerKey, sequence: int) -> OffsetPair | None:
        history = self._histories.get(key)
        return None if history is None else history.find(sequence)

    def record(self, key: ProducerKey, sequence: int, offsets: OffsetPair) -> None:
        """Remember an append. Only this decides who was silent longest, so that a log that is
        replayed forgets the same producers as the one that was running."""
        history = self._histories.get(key)
        if history is None:
            history = self._histories[key] = History()
        history.add(sequence, offsets)
        self._histories.move_to_end(key)
        if len(self._histories) > self._producers_max:
            self._histories.popitem(last=False)

    def forget_stream(self, stream: int) -> None:
        for key in [key for key in self._histories if key.stream == stream]:
            del self._histories[key]

    def items(self) -> Iterator[tuple[ProducerKey, History]]:
        return iter(self._histories.items())

    def restore(self, entries: Iterable[tuple[ProducerKey, History]]) -> None:
        self._histories = OrderedDict(entries)


def refuse_gap(key: ProducerKey, *, last: int, sequence: int) -> Conflict:
    if last < 0:
        return Conflict(
            f"producer {key.producer!r} begins with sequence {sequence}, but is not known here",
            hint="a new producer begins with 0; one that was forgotten takes a new id, after it "
            "has looked whether its last rows arrived",
            context={"expected_sequence": "0"},
        )
    return Conflict(
        f"producer {key.producer!r} sent sequence {sequence} after {last}",
        hint=f"send {last + 1} first: a gap would mean lost rows",
        context={"expected_sequence": str(last + 1)},
    )
