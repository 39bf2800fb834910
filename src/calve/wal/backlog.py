"""Appends that wait to be written, in the order they came, bounded by their bytes.

They wait in batches, each for one write and one sync; those who wait for an append wait for its
batch. A batch that somebody took stays here until its outcome was told: whoever leads next finds
what an interrupt left behind. Over the bound an append is refused with a delay, before its rows
are encoded.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from calve.wal.retention import refuse_pending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from calve.errors import CalveError
    from calve.wal.pending import Outcome, PendingAppend

_ENCODED_BY_CALLER_BYTES: Final = 1 << 16
_PAUSE_SECONDS: Final = 0.00002


def _closed_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class Batch:
    """Appends that are written and finished together."""

    __slots__ = (
        "_alarms", "_gate", "_is_open", "appends", "bytes_bound", "outcomes", "waiting_count",
    )  # fmt: skip

    def __init__(self) -> None:
        self.appends: list[PendingAppend] = []
        self.outcomes: Sequence[Outcome] | None = None  # one for each, once they are known
        self.bytes_bound = 0
        self.waiting_count = 0  # of threads; about, as they count themselves without a lock
        self._is_open = False
        self._gate = _closed_lock()
        self._alarms: list[threading.Lock] = []

    def open(self) -> None:
        """Let everybody go on who waits, now and later. All the appends are finished.

        Can be repeated when it was interrupted: Python does so after a call, never before it.
        """
        if not self._is_open:
            self._is_open = True
            self._gate.release()
        for alarm in self._alarms:
            if alarm.locked():
                alarm.release()

    def wait(self) -> None:
        """Each who comes through wakes the next: threads that woke all at once would fight for
        the interpreter's lock."""
        self.waiting_count += 1
        with self._gate:
            pass

    def wait_until(self, timeout_seconds: float) -> bool:
        """Whether it was opened in time. With a lock of its own: an interrupt between taking the
        gate and giving it back would keep the others out, and only `with` leaves no such moment."""
        self.waiting_count += 1
        alarm = _closed_lock()
        self._alarms.append(alarm)
        return self._is_open or alarm.acquire(timeout=timeout_seconds) or self._is_open


class Backlog:
    def __init__(self, bytes_max: int, batch_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._bytes = 0  # of those that wait, and of those that are being encoded for it
        self._batches: deque[Batch] = deque()
        self._taken_count = 0  # of the batches, from the first on
        self._filling: Batch | None = None  # the last one, unless it was taken
        self._lock = threading.Lock()
        self._gathered = _closed_lock()
        self._awaited_count: int | None = None  # of all that came, while somebody waits for it
        self.put_count = 0
        self._refuse: Callable[[], CalveError] | None = None

    def __bool__(self) -> bool:
        """Whether anything is left to write or to tell."""
        return bool(self._batches)

    def put(self, append: PendingAppend) -> None:
        more_bytes = append.bytes_bound
        if more_bytes > _ENCODED_BY_CALLER_BYTES:
            self._put_encoded(append)
            return
        with self._lock:
            if self._refuse is not None or self._bytes + more_bytes > self._bytes_max:
                self._require_room(more_bytes)
            self._enqueue(append, more_bytes)

    def _put_encoded(self, append: PendingAppend) -> None:
        """Large ones are encoded side by side; small ones by whoever writes, where threads do
        not contend for the interpreter's lock."""
        with self._lock:
            self._require_room(append.bytes_bound)
            self._bytes += append.bytes_bound
        try:
            append.encode()
            with self._lock:
                self._require_open()
                self._enqueue(append, 0)
        except BaseException:
            with self._lock:
                self._bytes -= append.bytes_bound
            raise

    def _require_open(self) -> None:
        if self._refuse is not None:
            raise self._refuse()

    def _require_room(self, more_bytes: int) -> None:
        self._require_open()
        if self._bytes and self._bytes + more_bytes > self._bytes_max:
            raise refuse_pending(self._bytes_max)

    def _enqueue(self, append: PendingAppend, more_bytes: int) -> None:
        batch = self._filling
        if batch is None or batch.bytes_bound + append.bytes_bound > self._batch_bytes_max:
            batch = self._begin_batch()
        append.batch = batch
        # All of this or nothing: no call comes before the last one, so no interrupt either.
        self._bytes += more_bytes
        batch.bytes_bound += append.bytes_bound
        self.put_count += 1
        batch.appends.append(append)
        if self.put_count == self._awaited_count:
            self._awaited_count = None
            self._gathered.release()

    def _begin_batch(self) -> Batch:
        batch = Batch()
        self._filling = batch
        self._batches.append(batch)
        return batch

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to take."""
        return len(self._batches) > self._taken_count

    def begins_with_at_most(self, bytes_max: int) -> bool:
        """Whether something waits, and the first batch of it is that small."""
        with self._lock:
            return self.is_waiting and self._batches[self._taken_count].bytes_bound <= bytes_max

    def gather(self, put_count: int) -> None:
        """Return when so many came in all, or when nobody came for a moment."""
        with self._lock:
            before = self.put_count
            if before >= put_count:
                return
            self._awaited_count = put_count
        while not self._gathered.acquire(timeout=_PAUSE_SECONDS):
            with self._lock:
                if self.put_count == before:
                    self._awaited_count = None
                    return
                before = self.put_count

    def take(self) -> Batch | None:
        """The oldest batch that waits, if there is one. Nothing is added to it from now on."""
        with self._lock:
            if not self.is_waiting:
                return None
            batch = self._batches[self._taken_count]
            if batch is self._filling:
                self._filling = None
            self._taken_count += 1
            self._bytes -= batch.bytes_bound
            return batch

    @property
    def first_taken(self) -> Batch | None:
        """The oldest that was taken and not dropped yet. For whoever leads."""
        return self._batches[0] if self._taken_count else None

    def drop(self) -> None:
        """Forget the oldest that was taken."""
        with self._lock:
            self._taken_count -= 1
            self._batches.popleft()

    def shut(self, refuse: Callable[[], CalveError]) -> None:
        """Refuse from now on, with a fresh error each; the first reason stays."""
        with self._lock:
            self._refuse = self._refuse or refuse
