"""What the log remembers of its producers, so that a retry is not appended twice.

Per stream and producer: the offsets of the last 256 sequences. A sequence begins at 0 and has no
gaps. How many producers are remembered is bounded, and shared fairly between streams; one that is
forgotten is told so when it comes back. Holds no locks and does no input or output.
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
    """At most `producers_max` producers of all streams together.

    A stream's share is that number divided by the streams that have producers. Over the bound, a
    stream that has more than its share forgets its own producer that was silent longest; one that
    has not takes a place from the stream that has most. So a flood in one stream pushes out its
    own, and what is within a share stays. With more streams than places, whoever was silent
    longest goes. Who is forgotten follows from the contents and their order alone, so that a log
    that is replayed forgets the same producers as the one that was running.
    """

    def __init__(self, producers_max: int) -> None:
        self._producers_max = producers_max
        self._histories: OrderedDict[ProducerKey, History] = OrderedDict()  # as they were heard
        self._by_stream: dict[int, OrderedDict[ProducerKey, None]] = {}

    def __len__(self) -> int:
        return len(self._histories)

    def count(self, stream: int) -> int:
        return len(self._by_stream.get(stream, ()))

    def last_sequence(self, key: ProducerKey) -> int:
        history = self._histories.get(key)
        return -1 if history is None else history.last_sequence

    def find(self, key: ProducerKey, sequence: int) -> OffsetPair | None:
        history = self._histories.get(key)
        return None if history is None else history.find(sequence)

    def record(self, key: ProducerKey, sequence: int, offsets: OffsetPair) -> None:
        """Remember an append. Only this decides who was silent longest."""
        history = self._histories.get(key)
        if history is None:
            history = History()
        history.add(sequence, offsets)
        self._hear(key, history)
        while len(self._histories) > self._producers_max:
            self._forget(self._one_too_many(key.stream))

    def _hear(self, key: ProducerKey, history: History) -> None:
        self._histories[key] = history
        self._histories.move_to_end(key)
        of_stream = self._by_stream.setdefault(key.stream, OrderedDict())
        of_stream[key] = None
        of_stream.move_to_end(key)

    def _one_too_many(self, heard: int) -> ProducerKey:
        """Whom to forget after a producer of the stream `heard` was remembered."""
        streams = self._by_stream
        if len(streams) > self._producers_max:
            return next(iter(self._histories))
        crowded = heard
        if len(streams[heard]) <= self._producers_max // len(streams):
            # A search through all of them, but a stream fills its share only once.
            crowded = max(streams, key=lambda stream: (len(streams[stream]), stream))
        return next(iter(streams[crowded]))

    def _forget(self, key: ProducerKey) -> None:
        del self._histories[key]
        of_stream = self._by_stream[key.stream]
        del of_stream[key]
        if not of_stream:
            del self._by_stream[key.stream]

    def forget_stream(self, stream: int) -> None:
        for key in self._by_stream.pop(stream, ()):
            del self._histories[key]

    def items(self) -> Iterator[tuple[ProducerKey, History]]:
        return iter(self._histories.items())

    def restore(self, entries: Iterable[tuple[ProducerKey, History]]) -> None:
        self._histories.clear()
        self._by_stream.clear()
        for key, history in entries:
            self._hear(key, history)


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
