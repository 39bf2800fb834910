"""What sends the rows of one topic: gathers them, sends them in order, and again until they are in.

Each batch has a sequence of the client's producer, so that what is sent again is appended once.
A batch that is refused fails alone, and those behind it move up. What was not acknowledged in time
fails with all that was sent after it, under a name that is not used again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from calve.client.delivery import Delivered
from calve.client.pieces import Batch, BatchMaker, Piece
from calve.client.stream import Stream
from calve.errors import CalveError, Conflict, Unavailable, UnknownOutcome
from calve.protocol import PutMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from calve.client.buffer import Buffer
    from calve.client.link import Link
    from calve.model import TableName
    from calve.protocol import Answer

_log: Final = logging.getLogger(__name__)
_IN_FLIGHT_MAX: Final = 64
_IDLE_SECONDS: Final = 10.0
_DELAY_SECONDS: Final = 0.05
_DELAY_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderOptions:
    producer: str  # given by the user, with sequences of the user's own
    client_id: str
    linger_seconds: float
    batch_rows_max: int
    batch_bytes_max: int
    delivery_timeout_seconds: float
    connect_timeout_seconds: float


@dataclass(slots=True)
class _Outgoing:
    """A batch with its number among those of its producer."""

    batch: Batch
    metadata: PutMetadata
    was_sent: bool = False

    @property
    def is_numbered_by_user(self) -> bool:
        return self.batch.shares[0].piece.sequence is not None

    @property
    def since(self) -> float:
        return self.batch.shares[0].piece.since


class TopicSender:
    """Safe to share between threads; has threads of its own while there is something to send."""

    def __init__(
        self, topic: TableName, link: Link, buffer: Buffer, options: SenderOptions
    ) -> None:
        self._topic = topic
        self._link = link
        self._buffer = buffer
        self._options = options
        self._maker = BatchMaker(lambda: link.schema(topic))
        self._changed = threading.Condition()
        self._waiting: deque[Piece] = deque()
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._unsent: deque[_Outgoing] = deque()
        self._in_flight: deque[_Outgoing] = deque()
        self._stream: Stream | None = None
        self._added = 0
        self._finished = 0
        self._is_hurried = False
        self._is_running = False
        self._thread: threading.Thread | None = None
        self._abandoned: CalveError | None = None
        self._attempts = 0
        self._lives = 0
        self._next_sequence = 0

    def add(self, piece: Piece) -> None:
        with self._changed:
            if self._abandoned is not None:
                raise self._abandoned
            self._waiting.append(piece)
            self._waiting_rows += piece.part.num_rows
            self._waiting_bytes += piece.size_bytes
            self._added += 1
            if not self._is_running:
                self._is_running = True
                name = f"calve-client-{self._topic}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            elif len(self._waiting) == 1 or self._is_full():
                self._changed.notify_all()

    def hurry(self) -> None:
        """Send what is there now, without lingering."""
        with self._changed:
            if self._waiting:
                self._is_hurried = True
                self._changed.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Whether everything that was added before is decided, within the time."""
        self.hurry()
        with self._changed:
            added = self._added
            return self._changed.wait_for(lambda: self._finished >= added, timeout_seconds)

    def abandon(self, error: CalveError) -> None:
        """Send nothing more; what is not acknowledged fails."""
        with self._changed:
            self._abandoned = error
            self._changed.notify_all()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the threads of an abandoned sender to end."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)

    def _run(self) -> None:
        while self._next_step()():
            pass

    def _next_step(self) -> Callable[[], bool]:
        with self._changed:
            self._changed.wait_for(self._has_something_to_do, _IDLE_SECONDS)
            if self._abandoned is not None:
                return self._give_up
            if self._is_broken():
                return self._mend
            if self._unsent:
                return self._send_first
            if pieces := self._taken():
                return partial(self._make, pieces)
            if self._in_flight:
                return lambda: True
            self._is_running = False
            stream, self._stream = self._stream, None
            return partial(_rest, stream)

    def _has_something_to_do(self) -> bool:
        if self._abandoned is not None or self._is_broken():
            return True
        if len(self._in_flight) >= _IN_FLIGHT_MAX:
            return False
        return bool(self._unsent) or self._is_due()

    def _is_broken(self) -> bool:
        return self._stream is not None and self._stream.is_over

    def _is_due(self) -> bool:
        """Whether what waits is to be sent now; waits for the rest of the linger if not."""
        if not self._waiting:
            return False
        if self._is_hurried or self._is_full():
            return True
        left = self._waiting[0].since + self._options.linger_seconds - time.monotonic()
        if left > 0:
            self._changed.wait(left)
        return True

    def _is_full(self) -> bool:
        return (
            self._waiting_rows >= self._options.batch_rows_max
            or self._waiting_bytes >= self._options.batch_bytes_max
        )

    def _taken(self) -> list[Piece]:
        """As many pieces as make one batch."""
        taken: list[Piece] = []
        rows = size_bytes = 0
        while self._waiting:
            piece = self._waiting[0]
            rows += piece.part.num_rows
            size_bytes += piece.size_bytes
            is_over = rows > self._options.batch_rows_max
            if taken and (is_over or size_bytes > self._options.batch_bytes_max):
                break
            taken.append(self._waiting.popleft())
            self._waiting_rows -= piece.part.num_rows
            self._waiting_bytes -= piece.size_bytes
        if not self._waiting:
            self._is_hurried = False
        return taken

    def _make(self, pieces: list[Piece]) -> bool:
        try:
            made = list(self._maker.batches(pieces, self._tell))
        except CalveError as error:  # the topic's columns are not known
            self._retry_pieces(pieces, error)
            return True
        for batch in made:
            self._unsent.append(_Outgoing(batch, self._numbered(batch)))
        return self._send_first() if made else True

    def _retry_pieces(self, pieces: list[Piece], error: CalveError) -> None:
        """Put back what could not be looked at; or fail it, if that lasts."""
        pieces = [piece for piece in pieces if not piece.delivery.is_done]
        if not isinstance(error, Unavailable) or self._is_expired(pieces[0].since):
            for piece in pieces:
                self._tell(piece, error)
            return
        with self._changed:
            self._waiting.extendleft(reversed(pieces))
            self._waiting_rows += sum(piece.part.num_rows for piece in pieces)
            self._waiting_bytes += sum(piece.size_bytes for piece in pieces)
            self._is_hurried = True
        self._pause(error)

    def _numbered(self, batch: Batch) -> PutMetadata:
        sequence = batch.shares[0].piece.sequence
        if sequence is not None:
            return PutMetadata(self._options.producer, sequence)
        number, self._next_sequence = self._next_sequence, self._next_sequence + 1
        return PutMetadata(self._own_name(), number)

    def _own_name(self) -> str:
        return (
            f"{self._options.client_id}.{self._lives}" if self._lives else self._options.client_id
        )

    def _send_first(self) -> bool:
        stream = self._stream_for(self._unsent[0].batch.rows.schema)
        if stream is None:
            return True
        with self._changed:
            outgoing = self._unsent.popleft()
            outgoing.was_sent = True
            self._in_flight.append(outgoing)
        stream.send(outgoing.batch.rows, outgoing.metadata)
        return True

    def _stream_for(self, schema: pa.Schema) -> Stream | None:
        """A stream for batches of a schema; None if one could not be had."""
        stream = self._stream
        if stream is not None and stream.schema.equals(schema, check_metadata=True):
            return stream
        if stream is not None:
            self._stream = None
            failure = stream.end()
            if failure is not None or self._in_flight:
                self._recover(failure)
                return None
        try:
            self._stream = Stream(
                self._link, self._topic, schema, answered=self._answered, ended=self._ended
            )
        except CalveError as error:
            self._recover(error)
        return self._stream

    def _answered(self, answer: Answer) -> None:
        with self._changed:
            outgoing = self._in_flight.popleft()
            self._attempts = 0
        self._link.was_reached = True
        self._finish(outgoing, answer)

    def _ended(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _finish(self, outgoing: _Outgoing, answer: Answer) -> None:
        first, end = answer.first, answer.end
        for share in outgoing.batch.shares:
            if first is not None and end is not None:
                until = first + share.row_count
                self._tell(share.piece, Delivered(first, until, answer.repeat))
                first = until
            else:
                self._tell(share.piece, Delivered(None, None, answer.repeat))

    def _tell(self, piece: Piece, outcome: Delivered | CalveError) -> None:
        self._buffer.give_back(piece.size_bytes)
        piece.delivery.piece_done(outcome)
        with self._changed:
            self._finished += 1
            self._changed.notify_all()

    def _mend(self) -> bool:
        stream, self._stream = self._stream, None
        assert stream is not None
        self._recover(stream.failure())
        return True

    def _recover(self, error: CalveError | None) -> None:
        """Have everything sent again that was not acknowledged, but for what was refused."""
        with self._changed:
            self._unsent.extendleft(reversed(self._in_flight))
            self._in_flight.clear()
        if not self._unsent:
            return
        error = error or Unavailable(f"{self._link.url} ended the stream", hint="try again")
        if isinstance(error, Unavailable | UnknownOutcome):
            if self._is_expired(self._unsent[0].since):
                self._begin_anew(error)
            else:
                self._pause(error)
        else:
            self._maker.forget()
            self._refuse_first(error)

    def _refuse_first(self, error: CalveError) -> None:
        first = self._unsent[0]
        is_unknown = isinstance(error, Conflict) and "expected_sequence" in error.context
        if is_unknown and not first.is_numbered_by_user:
            self._begin_anew(error)
            return
        self._unsent.popleft()
        if len(first.batch.shares) > 1:
            self._unsent.extendleft(reversed(_apart(first)))
        else:
            self._fail(first, error)
        self._renumber(first)

    def _renumber(self, refused: _Outgoing) -> None:
        """Those behind a batch that was refused move up: none of them can have been appended."""
        if not refused.is_numbered_by_user:
            assert refused.metadata.sequence is not None
            self._next_sequence = refused.metadata.sequence
        else:
            own = [o.metadata.sequence for o in self._unsent if not o.is_numbered_by_user]
            self._next_sequence = own[0] if own and own[0] is not None else self._next_sequence
        for outgoing in self._unsent:
            outgoing.metadata = self._numbered(outgoing.batch)

    def _begin_anew(self, error: CalveError) -> None:
        """Give up what was sent, and go on with the rest under another name."""
        while self._unsent and self._unsent[0].was_sent:
            self._fail(self._unsent.popleft(), error)
        while self._unsent and self._is_expired(self._unsent[0].since):
            self._fail(self._unsent.popleft(), error)
        self._lives += 1
        self._next_sequence = 0
        self._attempts = 0
        for outgoing in self._unsent:
            outgoing.metadata = self._numbered(outgoing.batch)

    def _fail(self, outgoing: _Outgoing, error: CalveError) -> None:
        for share in outgoing.batch.shares:
            self._tell(share.piece, error)

    def _give_up(self) -> bool:
        error = self._abandoned
        assert error is not None
        with self._changed:
            pieces = [
                share.piece
                for outgoing in (*self._in_flight, *self._unsent)
                for share in outgoing.batch.shares
            ]
            pieces += self._waiting
            self._in_flight.clear()
            self._unsent.clear()
            self._waiting.clear()
            stream, self._stream = self._stream, None
        for piece in pieces:
            self._tell(piece, error)
        return _rest(stream)

    def _is_expired(self, since: float) -> bool:
        options = self._options
        is_known = self._link.was_reached
        return time.monotonic() - since > (
            options.delivery_timeout_seconds if is_known else options.connect_timeout_seconds
        )

    def _pause(self, error: CalveError) -> None:
        """Wait before the next try: as long as the service asks for, and longer each time."""
        delay = min(_DELAY_SECONDS * 2**self._attempts, _DELAY_SECONDS_MAX)
        asked = error.context.get("retry_after_ms", "")
        if asked.isdecimal():
            delay = max(delay, int(asked) / 1_000)
        if not self._attempts:
            _log.warning("%s; trying again", error.message)
        self._attempts = min(self._attempts + 1, 10)
        with self._changed:
            self._changed.wait_for(
                lambda: self._abandoned is not None,
                delay * random.uniform(0.8, 1.2),  # noqa: S311
            )


def _rest(stream: Stream | None) -> bool:
    """The end of a thread, and of its stream."""
    if stream is not None:
        stream.end()
    return False


def _apart(outgoing: _Outgoing) -> list[_Outgoing]:
    """The same rows, as a batch for each call of `produce`."""
    found = []
    start = 0
    for share in outgoing.batch.shares:
        rows = outgoing.batch.rows.slice(start, share.row_count)
        found.append(_Outgoing(Batch(rows, [share]), outgoing.metadata, outgoing.was_sent))
        start += share.row_count
    return found
