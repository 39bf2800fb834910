"""A subscription through a service: the same as in a lake, with rows over Arrow Flight.

The service holds the lease for as long as the stream is open, and shares its read of the newest
rows among all consumers. A connection that breaks is made again, and goes on behind what came last.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from calve.errors import CalveError, InvalidRequest, Unavailable
from calve.protocol.flight_errors import translated
from calve.protocol.streams import BatchPlace, StreamTicket
from calve.subscriptions.batch import Batch
from calve.subscriptions.place import Place
from calve.subscriptions.polled import Consumer, acknowledged_end, require_handed_out

if TYPE_CHECKING:
    from calve.client.link import Link
    from calve.client.subscriptions import ClientSubscriptions
    from calve.subscriptions.start import Start
    from calve.subscriptions.status import SubscriptionStatus

_AHEAD_MAX: Final = 4  # batches that wait here; more than that waits in the service
_AGAIN_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_ALL: Final = -1  # instead of a partition
_TOLD: Final = msgspec.json.Decoder(BatchPlace)


class _Stream:
    """One call, read by a thread of its own."""

    def __init__(self, link: Link, ticket: StreamTicket) -> None:
        self._url = link.url
        self._reader = link.stream(ticket)
        self.came: queue.Queue[tuple[pa.RecordBatch, BatchPlace] | CalveError | None] = queue.Queue(
            _AHEAD_MAX
        )
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="calve-client-rows", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_ended.set()
        self._reader.cancel()
        while self._thread.is_alive():
            self._drain()
            self._thread.join(0.01)

    def _drain(self) -> None:
        try:
            while True:
                self.came.get_nowait()
        except queue.Empty:
            pass

    def _run(self) -> None:
        outcome: CalveError | None = None
        try:
            while not self._is_ended.is_set():
                chunk = self._reader.read_chunk()
                told = _TOLD.decode(memoryview(chunk.app_metadata))
                self.came.put((chunk.data, told))
        except StopIteration:
            pass
        except (pa.ArrowException, OSError) as error:
            outcome = translated(error, self._url)
        except (msgspec.MsgspecError, TypeError) as error:
            outcome = Unavailable(f"{self._url} is no service of Calve: {error}")
        if not self._is_ended.is_set():
            self.came.put(outcome)


class ClientSubscription(Consumer):
    """An iterator of batches. A context manager, for one thread; another one may close it.

    What a `Subscription` of a lake promises, this one does too; see there.
    """

    def __init__(
        self, link: Link, subscriptions: ClientSubscriptions, ticket: StreamTicket
    ) -> None:
        """Without a subscription in the ticket, nothing can be acknowledged."""
        self._link = link
        self._subscriptions = subscriptions
        self._ticket = ticket
        self._is_closing = threading.Event()
        self._is_over = False
        self._place: Place | None = None  # behind what came last
        self._has_turn = False  # whether the service has said, in this stream, that it is ours
        self._waiting: Batch | None = None
        self._delivered = 0
        self._void: dict[int, int] = {}  # by partition, the last delivery that does not count
        self._stream = _Stream(link, ticket)  # what cannot be is refused here

    @property
    def topic(self) -> str:
        return self._ticket.topic

    @property
    def name(self) -> str | None:
        return self._ticket.subscription

    @property
    def is_owner(self) -> bool:
        """Whether this consumer has the subscription, as far as the service has told."""
        return self._has_turn

    @property
    def is_done(self) -> bool:
        """Whether one that does not follow has handed out everything, or it was closed."""
        return self._is_closing.is_set() or (self._is_over and self._waiting is None)

    def poll(self, timeout_seconds: float | None = None) -> Batch | None:
        """The next batch, waiting for one, and for the subscription to be free, if need be.

        None when the time is over, or when there will be no more: `is_done` tells. Fenced when
        the subscription was lost. A service that is away is waited for, for a minute.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self.is_done:
            left = _LOOK_SECONDS
            if deadline is not None:
                left = max(0.0, min(left, deadline - time.monotonic()))
            self._receive(left)
            if self._waiting is not None:
                return self._hand_out()
            if deadline is not None and time.monotonic() >= deadline:
                return None
        return None

    def ack(self, batch: Batch, next_offset: int | None = None) -> bool:
        offset = acknowledged_end(batch, next_offset)
        patience = _Patience()
        while True:
            if not self._counts(batch):
                return False
            try:
                place = self._place_of_turn(patience)
                if not self._counts(batch):
                    return False
                mine = place._replace(positions={batch.partition: offset})
                return self._subscriptions.acknowledge(self.topic, self._required_name, mine)
            except Unavailable as error:
                patience.bear(error)

    def nack(self, batch: Batch) -> None:
        _ = self._required_name
        if not self._counts(batch):
            return
        assert self._place is not None
        positions = {p: at for p, at in self._place.positions.items() if p != batch.partition}
        self._place = self._place._replace(positions=positions)
        self._void[batch.partition] = self._delivered
        self._reconnect(_Patience())

    def seek(self, start: Start) -> None:
        self._subscriptions.seek(self.topic, self._required_name, start)
        self._forget_all()
        self._place = None
        self._reconnect(_Patience())

    def status(self) -> SubscriptionStatus:
        return self._subscriptions.describe(self.topic, self._required_name)

    def close(self) -> None:
        """Let others have it; a `poll` under way in another thread returns None."""
        self._is_closing.set()
        self._stream.end()

    def __repr__(self) -> str:
        return f"ClientSubscription({self.topic!r}, {self.name!r})"

    @property
    def _required_name(self) -> str:
        if self._is_closing.is_set():
            raise InvalidRequest("the subscription has been closed here", hint="subscribe again")
        if self._ticket.subscription is None:
            raise InvalidRequest(
                "rows that are read without a subscription cannot be acknowledged",
                hint="give the subscription a name",
            )
        return self._ticket.subscription

    def _counts(self, batch: Batch) -> bool:
        require_handed_out(batch)
        return batch.delivery > self._void.get(batch.partition, self._void.get(_ALL, 0))

    def _forget_all(self) -> None:
        """What was handed out before comes to nothing."""
        self._waiting = None
        self._void = {_ALL: self._delivered}

    def _hand_out(self) -> Batch:
        batch, self._waiting = self._waiting, None
        assert batch is not None
        self._delivered += 1
        return replace(batch, delivery=self._delivered)

    def _place_of_turn(self, patience: _Patience) -> Place:
        """The place, with the token of this stream."""
        while not self._has_turn:
            self._receive(_LOOK_SECONDS)
            if not self._has_turn:
                patience.bear(
                    Unavailable(
                        f"subscription {self.name} is not this consumer's now",
                        hint="another one has it: what was not acknowledged comes again",
                    )
                )
        assert self._place is not None
        return self._place

    def _receive(self, timeout_seconds: float) -> None:
        """Take what the stream has next, if it comes in time, and if there is room for it."""
        if self._waiting is not None:
            return
        try:
            came = self._stream.came.get(timeout=timeout_seconds)
        except queue.Empty:
            return
        if came is None or isinstance(came, Unavailable):
            if not self._is_closing.is_set():
                self._reconnect(_Patience())
        elif isinstance(came, CalveError):
            raise came
        else:
            self._take(*came)

    def _take(self, rows: pa.RecordBatch, told: BatchPlace) -> None:
        if told.place:
            place = Place.parse(told.place)
            if self._place is not None and place.generation != self._place.generation:
                self._forget_all()
            self._place, self._has_turn = place, True
        if told.is_over == "end":
            self._is_over = True
        elif told.is_over == "columns":
            self._reconnect(_Patience())
        elif told.partition is not None and told.first is not None and told.next is not None:
            table = pa.Table.from_batches([rows])
            self._waiting = Batch(self.topic, told.partition, told.first, told.next, table)

    def _reconnect(self, patience: _Patience) -> None:
        """Go on in a new stream behind what came last, once the service can be reached."""
        self._stream.end()
        self._has_turn = False
        resume = str(self._place) if self._place is not None else None
        ticket = msgspec.structs.replace(self._ticket, resume=resume)
        while not self._is_closing.is_set():
            try:
                self._stream = _Stream(self._link, ticket)
            except Unavailable as error:
                patience.bear(error)
            else:
                return


class _Patience:
    """Waits a little each time, and not for ever."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _PATIENCE_SECONDS

    def bear(self, error: CalveError) -> None:
        if time.monotonic() > self._until:
            raise error
        time.sleep(_AGAIN_SECONDS)
