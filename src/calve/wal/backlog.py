"""Appends that wait to be written, in the order they came, bounded by their bytes.

They wait in batches, each for one write and one sync; those who wait for an append wait for its
batch. Over the bound an append is refused with a delay, before its rows are encoded.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from calve.wal.retention import refuse_pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.errors import CalveError
    from calve.wal.pending import PendingAppend

_ENCODED_BY_CALLER_BYTES: Final = 1 << 16


class Batch:
    """Appends that are written and finished together."""

    __slots__ = ("_gate", "_is_open", "appends", "bytes_bound")

    def __init__(self) -> None:
        self.appends: list[PendingAppend] = []
        self.bytes_bound = 0
        self._is_open = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def open(self) -> None:
        """Let everybody go on who waits, now and later. All the appends are finished."""
        if not self._is_open:
            self._gate.release()
            self._is_open = True

    def wait(self, timeout_seconds: float | None) -> bool:
        """Whether it was opened in time.

        Each who comes through wakes the next: threads that woke all at once would fight for the
        interpreter's lock.
        """
        if not self._gate.acquire(timeout=-1 if timeout_seconds is None else timeout_seconds):
            return False
        self._gate.release()
        return True


class Backlog:
    def __init__(self, bytes_max: int, batch_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._bytes = 0  # of those that wait, and of those that are being encoded for it
        self._batches: deque[Batch] = deque()
        self._lock = threading.Lock()
        self._refuse: Callable[[], CalveError] | None = None

    def __bool__(self) -> bool:
        return bool(self._batches)

    def put(self, append: PendingAppend) -> None:
        if append.bytes_bound > _ENCODED_BY_CALLER_BYTES:
            self._put_encoded(append)
            return
        with self._lock:
            self._reserve(append.bytes_bound)
            self._enqueue(append)

    def _put_encoded(self, append: PendingAppend) -> None:
        """Large ones are encoded side by side; small ones by whoever writes, where threads do
        not contend for the interpreter's lock."""
        with self._lock:
            self._reserve(append.bytes_bound)
        try:
            append.encode()
            with self._lock:
                self._require_open()
                self._enqueue(append)
        except BaseException:
            with self._lock:
                self._bytes -= append.bytes_bound
            raise

    def _reserve(self, more_bytes: int) -> None:
        self._require_open()
        waiting = self._bytes + more_bytes
        if self._bytes and waiting > self._bytes_max:
            raise refuse_pending(self._bytes_max)
        self._bytes = waiting

    def _require_open(self) -> None:
        if self._refuse is not None:
            raise self._refuse()

    def _enqueue(self, append: PendingAppend) -> None:
        more_bytes = append.bytes_bound
        batches = self._batches
        if not batches or batches[-1].bytes_bound + more_bytes > self._batch_bytes_max:
            batches.append(Batch())
        batch = append.batch = batches[-1]
        batch.bytes_bound += more_bytes
        batch.appends.append(append)

    @property
    def first_count(self) -> int:
        """How many appends the first batch holds so far."""
        try:
            return len(self._batches[0].appends)
        except IndexError:
            return 0

    def begins_with_at_most(self, bytes_max: int) -> bool:
        """Whether something waits, and the first batch of it is that small."""
        try:
            return self._batches[0].bytes_bound <= bytes_max
        except IndexError:
            return False

    def take(self) -> Batch | None:
        """The oldest batch, if there is one. Nothing is added to it from now on."""
        with self._lock:
            if not self._batches:
                return None
            batch = self._batches.popleft()
            self._bytes -= batch.bytes_bound
            return batch

    def shut(self, refuse: Callable[[], CalveError]) -> None:
        """Refuse from now on, with a fresh error each; the first reason stays."""
        with self._lock:
            self._refuse = self._refuse or refuse
