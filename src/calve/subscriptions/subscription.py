"""Subscription: a named, durable place in a topic, which one consumer at a time reads on from.

At least once: what was handed out and not acknowledged comes again, after a failure, to another
consumer, or when it is asked for. Progress is acknowledged by partition and cumulatively, and
never goes back unless the subscription is moved on purpose.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from calve.clock import SystemClock
from calve.errors import Conflict, Fenced, InvalidRequest, Unavailable
from calve.subscriptions.ownership import LEASE_SECONDS, Ownership
from calve.subscriptions.place import Place
from calve.subscriptions.polled import Consumer, acknowledged_end, require_handed_out
from calve.subscriptions.status import SubscriptionStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from calve.clock import Clock
    from calve.state import State, SubscriptionName
    from calve.subscriptions.batch import Batch
    from calve.subscriptions.reading import Reading
    from calve.subscriptions.start import Start

_TURN_SECONDS: Final = 0.25  # how often somebody who waits looks whether it is free


class Subscription(Consumer):
    """An iterator of batches. A context manager, for one thread that reads.

    Others may acknowledge and close. It waits while another consumer has the subscription. Fenced
    when another one has taken it over: stop then, and subscribe again.
    """

    def __init__(
        self,
        name: SubscriptionName,
        *,
        state: State,
        reading: Reading,
        lease_seconds: float = LEASE_SECONDS,
        resume: Place | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`state` and `reading` are closed with the subscription.

        With `resume`, what was handed out up to there does not come again at once, though it is
        not acknowledged: whoever has it is still there. It is the same consumer, so the lease that
        it had there is not waited for.
        """
        self._name = name
        self._state = state
        self._reading = reading
        self._clock = clock or SystemClock()
        self._ownership = Ownership(
            state,
            name,
            seconds=lease_seconds,
            clock=self._clock,
            succeeds=resume.token if resume is not None else None,
        )
        self._resume = resume
        self._is_closing = threading.Event()
        self._is_closed = False
        self._lock = threading.Lock()
        self._generation: int | None = None  # that the reading was placed for
        self._placements = 0
        self._held: Batch | None = None  # read, and not handed out yet
        self._delivered = 0
        self._void: dict[int, int] = {}  # by partition, the last delivery that does not count
        self._handed: dict[int, int] = {}
        self._furthest: dict[int, int] = {}  # as that, though a reading went back by itself
        self._acknowledged: dict[int, int] = {}

    @property
    def name(self) -> str:
        return self._name.name

    @property
    def topic(self) -> str:
        return str(self._name.topic)

    @property
    def full_name(self) -> SubscriptionName:
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """That of the rows now; a later batch may have another."""
        return self._reading.schema

    @property
    def place(self) -> Place | None:
        """Behind what was handed out last; None until it is this consumer's."""
        with self._lock:
            if not self._ownership.is_taken or self._generation is None:
                return None
            return Place(self._ownership.require().token, self._generation, dict(self._handed))

    @property
    def succeeded(self) -> int | None:
        """The token of this same consumer before, if nobody else was between."""
        return self._ownership.require().succeeded if self._ownership.is_taken else None

    @property
    def is_owner(self) -> bool:
        """Whether this consumer has the subscription now, and no other can."""
        return self._ownership.is_taken and self._ownership.is_certain

    @property
    def is_done(self) -> bool:
        """Whether one that does not follow has handed out everything, or it was closed."""
        return self._is_closing.is_set() or (self._held is None and self._reading.is_done)

    def poll(self, timeout_seconds: float | None = None) -> Batch | None:
        """The next batch, waiting for one, and for the subscription to be free, if need be.

        None when the time is over, or when there will be no more: `is_done` tells. Fenced when
        the subscription was lost; after Unavailable, call it again.
        """
        deadline = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        while True:
            pause = self._ownership.interval_seconds
            if deadline is not None:
                pause = max(0.0, min(pause, deadline - self._clock.monotonic()))
            if self._prepare():
                batch = self._next(pause)
                if batch is not None or self.is_done:
                    return batch
            elif self._is_closing.wait(min(pause, _TURN_SECONDS)):
                return None
            if deadline is not None and self._clock.monotonic() >= deadline:
                return None

    def ack(self, batch: Batch, next_offset: int | None = None) -> bool:
        offset = acknowledged_end(batch, next_offset)
        with self._lock:
            return self._counts(batch) and self._acknowledge(batch.partition, offset)

    def acknowledge(self, place: Place) -> bool:
        """The same for everything up to a place that this consumer was at, in all partitions."""
        with self._lock:
            self._require_open()
            if place.generation != self._generation:
                return False
            for partition, offset in place.positions.items():
                if offset > self._furthest.get(partition, 0):
                    raise InvalidRequest(
                        f"offset {offset} of partition {partition} was not handed out yet",
                        hint="acknowledge what the stream gave",
                    )
            return all(self._acknowledge(*each) for each in place.positions.items())

    def nack(self, batch: Batch) -> None:
        with self._lock:
            if not self._counts(batch):
                return
            self._ownership.require()
            kept = self._state.positions(self._name).get(batch.partition, 0)
            self._reading.go_to({**self._reading.positions, batch.partition: kept})
            self._note_place({batch.partition: kept}, {batch.partition: kept})

    def seek(self, start: Start) -> None:
        if not self._prepare():
            raise Conflict(
                f"another consumer has subscription {self._name}",
                hint="`calve subscription seek` and `lake.subscriptions.seek` move it, whoever "
                "has it",
            )
        with self._lock:
            self._ownership.require()
            self._reading.seek(start)
            self._generation = None  # whatever comes of it, the state says where to go on
            self._state.move_subscription(self._name, self._reading.positions)
            self._ownership.renew()

    def look_again(self) -> None:
        """Find out now, and not with the next renewal, whether it is still this consumer's."""
        with suppress(Unavailable):
            self._ownership.renew()

    def status(self) -> SubscriptionStatus:
        return SubscriptionStatus.of(self._state, self._name, self._reading.ends())

    def close(self) -> None:
        """Let others have it; a `poll` under way in another thread returns None."""
        self._is_closing.set()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        with ExitStack() as closing:
            closing.callback(self._state.close)
            closing.callback(self._ownership.release)
            closing.callback(self._reading.close)

    def __repr__(self) -> str:
        return f"Subscription({self.topic!r}, {self.name!r})"

    def _prepare(self) -> bool:
        """Have the subscription, and read where it is; False while another consumer has it."""
        with self._lock:
            if self._is_closing.is_set():
                return False
            if not self._ownership.is_taken and not self._ownership.take():
                return False
            if self._ownership.require().generation != self._generation:
                self._place()
            return True

    def _place(self) -> None:
        """Go where the subscription is; everything that was handed out before comes to nothing."""
        self._ownership.renew()  # it may have been moved once more since
        claim = self._ownership.require()
        kept = self._state.positions(self._name)
        resume, self._resume = self._resume, None
        if resume is not None and resume.generation == claim.generation:
            known = {*kept, *resume.positions}
            start = {p: max(kept.get(p, 0), resume.positions.get(p, 0)) for p in known}
        else:
            start = kept
        self._reading.go_to(start)
        self._note_place(self._reading.positions, kept)
        self._generation = claim.generation

    def _note_place(self, positions: Mapping[int, int], kept: Mapping[int, int]) -> None:
        self._placements += 1
        self._held = None
        for partition, offset in positions.items():
            self._handed[partition] = self._furthest[partition] = offset
            self._acknowledged[partition] = kept.get(partition, 0)
            self._void[partition] = self._delivered

    def _next(self, timeout_seconds: float) -> Batch | None:
        placements = self._placements
        # Not under the lock: whoever acknowledges in another thread does not wait for rows.
        batch = self._held or self._read(timeout_seconds)
        with self._lock:
            if placements != self._placements or self._is_closing.is_set():
                if batch is not None:  # it may have been read after that: it is to come again
                    self._generation = None
                return None
            if batch is None:
                self._pass_over()
                return None
            self._held = batch
            if not self._ownership.is_certain:
                return None
            self._held = None
            self._delivered += 1
            self._handed[batch.partition] = batch.next_offset
            furthest = self._furthest.get(batch.partition, 0)
            self._furthest[batch.partition] = max(furthest, batch.next_offset)
            return replace(batch, delivery=self._delivered)

    def _read(self, timeout_seconds: float) -> Batch | None:
        try:
            return self._reading.poll(timeout_seconds)
        except Conflict as error:
            if "lowest" not in error.context:
                raise
            raise self._rolled_back(error) from error

    def _rolled_back(self, error: Conflict) -> Conflict:
        """A reader's word about a rollback, with what to do about a subscription."""
        back = {int(error.context["partition"]): int(error.context["lowest"])}
        places = ",".join(f"{p}:{at}" for p, at in sorted((self._handed | back).items()))
        command = f"calve subscription seek {self.topic} {self.name} --to {places}"
        return Conflict(
            error.message,
            hint=f"subscribe again to leave it at that; to read again what comes again, run "
            f'`{command}` before; on_rollback="skip" or "from" does so by itself',
            context=error.context,
        )

    def _counts(self, batch: Batch) -> bool:
        """Whether it was handed out since its partition was last placed."""
        self._require_open()
        require_handed_out(batch)
        return batch.delivery > self._void.get(batch.partition, 0)

    def _require_open(self) -> None:
        if self._is_closing.is_set():
            raise InvalidRequest(
                f"subscription {self._name} has been closed here", hint="subscribe again"
            )

    def _acknowledge(self, partition: int, offset: int) -> bool:
        claim = self._ownership.require()
        if self._generation is None:
            return False
        mine = claim._replace(generation=self._generation)
        try:
            self._acknowledged[partition] = self._state.acknowledge(mine, partition, offset)
        except Conflict:
            self._generation = None
            return False
        except Fenced as error:
            self._ownership.lose(error)
            raise
        return True

    def _pass_over(self) -> None:
        """Offsets behind the last row that have none are done with once that row is."""
        for partition, offset in self._reading.positions.items():
            done = self._acknowledged.get(partition, 0)
            if self._handed.get(partition, 0) <= done < offset:
                self._acknowledge(partition, offset)
