"""The newest rows of a topic, read once for all who are near its end.

A thread reads; the last batches are kept in a ring that is bounded in bytes, in number and in age.
Who does not come for them in time reads on its own: nobody waits for a slow one, and nothing is
kept for it. The bound in age is that of a reader: rows that were deleted are not handed out later
than a reader of its own would.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import CalveError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calve.clock import Clock
    from calve.subscriptions.batch import Batch
    from calve.subscriptions.reader import TopicReader

_log: Final = logging.getLogger(__name__)
RING_BYTES_MAX: Final = 16 << 20
RING_BATCHES_MAX: Final = 1_024
_POLL_SECONDS: Final = 0.25
_AGAIN_SECONDS: Final = 0.5


class _Kept(NamedTuple):
    batch: Batch
    size_bytes: int
    read_at: float


class Ring:
    """The last batches of one partition: everything from `start` up to `end`."""

    def __init__(self, position: int) -> None:
        self.start = position
        self.end = position
        self._kept: deque[_Kept] = deque()

    def find(self, position: int) -> Batch | None:
        """The batch with the first row at a position or behind it, of a position that is in it."""
        found: Batch | None = None
        for kept in reversed(self._kept):
            if kept.batch.next_offset <= position:
                break
            found = kept.batch
        if found is None:
            return None
        rest = found.since(position)
        return rest if len(rest) else self.find(found.next_offset)

    def add(self, batch: Batch, read_at: float) -> int:
        """Keep it; its bytes."""
        size_bytes = int(batch.rows.nbytes)
        self._kept.append(_Kept(batch, size_bytes, read_at))
        return size_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def oldest_at(self) -> float | None:
        return self._kept[0].read_at if self._kept else None

    def drop_oldest(self) -> int:
        """Let go of it; its bytes."""
        gone = self._kept.popleft()
        self.start = gone.batch.next_offset
        return gone.size_bytes


class Found(NamedTuple):
    """What a tail has for somebody: a batch, or where he is by then, or that he is behind it."""

    batch: Batch | None
    positions: Mapping[int, int]
    is_behind: bool = False


class Tail:
    """Reads from its making on. Safe to share between threads."""

    def __init__(self, reader: TopicReader, *, age_seconds: float, clock: Clock) -> None:
        """`reader` begins with the next row that comes, and is closed with the tail."""
        self._reader = reader
        self._age_seconds = age_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._rings = {p: Ring(position) for p, position in reader.positions.items()}
        self._size_bytes = 0
        self._is_ending = threading.Event()
        self.problem: CalveError | None = None  # that it ended with
        self._thread = threading.Thread(
            target=self._run, name=f"calve-tail-{reader.topic}", daemon=True
        )
        self._thread.start()

    @property
    def size_bytes(self) -> int:
        """Of the batches that are kept."""
        return self._size_bytes

    def ends(self) -> dict[int, int]:
        return self._reader.ends()

    def covers(self, positions: Mapping[int, int]) -> bool:
        """Whether somebody there would miss nothing by reading on here."""
        with self._changed:
            return self._covers(positions)

    def take(self, positions: Mapping[int, int], turn: int, timeout_seconds: float) -> Found:
        """The next batch for somebody who is there, waiting for one; partitions take turns."""
        with self._changed:
            found = self._find(positions, turn)
            if found.batch is None and not found.is_behind and self.problem is None:
                self._changed.wait(timeout_seconds)
                found = self._find(positions, turn)
            return found

    def wake(self) -> None:
        """Have those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        self._is_ending.set()
        self._reader.close()
        self._thread.join()

    def _find(self, positions: Mapping[int, int], turn: int) -> Found:
        self._drop_old()
        if not self._covers(positions):
            return Found(None, positions, is_behind=True)
        moved = dict(positions)
        partitions = sorted(self._rings)
        for number in range(len(partitions)):
            partition = partitions[(turn + number) % len(partitions)]
            ring = self._rings[partition]
            batch = ring.find(moved.get(partition, 0))
            moved[partition] = (
                batch.next_offset if batch else max(moved.get(partition, 0), ring.end)
            )
            if batch is not None:
                return Found(batch, moved)
        return Found(None, moved)

    def _covers(self, positions: Mapping[int, int]) -> bool:
        return all(positions.get(p, 0) >= ring.start for p, ring in self._rings.items())

    def _run(self) -> None:
        while not self._is_ending.is_set():
            try:
                batch = self._reader.poll(_POLL_SECONDS)
                self._note(batch)
            except Unavailable as error:
                _log.warning("the newest rows of %s are not read: %s", self._reader.topic, error)
                self._is_ending.wait(_AGAIN_SECONDS)
            except CalveError as error:
                self.problem = error
                break
        self.wake()

    def _note(self, batch: Batch | None) -> None:
        with self._changed:
            for partition, position in self._reader.positions.items():
                # One that is new is read from its first row on.
                self._rings.setdefault(partition, Ring(0)).end = position
            if batch is not None:
                ring = self._rings[batch.partition]
                self._size_bytes += ring.add(batch, self._clock.monotonic())
            self._drop_old()
            self._changed.notify_all()

    def _drop_old(self) -> None:
        while True:
            rings = [(at, r) for r in self._rings.values() if (at := r.oldest_at()) is not None]
            if not rings:
                return
            at, ring = min(rings, key=lambda each: each[0])
            is_old = self._clock.monotonic() - at > self._age_seconds
            count = sum(len(r) for r in self._rings.values())
            if not is_old and self._size_bytes <= RING_BYTES_MAX and count <= RING_BATCHES_MAX:
                return
            self._size_bytes -= ring.drop_oldest()
