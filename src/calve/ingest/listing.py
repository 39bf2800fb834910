"""Topics as they are here, to be listed: one that stopped is told of, and hides no other.

And subscriptions; of both, those that a caller sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calve.errors import CalveError
from calve.topics.document import document_of

if TYPE_CHECKING:
    from calve.access import Caller
    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.subscriptions import SubscriptionStatus
    from calve.topics.topic import Topic


def listed(intake: Intake, caller: Caller) -> list[dict[str, Any]]:
    """Every topic with its offsets here, or with what is wrong with it."""
    found = caller.among(intake.topics.list(caller.only_tenant))
    return [described(intake, topic) for topic in found]


def seen_subscriptions(
    intake: Intake, caller: Caller, topic: TableName | None
) -> list[SubscriptionStatus]:
    """Of one topic, or of all that the caller sees."""
    wanted = None if topic is None else str(topic)
    return intake.subscriptions.list(wanted, is_seen=caller.sees)


def described(intake: Intake, topic: Topic) -> dict[str, Any]:
    """`offsets` are None if they cannot be told, and `problem` says why."""
    shown = document_of(topic)
    try:
        offsets = intake.offsets_of(topic)
    except CalveError as error:
        return {**shown, "offsets": None, "problem": {"detail": error.message, "hint": error.hint}}
    return {**shown, "offsets": offsets._asdict(), "problem": None}
