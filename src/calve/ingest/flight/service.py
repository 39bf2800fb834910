"""What Flight calls. Each method finds its topic and does one thing; errors go as Flight's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyarrow import flight

from calve.errors import CalveError
from calve.ingest.flight import actions
from calve.ingest.flight.connections import same_address
from calve.ingest.flight.errors import Answering, told
from calve.ingest.flight.get import Range, RowShape
from calve.ingest.flight.names import descriptor_of, topic_of
from calve.ingest.flight.put import PutStream
from calve.ingest.flight.turns import Speaker, Turns
from calve.protocol import LogRange, problem_of
from calve.protocol.flight import decode
from calve.protocol.queries import QUERY, QueryTicket
from calve.protocol.streams import STREAM, StreamTicket, TicketKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from calve.ingest.flight.calls import Call, Calls
    from calve.ingest.flight.query import FlightAnswer
    from calve.ingest.flight.subscribe import FlightStream
    from calve.ingest.intake import Intake
    from calve.topics.topic import Topic

_DOOR: Final = "calve-door"


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """Listens from its making on."""

    def __init__(
        self,
        location: tuple[str, int],
        intake: Intake,
        calls: Calls,
        *,
        tls: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        super().__init__(location, tls_certificates=tls, middleware={_DOOR: _Door(calls)})
        self._intake = intake
        self._calls = calls
        self._turns = Turns()

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with Answering(context), self._call(context) as call:
            speaker = Speaker(self._turns, topic_of(descriptor))
            PutStream(self._intake, call, speaker, reader, writer).run()

    def do_get(self, context: Any, ticket: Any) -> Any:
        with Answering(context):
            kind = decode(ticket.ticket, TicketKind, what="the ticket").kind
            if kind == STREAM:
                return self._streamed(context, ticket)
            if kind == QUERY:
                return self._asked(context, ticket)
            wanted = decode(ticket.ticket, LogRange, what="the ticket")
            found = Range(self._intake, wanted)
            return flight.GeneratorStream(found.schema, self._sent(context, found.batches))

    def _streamed(self, context: Any, ticket: Any) -> Any:
        # Whoever only takes rows in need not load what reads tables.
        from calve.ingest.flight.subscribe import FlightStream

        wanted = decode(ticket.ticket, StreamTicket, what="the ticket")
        stream = FlightStream(self._intake, wanted)
        return flight.GeneratorStream(stream.schema, self._rows(context, stream))

    def _asked(self, context: Any, ticket: Any) -> Any:
        from calve.ingest.flight.query import FlightAnswer

        wanted = decode(ticket.ticket, QueryTicket, what="the ticket")
        answer = FlightAnswer(self._intake, wanted, context)
        return flight.GeneratorStream(answer.schema, self._rows(context, answer))

    def _rows(self, context: Any, stream: FlightStream | FlightAnswer) -> Iterator[Any]:
        with Answering(context), self._call(context) as call:
            yield from stream.batches(context, call)

    def _sent(self, context: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Answering(context), self._call(context) as call:
            for batch in batches:
                call.touch()
                yield batch

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        with Answering(context), self._call(context):
            tenant = criteria.decode(errors="replace") or None
            for topic in self._intake.topics.list(tenant):
                yield self._listed(topic)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with Answering(context), self._call(context):
            return self._info(self._intake.topics.topic(topic_of(descriptor)))

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with Answering(context), self._call(context):
            topic = self._intake.topics.topic(topic_of(descriptor))
            return flight.SchemaResult(self._schema(topic))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return actions.descriptions()

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        with Answering(context), self._call(context) as call:
            is_flush = action.type == actions.FLUSH
            call.is_busy = is_flush
            call.outstanding = 0 if is_flush else 1
            return [actions.perform(self._intake, action.type, action.body.to_pybytes())]

    def _call(self, context: Any) -> Call:
        return self._calls.open(same_address(context.peer()))

    def _schema(self, topic: Topic) -> pa.Schema:
        return RowShape(topic, self._intake.partition).schema

    def _listed(self, topic: Topic) -> Any:
        """One that stopped here, or was deleted meanwhile, has no rows to offer, and says why."""
        try:
            return self._info(topic)
        except CalveError as error:
            problem = msgspec.json.encode({"problem": problem_of(error)})
            place = descriptor_of(topic.name)
            return flight.FlightInfo(self._schema(topic), place, [], app_metadata=problem)

    def _info(self, topic: Topic) -> Any:
        offsets = self._intake.offsets(topic.name)
        ticket = LogRange(
            topic=str(topic.name),
            partition=self._intake.partition,
            from_=offsets.first,
            to=offsets.durable,
        )
        endpoint = flight.FlightEndpoint(flight.Ticket(msgspec.json.encode(ticket)), [])
        return flight.FlightInfo(
            self._schema(topic),
            descriptor_of(topic.name),
            [endpoint],
            total_records=offsets.durable - offsets.first,
            ordered=True,
            app_metadata=msgspec.json.encode(offsets._asdict()),
        )


class _Door(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Counts every call, before anything of it is read."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def start_call(self, info: Any, headers: Any) -> Any:
        try:
            self._calls.enter()
        except CalveError as error:
            raise told(None, error) from None
        return _Passed(self._calls)


class _Passed(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def call_completed(self, exception: BaseException | None) -> None:
        self._calls.leave()
