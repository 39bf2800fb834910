"""An append on its way: what to write, and a handle to wait on until it is acknowledged.

Takes no locks: a handle is finished by whoever leads, and those who wait for it wait for its
batch. Callbacks are run where no lock is held.
"""

from __future__ import annotations

import logging
import operator
import threading
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from calve.errors import CalveError, InvalidRequest, Unavailable
from calve.wal.frame import PRODUCER_BYTES_MAX
from calve.wal.payload import Rejected, bytes_estimate, encode, require_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from calve.wal.backlog import Batch
    from calve.wal.payload import EncodedPart, Part, SchemaCache
    from calve.wal.state import Stream

_log = logging.getLogger(__name__)
_OVERHEAD_BYTES: Final = 2048  # header, padding, Arrow's own metadata, a schema now and then
_SEQUENCE_MAX: Final = (1 << 63) - 1


class Producer(NamedTuple):
    """Who sends, and the number of this append among theirs."""

    id: str
    sequence: int
    encoded: bytes

    @classmethod
    def of(cls, producer: str | None, sequence: int | None) -> Producer:
        """What a caller gave, once it is known to fit into a frame."""
        if producer is None or sequence is None:
            raise InvalidRequest("producer and sequence come together or not at all")
        try:
            encoded, number = producer.encode(), operator.index(sequence)
        except (TypeError, AttributeError, UnicodeEncodeError) as error:
            raise InvalidRequest(
                f"a producer's id is text and its sequence a whole number: {error}"
            ) from error
        if not 0 < len(encoded) <= PRODUCER_BYTES_MAX:
            raise InvalidRequest(f"a producer's id has 1 to {PRODUCER_BYTES_MAX} bytes")
        if not 0 <= number <= _SEQUENCE_MAX:
            raise InvalidRequest("a producer's sequence begins at 0 and counts up")
        return cls(producer, number, encoded)


class Acknowledgement(NamedTuple):
    """The offsets of an append, `first` up to but not including `end`.

    A repeat has the offsets of the first append. When that is more sequences ago than the log
    remembers, the offsets are None: the rows are there, but not known by number.
    """

    first: int | None
    end: int | None
    is_repeat: bool = False


Outcome: TypeAlias = Acknowledgement | CalveError


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
        "_encoded", "_leader", "_rows",
        "batch", "bytes_bound", "callbacks", "outcome", "producer", "stream",
    )  # fmt: skip

    def __init__(
        self, stream: Stream, rows: Sequence[Part], producer: Producer | None, leader: Leader
    ) -> None:
        self.stream = stream
        self.producer = producer
        bytes_bound = 0
        for part in rows:
            bytes_bound += bytes_estimate(part) + _OVERHEAD_BYTES
        self.bytes_bound = bytes_bound
        self.batch: Batch | None = None  # set by the backlog
        self._rows = rows
        self._encoded: Sequence[EncodedPart] | None = None
        self._leader = leader
        self.outcome: Outcome | None = None  # set by whoever leads
        self.callbacks: list[Callable[[PendingAppend], None]] = []  # those that nobody has run yet

    def encode(self) -> Sequence[EncodedPart]:
        """Make the frames' payloads, once. Whatever fails here is this caller's alone."""
        if self._encoded is None:
            schemas = self._leader.schemas
            try:
                self._encoded = [encode(part, schemas) for part in self._rows]
            except CalveError:
                raise
            except Exception as error:
                raise InvalidRequest(
                    f"the rows cannot be written: {type(error).__name__}: {error}"
                ) from error
            self._rows = ()
        return self._encoded

    @property
    def is_done(self) -> bool:
        return self.outcome is not None

    def wait(self, timeout_seconds: float | None = None) -> Acknowledgement:
        """Return when the rows are safe under the sync mode, or raise what prevented it."""
        if self.outcome is None:
            self._leader.lead_for(self)
            if self.outcome is None:
                self._block(timeout_seconds)
        outcome = self.outcome
        if isinstance(outcome, CalveError):
            # A copy: many may wait, and each raise adds its traceback to the object.
            raise copy(outcome) from outcome.__cause__
        assert outcome is not None
        return outcome

    def _block(self, timeout_seconds: float | None) -> None:
        assert self.batch is not None
        if timeout_seconds is None:
            self.batch.wait()
        elif not self.batch.wait_until(timeout_seconds):
            raise Unavailable(
                f"no acknowledgement within {timeout_seconds} s",
                hint="the rows may still arrive: wait again on the same handle",
            )

    def add_done_callback(self, callback: Callable[[PendingAppend], None]) -> None:
        """Call back once, from whichever thread finishes the append; at once if it is done.

        No lock of the log is held meanwhile, so a callback may use the log in any way. A slow one
        delays other callbacks, but no write.
        """
        self.callbacks.append(callback)
        if self.is_done:
            self.call_back()
        else:
            self._leader.wake()

    def finish(self, outcome: Outcome) -> None:
        """The leader's, before it opens the batch."""
        self._rows = self._encoded = ()
        self.outcome = outcome

    def call_back(self) -> None:
        """Run the callbacks that nobody has run yet. Not for holders of a lock."""
        while self.callbacks:
            try:
                callback = self.callbacks.pop(0)
            except IndexError:
                return  # another thread was faster
            try:
                callback(self)
            except BaseException as error:
                # A caller's mistake must not keep the others from their acknowledgements.
                _log.exception("a callback of an append failed")
                if not isinstance(error, Exception) and _is_main_thread():
                    raise  # the user's interrupt


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def parts_of(rows: Part | Sequence[Part]) -> Sequence[Part]:
    """The parts of one append, none of them empty."""
    if isinstance(rows, pa.RecordBatch):
        require_count(rows.num_rows)
        return (rows,)
    if not rows:
        raise InvalidRequest("an append needs at least one row")
    parts: Sequence[Part] = (rows,) if isinstance(rows[0], Rejected) else rows
    for part in parts:
        require_count(part.num_rows if isinstance(part, pa.RecordBatch) else len(part))
    return parts
