"""What Flight calls. Each method finds its topic and does one thing; errors go as Flight's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyarrow import flight

from calve.errors import CalveError
from calve.ingest.addresses import host_of, same_address
from calve.ingest.flight import actions
from calve.ingest.flight.errors import Answering, told
from calve.ingest.flight.get import Range, RowShape
from calve.ingest.flight.names import descriptor_of, topic_of
from calve.ingest.flight.put import PutStream
from calve.ingest.flight.turns import Speaker
from calve.ingest.recording import acting, recording_door
from calve.protocol import LogRange, problem_of
from calve.protocol.flight import decode
from calve.protocol.queries import QUERY, QueryTicket
from calve.protocol.streams import STREAM, StreamTicket, TicketKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from calve.access import Caller, Doorkeeper, Need
    from calve.ingest.certificate import Certificate
    from calve.ingest.flight.calls import Call, Calls
    from calve.ingest.flight.query import FlightAnswer
    from calve.ingest.flight.subscribe import FlightStream
    from calve.ingest.flight.turns import Turns
    from calve.ingest.intake import Intake
    from calve.topics.topic import Topic

_NAME: Final = "flight"  # of this door, in the audit log
_DOOR: Final = "calve-door"
_AUTHORIZATION: Final = "authorization"
# The scopes of the tokens that calls take; of DoAction, each action has its own.
CALLS: Final[Mapping[str, Need]] = {
    "do_put": "produce",
    "do_get stream": "subscribe",
    "do_get query": "query",
    "do_get rows": "subscribe",
    "do_get frames": "pipeline",
    "list_flights": "any",
    "get_flight_info": "any",
    "get_schema": "any",
    "list_actions": "any",
    "do_action": "any",
}


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """Listens from its making on."""

    def __init__(
        self,
        location: tuple[str, int],
        intake: Intake,
        calls: Calls,
        turns: Turns,
        *,
        certificate: Certificate | None = None,
    ) -> None:
        tls: dict[str, Any] = {}
        if certificate is not None:
            tls["tls_certificates"] = [(certificate.cert, certificate.key)]
            if certificate.client_ca is not None:
                tls |= {"verify_client": True, "root_certificates": certificate.client_ca}
        super().__init__(location, middleware={_DOOR: _Door(calls, intake.doorkeeper)}, **tls)
        self._intake = intake
        self._calls = calls
        self._turns = turns

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with Answering(context), self._call(context, CALLS["do_put"]) as call:
            speaker = Speaker(self._turns, topic_of(descriptor, call.caller))
            with acting(lambda: call.caller, _NAME):
                PutStream(self._intake, call, speaker, reader, writer).run()

    def do_get(self, context: Any, ticket: Any) -> Any:
        with Answering(context):
            kind = decode(ticket.ticket, TicketKind, what="the ticket").kind
            if kind == STREAM:
                return self._streamed(context, ticket)
            if kind == QUERY:
                return self._asked(context, ticket)
            return self._ranged(context, ticket)

    def _ranged(self, context: Any, ticket: Any) -> Any:
        wanted = decode(ticket.ticket, LogRange, what="the ticket")
        scope = CALLS[f"do_get {wanted.form}"]
        if wanted.mac is None:
            caller = self._caller(context, scope)
        else:
            caller = self._intake.doorkeeper.of_ticket(wanted, _address(context))
            caller.require(scope)
        found = Range(self._intake, wanted, caller)
        return flight.GeneratorStream(found.schema, self._sent(context, caller, found.batches))

    def _streamed(self, context: Any, ticket: Any) -> Any:
        # Whoever only takes rows in need not load what reads tables.
        from calve.ingest.flight.subscribe import FlightStream

        wanted = decode(ticket.ticket, StreamTicket, what="the ticket")
        caller = self._caller(context, CALLS["do_get stream"])
        stream = FlightStream(self._intake, wanted, caller)
        return flight.GeneratorStream(stream.schema, self._rows(context, caller, stream))

    def _asked(self, context: Any, ticket: Any) -> Any:
        from calve.ingest.flight.query import FlightAnswer

        wanted = decode(ticket.ticket, QueryTicket, what="the ticket")
        caller = self._caller(context, CALLS["do_get query"])
        answer = FlightAnswer(self._intake, wanted, caller, context)
        return flight.GeneratorStream(answer.schema, self._rows(context, caller, answer))

    def _rows(
        self, context: Any, caller: Caller, stream: FlightStream | FlightAnswer
    ) -> Iterator[Any]:
        with Answering(context), self._opened(context, caller) as call:
            yield from stream.batches(context, call)

    def _sent(
        self, context: Any, caller: Caller, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        with Answering(context), self._opened(context, caller) as call:
            for batch in batches:
                self._intake.doorkeeper.recheck(caller)
                call.touch()
                yield batch

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        with Answering(context), self._call(context, CALLS["list_flights"]) as call:
            tenant = criteria.decode(errors="replace") or None
            for topic in call.caller.among(self._intake.topics.list(tenant)):
                yield self._listed(topic)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with Answering(context), self._call(context, CALLS["get_flight_info"]) as call:
            return self._info(self._intake.topics.topic(topic_of(descriptor, call.caller)))

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with Answering(context), self._call(context, CALLS["get_schema"]) as call:
            topic = self._intake.topics.topic(topic_of(descriptor, call.caller))
            return flight.SchemaResult(self._schema(topic))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        with Answering(context), self._call(context, CALLS["list_actions"]):
            return actions.descriptions()

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        with Answering(context), self._call(context, CALLS["do_action"]) as call:
            is_long = action.type in actions.LONG
            call.is_busy = is_long
            call.outstanding = 0 if is_long else 1
            body = action.body.to_pybytes()
            subject = actions.subject_of(body)

            def is_over() -> bool:
                return bool(call.is_ending or context.is_cancelled())

            with recording_door(self._intake, lambda: call.caller, _NAME, action.type, subject):
                return [actions.perform(self._intake, call.caller, action.type, body, is_over)]

    def _call(self, context: Any, scope: Need) -> Call:
        return self._opened(context, self._caller(context, scope))

    def _opened(self, context: Any, caller: Caller) -> Call:
        return self._calls.open(same_address(context.peer()), caller)

    def _caller(self, context: Any, scope: Need) -> Caller:
        """Who calls; Unauthenticated or Denied for whoever may not."""
        authorization = context.get_middleware(_DOOR).authorization
        caller = self._intake.doorkeeper.caller(authorization, _address(context))
        caller.require(scope)
        return caller

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
            topic=topic.name.full,
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


def _address(context: Any) -> str:
    return host_of(same_address(context.peer()))


class _Door(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Counts every call, before anything of it is read."""

    def __init__(self, calls: Calls, doorkeeper: Doorkeeper) -> None:
        self._calls = calls
        self._doorkeeper = doorkeeper

    def start_call(self, info: Any, headers: Any) -> Any:
        authorization = next(iter(headers.get(_AUTHORIZATION, ())), None)
        try:
            if info.method == flight.FlightMethod.GET_SCHEMA:
                # Arrow has no status of its own for what GetSchema itself raises.
                self._doorkeeper.require_token(authorization)
            self._calls.enter()
        except CalveError as error:
            raise told(None, error) from None
        return _Passed(self._calls, authorization)


class _Passed(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, calls: Calls, authorization: str | None) -> None:
        self._calls = calls
        self.authorization = authorization

    def call_completed(self, exception: BaseException | None) -> None:
        self._calls.leave()
