"""An append on its way: what to write, and a handle to wait on until it is acknowledged."""

from __future__ import annotations

import logging
import threading
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from calve.errors import CalveError, InvalidRequest, Unavailable
from calve.wal.payload import bytes_estimate, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from calve.wal.payload import EncodedPart, Part, SchemaCache
    from calve.wal.state import Stream

_log = logging.getLogger(__name__)
_making_locks = threading.Lock()
_OVERHEAD_BYTES: Final = 2048  # header, padding, Arrow's own metadata, a schema now and then


class Producer(NamedTuple):
    """Who sends, and the number of this append among theirs."""

    id: str
    sequence: int


class Acknowledgement(NamedTuple):
    """The offsets of an append, `first` up to but not including `end`.

    A repeat has the offsets of the first append. When that is more sequences ago than the log
    remembers, the offsets are None: the rows are there, but not known by number.
    """

    first: int | None
    end: int | None
    is_repeat: bool = False


class Leader(Protocol):
    """Whoever gets pending appends written."""

    schemas: SchemaCache

    def lead_for(self, pending: PendingAppend) -> None:
        """Write and sync now, unless somebody is at it already."""
        ...

    def wake(self) -> None:
        """Get it done by somebody else, soon."""
        ...


class PendingAppend:
    """Returned by `Log.submit`. Safe to share between threads."""

    __slots__ = (
        "_callbacks", "_encoded", "_error", "_is_done", "_leader", "_lock", "_result", "_rows",
        "bytes_bound", "producer", "producer_bytes", "sequence", "stream",
    )  # fmt: skip

    def __init__(
        self,
        stream: Stream,
        rows: Sequence[Part],
        producer: Producer | None,
        leader: Leader,
    ) -> None:
        self.stream = stream
        self.producer = None if producer is None else producer.id
        self.sequence = 0 if producer is None else producer.sequence
        self.producer_bytes = b"" if self.producer is None else self.producer.encode()
        self.bytes_bound = sum([bytes_estimate(part) + _OVERHEAD_BYTES for part in rows])
        self._rows = rows
        self._encoded: Sequence[EncodedPart] | None = None
        self._leader = leader
        self._is_done = False
        self._result: Acknowledgement | None = None
        self._error: CalveError | None = None
        self._lock: threading.Lock | None = None
        self._callbacks: deque[Callable[[PendingAppend], None]] | None = None

    def encode(self) -> None:
        """Make the frames' payloads. Whatever fails here is this caller's alone."""
        try:
            self._encoded = [encode(part, self._leader.schemas) for part in self._rows]
        except CalveError:
            raise
        except Exception as error:
            raise InvalidRequest(
                f"the rows cannot be written: {type(error).__name__}: {error}"
            ) from error
        self._rows = ()

    def encoded(self) -> Sequence[EncodedPart]:
        if self._encoded is None:
            self.encode()
        assert self._encoded is not None
        return self._encoded

    @property
    def is_done(self) -> bool:
        return self._is_done

    def wait(self, timeout_seconds: float | None = None) -> Acknowledgement:
        """Return when the rows are safe under the sync mode, or raise what prevented it."""
        if not self._is_done:
            self._leader.lead_for(self)
        if not self._is_done:
            self._block(timeout_seconds)
        if self._error is not None:
            # A copy: many may wait, and each raise adds its traceback to the object.
            raise copy(self._error) from self._error.__cause__
        assert self._result is not None
        return self._result

    def _block(self, timeout_seconds: float | None) -> None:
        lock = self._waiters_lock()
        # From here on either `_finish` sees the lock, or this thread sees `_is_done`.
        while not self._is_done:
            if not lock.acquire(timeout=-1 if timeout_seconds is None else timeout_seconds):
                raise Unavailable(
                    f"no acknowledgement within {timeout_seconds} s",
                    hint="the rows may still arrive: wait again on the same handle",
                )
            lock.release()  # for whoever else waits on this handle

    def _waiters_lock(self) -> threading.Lock:
        with _making_locks:
            if self._lock is None:
                lock = threading.Lock()
                lock.acquire()
                self._lock = lock
            return self._lock

    def add_done_callback(self, callback: Callable[[PendingAppend], None]) -> None:
        """Call back once, from whichever thread finishes the append; at once if it is done."""
        with _making_locks:
            if self._callbacks is None:
                self._callbacks = deque()
            self._callbacks.append(callback)
        if self._is_done:
            self._call_back()
        else:
            self._leader.wake()

    def succeed(self, result: Acknowledgement) -> None:
        self._result = result
        self._finish()

    def fail(self, error: CalveError) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self._rows = self._encoded = ()
        self._is_done = True
        if self._lock is not None:
            self._lock.release()
        if self._callbacks:
            self._call_back()

    def _call_back(self) -> None:
        assert self._callbacks is not None
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return  # another thread was faster
            try:
                callback(self)
            except Exception:  # noqa: BLE001
                # A caller's mistake must not keep the acknowledgement from the others.
                _log.exception("a callback of an append failed")
