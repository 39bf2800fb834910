"""The part of the route table that is about subscriptions and streams of rows."""

from __future__ import annotations

from typing import Final

from calve.ingest.http import subscriptions
from calve.ingest.http.operation import Answer, Content, Operation, Parameter
from calve.ingest.http.parameters import TOPIC, header, json_of, query
from calve.ingest.http.streaming import EVENTS, LAST_EVENT
from calve.ingest.http.views import (
    Acknowledge,
    Acknowledged,
    SeekOrder,
    SubscriptionList,
    SubscriptionView,
)

_NAME: Final = Parameter(
    name="name",
    place="path",
    meaning="the subscription's name",
    schema={"type": "string", "pattern": r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"},
    is_required=True,
)
_STREAMING: Final = (
    query(
        "from",
        "`earliest`, `latest`, an offset, `0:1200,1:800` by partition, or a time",
        type="string",
        default="earliest",
    ),
    query("where", "the rows for which this condition holds", type="string"),
    query("columns", "these alone, with commas between", type="string"),
    query("follow", "`false` ends with what is durable now", type="string", enum=["true", "false"]),
    header(LAST_EVENT, "the id of the last event that came: what follows it comes"),
)
_EVENTS: Final = (Content(EVENTS, {"type": "string"}),)
_TELLS: Final = (
    "Server-sent events, one for each row: `id` is its place, `data` a JSON object with "
    "`partition`, `offset`, `ingested_at` and `value`. A comment every few seconds says that the "
    "stream lives; an event `problem` is why it ends."
)
_CHANGING: Final = (400, 404, 408, 409, 413, 422, 429)

SUBSCRIPTIONS: Final = (
    Operation(
        method="GET",
        path="/v1/topics/{topic}/stream",
        handler=subscriptions.stream_topic,
        socket=subscriptions.open_socket,
        summary="Stream the rows of a topic, and those that come",
        tells=_TELLS,
        parameters=(TOPIC, *_STREAMING),
        answers=(Answer(200, "the rows, in the order of their offsets", _EVENTS),),
        problems=(400, 404, 406, 409, 422, 429),
    ),
    Operation(
        method="GET",
        path="/v1/topics/{topic}/subscriptions",
        handler=subscriptions.list_subscriptions,
        summary="List a topic's subscriptions",
        parameters=(TOPIC,),
        answers=(Answer(200, "the subscriptions", json_of(SubscriptionList)),),
        problems=(400,),
    ),
    Operation(
        method="GET",
        path="/v1/topics/{topic}/subscriptions/{name}",
        handler=subscriptions.describe_subscription,
        summary="Show where a subscription is",
        parameters=(TOPIC, _NAME),
        answers=(Answer(200, "the subscription", json_of(SubscriptionView)),),
        problems=(400, 404),
    ),
    Operation(
        method="DELETE",
        path="/v1/topics/{topic}/subscriptions/{name}",
        handler=subscriptions.delete_subscription,
        summary="Forget a subscription and its progress",
        parameters=(TOPIC, _NAME),
        answers=(Answer(200, "the subscription as it was", json_of(SubscriptionView)),),
        problems=(400, 404),
    ),
    Operation(
        method="GET",
        path="/v1/topics/{topic}/subscriptions/{name}/stream",
        handler=subscriptions.stream_subscription,
        socket=subscriptions.open_socket,
        summary="Stream the rows of a subscription, and those that come",
        tells=f"{_TELLS} A subscription that is new begins at `from`. One consumer at a time has "
        "it; another waits. At least once: what was not acknowledged comes again, unless the "
        f"consumer says with {LAST_EVENT} that it has it.",
        parameters=(TOPIC, _NAME, *_STREAMING),
        answers=(Answer(200, "the rows, in the order of their offsets", _EVENTS),),
        problems=(400, 404, 406, 409, 422, 429),
    ),
    Operation(
        method="POST",
        path="/v1/topics/{topic}/subscriptions/{name}/ack",
        handler=subscriptions.acknowledge_events,
        summary="Acknowledge everything up to an event",
        tells="Durable when it is answered. 409 if another consumer has the subscription by now.",
        parameters=(TOPIC, _NAME),
        body=json_of(Acknowledge),
        answers=(Answer(200, "whether it counts", json_of(Acknowledged)),),
        problems=_CHANGING,
    ),
    Operation(
        method="POST",
        path="/v1/topics/{topic}/subscriptions/{name}/seek",
        handler=subscriptions.seek_subscription,
        summary="Have a subscription go on from another place",
        tells="Whoever has it: what was sent before does not count then.",
        parameters=(TOPIC, _NAME),
        body=json_of(SeekOrder),
        answers=(Answer(200, "where it is now", json_of(SubscriptionView)),),
        problems=_CHANGING,
    ),
)
