"""Topics of messages: made when the first message comes, and nothing but messages in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.errors import Conflict, NotFound
from calve.ingest.ensuring import ensure_topic
from calve.topics.topic import TopicSpec

if TYPE_CHECKING:
    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.topics.topic import Topic


def ensure_message_topic(intake: Intake, name: TableName, *, is_asked: bool = False) -> Topic:
    """The topic, made if it is not there and that was asked for or `ingest.auto_create` allows it.

    Conflict if it holds rows.
    """
    topic = ensure_topic(intake, name, TopicSpec(kind="messages"), is_asked=is_asked)
    if topic.kind != "messages":
        raise Conflict(
            f"topic {name} holds rows, not messages",
            hint="send rows to it, or messages to another one",
            context={"topic": str(name)},
        )
    return topic


def message_topic(intake: Intake, name: TableName) -> Topic:
    """A topic of messages that is there."""
    topic = intake.topic(name)
    if topic is None or topic.kind != "messages":
        raise NotFound(
            f"there is no topic of messages {name}",
            hint="initialize_topic makes one",
            context={"topic": str(name)},
        )
    return topic
