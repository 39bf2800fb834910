"""The part of the route table that is about subscriptions and streams of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from calve.ingest.http import subscriptions
from calve.ingest.http.operation import Answer, Content, Operation
from calve.ingest.http.parameters import asked, header, in_path, ordered, query
from calve.ingest.http.streaming import EVENTS, LAST_EVENT
from calve.ingest.http.views import (
    Acknowledge,
    Acknowledged,
    SeekOrder,
    SubscriptionList,
    SubscriptionView,
)

if TYPE_CHECKING:
    from calve.ingest.http.operation import Handler

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
    query("resume", f"the same for those who cannot send {LAST_EVENT}", type="string"),
)
_TELLS: Final = (
    "Server-sent events, one for each row: `id` is its place, `data` a JSON object with "
    "`partition`, `offset`, `ingested_at` and `value`. A comment every few seconds says that the "
    "stream lives; an event `problem` is why it ends. With `Upgrade: websocket` the same events "
    "come over a WebSocket, each as one JSON object"
)
_ONE: Final = "/v1/topics/{topic}/subscriptions/{name}"


def _streamed(path: str, handler: Handler, summary: str, tells: str) -> Operation:
    return Operation(
        method="GET",
        path=path,
        scope="subscribe",
        handler=handler,
        socket=subscriptions.open_socket,
        summary=summary,
        tells=tells,
        parameters=(*in_path(path), *_STREAMING),
        answers=(
            Answer(
                200,
                "the rows, in the order of their offsets",
                (Content(EVENTS, {"type": "string"}),),
            ),
        ),
        problems=(400, 404, 406, 409, 422, 429),
    )


SUBSCRIPTIONS: Final = (
    _streamed(
        "/v1/topics/{topic}/stream",
        subscriptions.stream_topic,
        "Stream the rows of a topic, and those that come",
        f"{_TELLS}.",
    ),
    asked(
        "GET /v1/subscriptions", subscriptions.list_all_subscriptions, "List all subscriptions",
        scope="subscribe",
        gives=("the subscriptions, by topic and name", SubscriptionList),
    ),
    asked(
        "GET /v1/topics/{topic}/subscriptions", subscriptions.list_subscriptions,
        "List a topic's subscriptions",
        scope="subscribe",
        gives=("the subscriptions", SubscriptionList),
        problems=(400, 404),
    ),
    asked(
        f"GET {_ONE}", subscriptions.describe_subscription, "Show where a subscription is",
        scope="subscribe",
        gives=("the subscription", SubscriptionView),
        problems=(400, 404),
    ),
    asked(
        f"DELETE {_ONE}", subscriptions.delete_subscription,
        "Forget a subscription and its progress",
        scope="subscribe",
        tells="A consumer that has it is told so.",
        gives=("the subscription as it was", SubscriptionView),
        problems=(400, 404),
    ),
    _streamed(
        f"{_ONE}/stream",
        subscriptions.stream_subscription,
        "Stream the rows of a subscription, and those that come",
        f"{_TELLS}, and the client acknowledges with "
        '`{"ack": "…"}` and the id of an event. A subscription that is new begins at `from`. One '
        "consumer at a time has it; another waits. At least once: what was not acknowledged comes "
        f"again, unless the consumer says with {LAST_EVENT} that it has it.",
    ),
    ordered(
        f"POST {_ONE}/ack", subscriptions.acknowledge_events,
        "Acknowledge everything up to an event",
        scope="subscribe",
        tells="Durable when it is answered. 409 if another consumer has the subscription by now.",
        takes=Acknowledge,
        gives=("whether it counts", Acknowledged),
    ),
    ordered(
        f"POST {_ONE}/seek", subscriptions.seek_subscription,
        "Have a subscription go on from another place",
        scope="subscribe",
        tells="Whoever has it: what was sent before does not count then.",
        takes=SeekOrder,
        gives=("where it is now", SubscriptionView),
    ),
    asked(
        f"POST {_ONE}/reset", subscriptions.reset_subscription,
        "Have a subscription begin again with the first row",
        scope="subscribe",
        tells="Also where its topic was deleted and made again.",
        gives=("where it is now", SubscriptionView),
        problems=(400, 404, 409),
    ),
)  # fmt: skip
