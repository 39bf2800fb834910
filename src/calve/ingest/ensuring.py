"""Topics that a door needs: found, or made as it wants them when the first rows come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.errors import Conflict

if TYPE_CHECKING:
    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.topics.topic import Topic, TopicSpec


def ensure_topic(
    intake: Intake, name: TableName, spec: TopicSpec, *, is_asked: bool = False
) -> Topic:
    """The topic, made if it is not there and that was asked for or `ingest.auto_create` allows it;
    else NotFound."""
    topic = intake.topic(name)
    if topic is not None:
        return topic
    if not is_asked and not intake.settings.ingest.auto_create:
        return intake.topics.topic(name)
    try:
        return intake.create_topic(name, spec)
    except Conflict:
        found = intake.topics.find(name)  # somebody was faster
        if found is None:
            raise
        return found
