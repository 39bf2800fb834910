"""What sends the rows of one topic: gathers them, sends them in order, and again until they are in.

Each batch has a sequence of the client's producer, so that what is sent again is appended once.
A batch that is refused fails alone, and those behind it move up. What was not acknowledged in time
fails with all that was sent after it; what comes later is sent under another name.
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
from uuid import uuid4

from calve.client.delivery import Delivered
from calve.client.outgoing import Numbering, Outgoing
from calve.client.pieces import BatchMaker, Piece
from calve.client.stream import Stream
from calve.client.waiting import Waiting
from calve.errors import CalveError, Conflict, Unavailable, UnknownOutcome
from calve.protocol.flight import BATCH_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from calve.client.buffer import Buffer
    from calve.client.link import Link
    from calve.protocol import Answer

_log: Final = logging.getLogger(__name__)
_IN_FLIGHT_MAX: Final = 64
_IDLE_SECONDS: Final = 10.0
_DELAY_SECONDS: Final = 0.05
_DELAY_SECONDS_MAX: Final = 2.0
_DOUBLINGS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderOptions:
    producer: str  # given by the user, with sequences of the user's own
    linger_seconds: float
    batch_rows_max: int
    batch_bytes_max: int
    delivery_timeout_seconds: float
    connect_timeout_seconds: float

    def patience_seconds(self, link: Link) -> float:
        """How long to go on trying: longer if a service is known to be there."""
        return self.delivery_timeout_seconds if link.was_reached else self.connect_timeout_seconds


class TopicSender:
    """Safe to share between threads; has threads of its own while there is something to send.

    Only its own thread opens and ends streams, and touches what is unsent.
    """

    def __init__(self, topic: str, link: Link, buffer: Buffer, options: SenderOptions) -> None:
        self._topic = topic
        self._link = link
        self._buffer = buffer
        self._options = options
        self._maker = BatchMaker(lambda: link.schema(topic))
        # Its own, not the client's: to a token a topic may have two names, and so two senders.
        self._numbering = Numbering(sender_id=uuid4().hex, producer=options.producer)
        self._changed = threading.Condition()
        self._waiting = Waiting(
            linger_seconds=options.linger_seconds,
            rows_max=options.batch_rows_max,
            bytes_max=options.batch_bytes_max,
        )
        self._unsent: deque[Outgoing] = deque()
        self._in_flight: deque[Outgoing] = deque()
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None
        self._added = 0
        self._finished = 0
        self._abandoned: CalveError | None = None
        self._attempts = 0

    def add(self, piece: Piece) -> None:
        with self._changed:
            if self._abandoned is not None:
                raise self._abandoned
            self._waiting.add(piece)
            self._added += 1
            if self._thread is None:
                name = f"calve-client-{self._topic}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            elif len(self._waiting) == 1 or self._waiting.is_full:
                self._changed.notify_all()

    def hurry(self) -> None:
        """Send what is there now, without lingering."""
        with self._changed:
            self._waiting.hurry()
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
        """Wait for the thread of an abandoned sender to end."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)

    def _run(self) -> None:
        while self._next_step()():
            pass

    def _next_step(self) -> Callable[[], bool]:
        """What to do next, once there is something; it says whether to go on after it."""
        with self._changed:
            idle_at = time.monotonic() + _IDLE_SECONDS
            while True:
                step = self._step_now()
                if step is not None:
                    return step
                if time.monotonic() >= idle_at and not self._in_flight:
                    return self._rest()
                self._changed.wait(self._look_again_seconds())

    def _step_now(self) -> Callable[[], bool] | None:
        if self._abandoned is not None:
            return self._give_up
        if self._stream is not None and self._stream.is_over:
            return self._mend
        if self._in_flight and self._is_expired(self._in_flight[0].since):
            return self._desert
        if len(self._in_flight) >= _IN_FLIGHT_MAX:
            return None
        if self._unsent:
            return self._send_first
        if self._waiting and not self._waiting.linger_left_seconds:
            return partial(self._make, self._waiting.taken())
        return None

    def _look_again_seconds(self) -> float:
        if self._in_flight:
            left = self._in_flight[0].since + self._patience_seconds - time.monotonic()
        else:
            left = _IDLE_SECONDS
        if self._waiting:
            left = min(left, self._waiting.linger_left_seconds or left)
        return max(left, 0.001)

    def _rest(self) -> Callable[[], bool]:
        """Nothing came for a while: end this thread and its stream. With the lock held."""
        self._thread = None
        stream, self._stream = self._stream, None
        return partial(_ended, stream)

    def _make(self, pieces: list[Piece]) -> bool:
        try:
            made = list(self._maker.batches(pieces, self._tell))
        except CalveError as error:  # the topic's columns are not known
            self._retry_pieces([piece for piece in pieces if not piece.delivery.is_done], error)
            return True
        self._unsent.extend(map(self._numbering.numbered, made))
        return True

    def _retry_pieces(self, pieces: list[Piece], error: CalveError) -> None:
        """Put back what could not be looked at; or fail it, if that lasts."""
        if not isinstance(error, Unavailable) or self._is_expired(pieces[0].since):
            self._tell_all(pieces, error)
            return
        with self._changed:
            self._waiting.put_back(pieces)
        self._pause(error)

    def _send_first(self) -> bool:
        stream = self._stream_for(self._unsent[0].batch.rows.schema)
        if stream is not None:
            with self._changed:
                outgoing = self._unsent.popleft()
                self._in_flight.append(outgoing)
            stream.send(outgoing.batch.rows, outgoing.metadata)
        return True

    def _stream_for(self, schema: pa.Schema) -> Stream | None:
        """A stream for batches of a schema; None if one could not be had."""
        stream = self._stream
        if stream is not None:
            if stream.schema.equals(schema, check_metadata=True):
                return stream
            self._stream = None
            failure = stream.end()
            if failure is not None or self._in_flight:
                self._recover(failure, stream.answered_count)
                return None
        try:
            self._stream = Stream(
                self._link, self._topic, schema, answered=self._answered, ended=self._notify
            )
        except CalveError as error:
            self._recover(error)
        return self._stream

    def _answered(self, stream: Stream, answer: Answer) -> None:
        with self._changed:
            if stream.is_deserted or not self._in_flight:
                return
            stream.answered_count += 1
            outgoing = self._in_flight.popleft()
            self._attempts = 0
        self._link.was_reached = True
        first = answer.first
        for share in outgoing.batch.shares:
            end = None if first is None else first + share.row_count
            self._tell(share.piece, Delivered(first, end, answer.repeat))
            first = end

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _tell(self, piece: Piece, outcome: Delivered | CalveError) -> None:
        self._buffer.give_back(piece.size_bytes)
        piece.delivery.piece_done(outcome)
        with self._changed:
            self._finished += 1
            self._changed.notify_all()

    def _tell_all(self, pieces: Iterable[Piece], error: CalveError) -> None:
        for piece in pieces:
            self._tell(piece, error)

    def _mend(self) -> bool:
        stream, self._stream = self._stream, None
        assert stream is not None
        self._recover(stream.failure(), stream.answered_count)
        return True

    def _desert(self) -> bool:
        """The service takes no notice: leave it alone with what it has."""
        with self._changed:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.desert()
        self._recover(Unavailable(f"{self._link.url} does not answer", hint="try again"))
        return True

    def _recover(self, error: CalveError | None, answered_count: int = 0) -> None:
        """Have everything sent again that was not acknowledged, but for what was refused."""
        error = error or Unavailable(f"{self._link.url} ended the stream", hint="try again")
        is_refusal = not isinstance(error, Unavailable | UnknownOutcome)
        # Of those before the one that was refused the answers were lost on the way.
        place = int(error.context.get(BATCH_KEY, answered_count)) - answered_count
        with self._changed:
            for at, outgoing in enumerate(self._in_flight):
                outgoing.is_doubtful |= at < place or not is_refusal
            self._unsent.extendleft(reversed(self._in_flight))
            self._in_flight.clear()
        if not self._unsent:
            return
        if is_refusal:
            self._maker.forget()
            self._refuse(place, error)
        elif self._is_expired(self._unsent[0].since):
            left = self._under_another_name(list(self._unsent), error, is_known=False)
            self._unsent = deque(left)
        else:
            self._pause(error)

    def _refuse(self, place: int, error: CalveError) -> None:
        before, (refused, *behind) = list(self._unsent)[:place], list(self._unsent)[place:]
        expected = error.context.get("expected_sequence") if isinstance(error, Conflict) else None
        if expected is not None and not refused.is_numbered_by_user:
            # The service knows the producer, or else has forgotten it and what it had from it.
            is_known = expected != "0"
            left = self._under_another_name([refused, *behind], error, is_known=is_known)
        else:
            if len(refused.batch.shares) > 1:
                behind[:0] = map(self._numbering.numbered, refused.apart())
            else:
                self._tell_all(refused.pieces, error)
            left = self._numbering.moved_up(refused, behind)
        self._unsent = deque([*before, *left])

    def _under_another_name(
        self, batches: list[Outgoing], error: CalveError, *, is_known: bool
    ) -> list[Outgoing]:
        """Those that are certainly not in, `is_known` if all are; the others fail."""
        left: list[Outgoing] = []
        for outgoing in batches:
            is_lost = outgoing.is_doubtful and not is_known and not outgoing.is_numbered_by_user
            if is_lost or self._is_expired(outgoing.since):
                self._tell_all(outgoing.pieces, _unknown(error) if is_lost else error)
            else:
                left.append(outgoing)
        self._attempts = 0
        return self._numbering.under_another_name(left)

    def _give_up(self) -> bool:
        error = self._abandoned
        assert error is not None
        with self._changed:
            sent = list(self._in_flight) + [each for each in self._unsent if each.is_doubtful]
            unsent = [each for each in self._unsent if not each.is_doubtful]
            waiting = self._waiting.all_taken()
            stream, self._stream = self._stream, None
            if stream is not None and self._in_flight:
                stream.desert()
                stream = None
            self._in_flight.clear()
            self._unsent.clear()
        self._tell_all((piece for each in sent for piece in each.pieces), _unknown(error))
        self._tell_all((piece for each in unsent for piece in each.pieces), error)
        self._tell_all(waiting, error)
        return _ended(stream)

    @property
    def _patience_seconds(self) -> float:
        return self._options.patience_seconds(self._link)

    def _is_expired(self, since: float) -> bool:
        return time.monotonic() - since > self._patience_seconds

    def _pause(self, error: CalveError) -> None:
        """Wait before the next try: as long as the service asks for, and longer each time."""
        delay = min(_DELAY_SECONDS * 2**self._attempts, _DELAY_SECONDS_MAX)
        asked = error.context.get("retry_after_ms", "")
        if asked.isdecimal():
            delay = max(delay, int(asked) / 1_000)
        if not self._attempts:
            _log.warning("%s; trying again", error.message)
        self._attempts = min(self._attempts + 1, _DOUBLINGS_MAX)
        spread = random.uniform(0.8, 1.2)  # noqa: S311
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned is not None, delay * spread)


def _unknown(error: CalveError) -> CalveError:
    return UnknownOutcome(
        f"it is not known whether the rows were appended: {error.message}",
        hint="look for them before you send them again",
    )


def _ended(stream: Stream | None) -> bool:
    """The end of a thread, and of its stream."""
    if stream is not None:
        stream.end()
    return False
