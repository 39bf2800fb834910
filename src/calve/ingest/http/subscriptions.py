"""Subscriptions: `/v1/topics/{topic}/subscriptions`, and the streams of rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.responses import Response

from calve.ingest.http.callers import caller_of
from calve.ingest.http.headers import wanted_type
from calve.ingest.http.peer import peer_of
from calve.ingest.http.pump import Pump
from calve.ingest.http.service import Service, answer, choice, plain, topic_name
from calve.ingest.http.sockets import SocketForm, SocketStream
from calve.ingest.http.streaming import EVENTS, LAST_EVENT, EventForm, EventStream
from calve.ingest.http.views import (
    Acknowledge,
    Acknowledged,
    SeekOrder,
    SubscriptionList,
    SubscriptionView,
)
from calve.ingest.listing import seen_subscriptions

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.websockets import WebSocket

    from calve.ingest.http.pump import Form
    from calve.model import TableName
    from calve.subscriptions import SubscriptionStatus
    from calve.subscriptions.place import Place
    from calve.subscriptions.stream import RowStream

Piece = TypeVar("Piece")

# A service that was killed keeps a subscription from its consumers for so long.
_LEASE_SECONDS: Final = 15.0


async def list_all_subscriptions(service: Service, request: Request) -> Response:
    return await _listed(service, request, None)


async def list_subscriptions(service: Service, request: Request) -> Response:
    return await _listed(service, request, topic_name(request))


async def describe_subscription(service: Service, request: Request) -> Response:
    topic, name = _named(request)
    found = await service.in_thread(lambda: service.intake.subscriptions.describe(topic, name))
    return answer(_view(found))


async def delete_subscription(service: Service, request: Request) -> Response:
    topic, name = _named(request)

    def delete() -> SubscriptionStatus:
        found = service.intake.subscriptions.describe(topic, name)
        service.intake.subscriptions.delete(topic, name)
        return found

    return answer(_view(await service.in_thread(delete)))


async def acknowledge_events(service: Service, request: Request) -> Response:
    topic, name = _named(request)
    wanted = await service.document(request, Acknowledge)

    def acknowledge() -> bool:
        # Whoever only takes rows in need not load what reads tables.
        from calve.subscriptions.place import Place

        place = Place.parse(wanted.id)
        return service.intake.subscriptions.acknowledge(topic, name, place)

    return answer(Acknowledged(counts=await service.in_thread(acknowledge)))


async def seek_subscription(service: Service, request: Request) -> Response:
    topic, name = _named(request)
    wanted = await service.document(request, SeekOrder)

    def seek() -> SubscriptionStatus:
        from calve.subscriptions.start import parse_start

        start = parse_start(wanted.to)
        return service.intake.subscriptions.seek(topic, name, start)

    return answer(_view(await service.in_thread(seek)))


async def reset_subscription(service: Service, request: Request) -> Response:
    topic, name = _named(request)
    found = await service.in_thread(lambda: service.intake.subscriptions.reset(topic, name))
    return answer(_view(found))


async def stream_topic(service: Service, request: Request) -> Response:
    return await _streamed(service, request)


async def stream_subscription(service: Service, request: Request) -> Response:
    return await _streamed(service, request)


async def _streamed(service: Service, request: Request) -> Response:
    wanted_type(request.headers, (EVENTS,))
    if request.method == "HEAD":
        topic_name(request)
        _options(request)
        return Response(media_type=EVENTS)
    return EventStream(await _pump(service, request, EventForm()))


async def open_socket(service: Service, socket: WebSocket) -> SocketStream:
    pump = await _pump(service, socket, SocketForm())
    if "name" not in socket.path_params:
        return SocketStream(socket, pump, None)
    topic, name = _named(socket)

    async def acknowledge(place: Place) -> bool:
        return await service.in_thread(service.intake.subscriptions.acknowledge, topic, name, place)

    return SocketStream(socket, pump, acknowledge)


async def _pump(service: Service, request: HTTPConnection, form: Form[Piece]) -> Pump[Piece]:
    topic, name = str(topic_name(request)), request.path_params.get("name")
    options = _options(request)
    service.gate.go_on()
    service.streams.enter()
    try:
        stream = await service.in_thread(_opened, service, topic, name, options)
    except BaseException:
        service.streams.leave()
        raise
    return Pump(
        stream,
        form,
        peer=peer_of(request.scope),
        is_stopping=lambda: service.gate.is_closing,
        ended=service.streams.leave,
        recheck=partial(service.intake.doorkeeper.recheck, caller_of(request)),
    )


def _opened(service: Service, topic: str, name: str | None, options: dict[str, Any]) -> RowStream:
    from calve.subscriptions.stream import RowStream

    subscriptions = service.intake.subscriptions
    return RowStream(subscriptions, topic, name, lease_seconds=_LEASE_SECONDS, **options)


async def _listed(service: Service, request: Request, topic: TableName | None) -> Response:
    caller = caller_of(request)
    found = await service.in_thread(seen_subscriptions, service.intake, caller, topic)
    return answer(SubscriptionList(subscriptions=[_view(each) for each in found]))


def _options(request: HTTPConnection) -> dict[str, Any]:
    query = request.query_params
    columns = query.get("columns")
    return {
        "start": query.get("from", "earliest"),
        "where": query.get("where"),
        "columns": columns.split(",") if columns is not None else None,
        "follow": choice(request, "follow", ("true", "false")) != "false",
        # A browser cannot give a WebSocket headers.
        "resume": request.headers.get(LAST_EVENT, query.get("resume")),
    }


def _named(request: HTTPConnection) -> tuple[str, str]:
    return str(topic_name(request)), request.path_params["name"]


def _view(status: SubscriptionStatus) -> SubscriptionView:
    return plain(status.document(), SubscriptionView)
