"""What a door of the service streams: the rows of a topic, or of a subscription that it holds."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from calve.subscriptions.place import Place
from calve.subscriptions.start import parse_start

if TYPE_CHECKING:
    import pyarrow as pa

    from calve.subscriptions.batch import Batch
    from calve.subscriptions.reading import Reading
    from calve.subscriptions.served import ServedSubscriptions
    from calve.subscriptions.subscription import Subscription


class RowStream:
    """For one thread. What it was asked for is checked when it is made."""

    def __init__(
        self,
        subscriptions: ServedSubscriptions,
        topic: str,
        name: str | None,
        *,
        start: str,
        resume: str | None,
        lease_seconds: float,
        **options: Any,
    ) -> None:
        """`start` and `resume` as they come over the wire; `options` are those of a reader."""
        self._subscriptions = subscriptions
        self._entered: int | None = None
        self._consumer: Subscription | None = None
        begin = parse_start(start)
        place = Place.parse(resume) if resume is not None else None
        self._reading: Reading | None = None
        # Also given back by one that nobody closes, as its client went before it began.
        self._let_go = weakref.finalize(self, subscriptions.seat(topic))
        try:
            if name is None:
                begin = begin if place is None else place.positions
                self._reading = subscriptions.read(topic, begin, **options)
            else:
                self._consumer = subscriptions.open(
                    topic, name, begin, lease_seconds=lease_seconds, resume=place, **options
                )
        except BaseException:
            self._let_go()
            raise

    @property
    def schema(self) -> pa.Schema:
        """That of the rows now; a later batch may have another."""
        return self._source.schema

    @property
    def is_done(self) -> bool:
        return self._source.is_done

    @property
    def place(self) -> Place | None:
        """Behind the last batch; None while somebody else has the subscription."""
        if self._consumer is not None:
            return self._consumer.place
        assert self._reading is not None
        return Place(0, 0, self._reading.positions)

    def poll(self, timeout_seconds: float) -> Batch | None:
        batch = self._source.poll(timeout_seconds)
        if self._consumer is not None:
            self._enter(self._consumer)
        return batch

    def close(self) -> None:
        self._let_go()
        if self._consumer is not None:
            self._subscriptions.leave(self._consumer)
        self._source.close()

    @property
    def _source(self) -> Reading | Subscription:
        found = self._consumer or self._reading
        assert found is not None
        return found

    def _enter(self, consumer: Subscription) -> None:
        """Have acknowledgements find the consumer, once it has the subscription."""
        place = consumer.place
        if place is not None and place.token != self._entered:
            self._subscriptions.enter(consumer, place.token)
            self._entered = place.token
