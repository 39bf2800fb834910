"""Topics as they are here, to be listed: one that stopped is told of, and hides no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calve.errors import CalveError
from calve.topics.document import document_of

if TYPE_CHECKING:
    from calve.ingest.intake import Intake
    from calve.topics.topic import Topic


def listed(intake: Intake, tenant: str | None = None) -> list[dict[str, Any]]:
    """Every topic with its offsets here, or with what is wrong with it."""
    return [described(intake, topic) for topic in intake.topics.list(tenant)]


def described(intake: Intake, topic: Topic) -> dict[str, Any]:
    """`offsets` are None if they cannot be told, and `problem` says why."""
    shown = document_of(topic)
    try:
        offsets = intake.offsets_of(topic)
    except CalveError as error:
        return {**shown, "offsets": None, "problem": {"detail": error.message, "hint": error.hint}}
    return {**shown, "offsets": offsets._asdict(), "problem": None}
