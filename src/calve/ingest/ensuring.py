"""Topics that a door needs: found, or made as it wants them when the first rows come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from calve.errors import Conflict, InvalidRequest
from calve.topics.fit import fit

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.topics.topic import Topic, TopicSpec

_KNOWN_MAX: Final = 10_000
_fitting: Final[dict[UUID, int]] = {}  # versions of topics that take what telemetry has


def ensure_topic(
    intake: Intake, name: TableName, spec: TopicSpec, *, is_asked: bool = False
) -> Topic:
    """The topic, made if it is not there and that was asked for or `ingest.auto_create` allows it;
    else NotFound. InvalidRequest if it was there before and cannot take the columns of `spec`."""
    topic = _found_or_made(intake, name, spec, is_asked=is_asked)
    if spec.schema is not None:
        _require_for_telemetry(topic, spec.schema)
    return topic


def _found_or_made(intake: Intake, name: TableName, spec: TopicSpec, *, is_asked: bool) -> Topic:
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


def _require_for_telemetry(topic: Topic, columns: pa.Schema) -> None:
    """Telemetry has names of its own, which somebody may have used for something else before.

    What its rows would be refused for is no help to a sender, who cannot send other columns.
    """
    if _fitting.get(topic.id) == topic.version:
        return
    if topic.kind != "rows":
        raise _not_for_telemetry(topic, f": it holds {topic.kind}")
    try:
        fit(topic, columns)
    except InvalidRequest as error:
        raise _not_for_telemetry(topic, f", or was changed since: {error.message}") from error
    if len(_fitting) >= _KNOWN_MAX:
        _fitting.clear()
    _fitting[topic.id] = topic.version


def _not_for_telemetry(topic: Topic, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"topic {topic.name} was not made for telemetry{reason}",
        hint="send telemetry to another dataset, with the header x-calve-dataset; or delete the "
        "topic and its table, and it is made anew",
        context={"topic": str(topic.name)},
    )
