"""DoGet of a stream: the rows of a topic, or of a subscription, and then those that come.

Acknowledgements come as actions, by the place of a batch. A batch without rows goes out when the
subscription has become this consumer's, and every few seconds in which no rows come. A stream has
one schema: it ends where the rows get other columns, for the client to go on in a new one.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow as pa

from calve.ingest.flight.calls import stopping
from calve.protocol.streams import BatchPlace
from calve.subscriptions.stream import RowStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.access import Caller
    from calve.ingest.flight.calls import Call
    from calve.ingest.intake import Intake
    from calve.protocol.streams import StreamTicket
    from calve.subscriptions.batch import Batch

_LOOK_SECONDS: Final = 0.25
_LIVES_SECONDS: Final = 5.0
_encoded: Final = msgspec.json.Encoder().encode
_Sent = tuple[pa.RecordBatch, bytes]


class FlightStream:
    """What a ticket asks for, opened; `batches` closes it."""

    def __init__(self, intake: Intake, wanted: StreamTicket, caller: Caller) -> None:
        self._recheck = partial(intake.doorkeeper.recheck, caller)
        self._now = intake.clock.monotonic
        self._said_at: float | None = None
        self._place = ""  # that was told last
        self._stream = RowStream(
            intake.subscriptions,
            str(caller.topic(wanted.topic)),
            wanted.subscription,
            start=wanted.start,
            resume=wanted.resume,
            lease_seconds=wanted.lease_seconds,
            where=wanted.where,
            columns=wanted.columns,
            follow=wanted.follow,
        )
        self.schema = self._stream.schema
        self._empty = pa.RecordBatch.from_pylist([], schema=self.schema)

    def batches(self, context: Any, call: Call) -> Iterator[_Sent]:
        """Until the client is gone; Unavailable when the service stops."""
        call.is_busy = True
        with closing(self._stream) as stream:
            while not context.is_cancelled():
                if call.is_ending:
                    raise stopping()
                self._recheck()
                batch = stream.poll(_LOOK_SECONDS)
                if batch is None and stream.is_done:
                    yield self._lives(is_over="end")
                    return
                if batch is not None and not batch.rows.schema.equals(self.schema):
                    yield self._lives(is_over="columns")
                    return
                if batch is not None:
                    yield from self._rows(batch)
                elif self._is_due():
                    yield self._lives()

    def _is_due(self) -> bool:
        """Whether the client is to hear that the stream lives: soon, once it is his turn."""
        if self._stream.place is None:
            return False
        return self._said_at is None or self._now() - self._said_at >= _LIVES_SECONDS

    def _lives(self, is_over: Literal["columns", "end"] | None = None) -> _Sent:
        self._said_at = self._now()
        if is_over is None:
            self._place = str(self._stream.place)
        # What was read and cannot be sent here is not passed: so the place is the last one told.
        return self._empty, _encoded(BatchPlace(place=self._place, is_over=is_over))

    def _rows(self, batch: Batch) -> Iterator[_Sent]:
        place, first = self._stream.place, batch.first_offset
        assert place is not None
        for rows, after in batch.pieces():
            self._said_at = self._now()
            self._place = str(place.at(batch.partition, after))
            told = BatchPlace(
                place=self._place,
                partition=batch.partition,
                first=first,
                next=after,
            )
            yield rows, _encoded(told)
            first = after
