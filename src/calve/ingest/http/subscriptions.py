"""Subscriptions: `/v1/topics/{topic}/subscriptions`, and the streams of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from calve.ingest.http.headers import wanted_type
from calve.ingest.http.service import Service, answer, choice, plain, topic_name
from calve.ingest.http.streaming import EVENTS, LAST_EVENT, EventStream
from calve.ingest.http.views import (
    Acknowledge,
    Acknowledged,
    SeekOrder,
    SubscriptionList,
    SubscriptionView,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from calve.subscriptions import SubscriptionStatus
    from calve.subscriptions.stream import RowStream

# A service that was killed keeps a subscription from its consumers for so long.
_LEASE_SECONDS: Final = 15.0


async def list_subscriptions(service: Service, request: Request) -> Response:
    topic = str(topic_name(request))
    found = await service.in_thread(lambda: service.intake.subscriptions.list(topic))
    return answer(SubscriptionList(subscriptions=[_view(each) for each in found]))


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


async def stream_topic(service: Service, request: Request) -> Response:
    return await _streamed(service, request, None)


async def stream_subscription(service: Service, request: Request) -> Response:
    return await _streamed(service, request, request.path_params["name"])


async def _streamed(service: Service, request: Request, name: str | None) -> Response:
    wanted_type(request.headers, (EVENTS,))
    topic = str(topic_name(request))
    options = _options(request)
    if request.method == "HEAD":
        return Response(media_type=EVENTS)
    service.streams.enter()
    try:
        stream = await service.in_thread(_opened, service, topic, name, options)
    except BaseException:
        service.streams.leave()
        raise
    return EventStream(
        stream, is_stopping=lambda: service.gate.is_closing, ended=service.streams.leave
    )


def _opened(service: Service, topic: str, name: str | None, options: dict[str, Any]) -> RowStream:
    from calve.subscriptions.stream import RowStream

    subscriptions = service.intake.subscriptions
    return RowStream(subscriptions, topic, name, lease_seconds=_LEASE_SECONDS, **options)


def _options(request: Request) -> dict[str, Any]:
    query = request.query_params
    columns = query.get("columns")
    return {
        "start": query.get("from", "earliest"),
        "where": query.get("where"),
        "columns": columns.split(",") if columns is not None else None,
        "follow": choice(request, "follow", ("true", "false")) != "false",
        "resume": request.headers.get(LAST_EVENT),
    }


def _named(request: Request) -> tuple[str, str]:
    return str(topic_name(request)), request.path_params["name"]


def _view(status: SubscriptionStatus) -> SubscriptionView:
    return plain(status.document(), SubscriptionView)
