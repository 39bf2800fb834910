"""Actions: what can be done with topics over Flight. JSON in, one JSON result out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from calve.errors import InvalidRequest
from calve.ingest.flight.action import Action, Named
from calve.ingest.flight.letter_actions import LETTER_ACTIONS
from calve.ingest.flight.subscription_actions import SUBSCRIPTION_ACTIONS
from calve.ingest.listing import described, listed
from calve.ingest.status import status_of
from calve.model import TableName
from calve.protocol.flight import decode
from calve.tables.nearest import meant
from calve.topics.document import change_of, document_of, spec_of

if TYPE_CHECKING:
    from calve.ingest.intake import Intake

FLUSH: Final = "flush"  # the one that may take long
_FLUSH_SECONDS: Final = 60.0
_FLUSH_SECONDS_MAX: Final = 3_600.0


class _Topic(Named, frozen=True, forbid_unknown_fields=True):
    """A body that has nothing else."""


class _Flush(Named, frozen=True, forbid_unknown_fields=True):
    timeout_seconds: float = _FLUSH_SECONDS


class _Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One topic, or all of them."""

    topic: str | None = None


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body that is empty."""


class _Skip(Named, frozen=True, forbid_unknown_fields=True):
    to: int
    partition: int | None = None


def _create(intake: Intake, name: TableName, body: dict[str, Any]) -> Any:
    adopt = body.pop("adopt", False) is True
    spec = spec_of({**_schema(body.pop("schema", None)), **body})
    return document_of(intake.create_topic(name, spec, adopt=adopt))


def _alter(intake: Intake, name: TableName, body: dict[str, Any]) -> Any:
    body["add_columns"] = _schema(body.get("add_columns")).get("columns")
    return document_of(intake.alter_topic(name, change_of(body)))


def _delete(intake: Intake, name: TableName, _: _Topic) -> Any:
    return document_of(intake.delete_topic(name))


def _describe(intake: Intake, name: TableName, _: _Topic) -> Any:
    return described(intake, intake.topics.topic(name))


def _flush(intake: Intake, name: TableName, body: _Flush) -> Any:
    if not 0 <= body.timeout_seconds <= _FLUSH_SECONDS_MAX:
        raise InvalidRequest(f"timeout_seconds is 0 to {_FLUSH_SECONDS_MAX:g}")
    return intake.flush(name, body.timeout_seconds)._asdict()


def _stats(intake: Intake, name: TableName, _: _Topic) -> Any:
    return intake.stats(name)._asdict()


def _skip(intake: Intake, _: TableName, body: _Skip) -> Any:
    return intake.pipeline.skip(body.topic, body.to, body.partition)


_ACTIONS: Final[Mapping[str, Action]] = {
    "topic.create": Action(
        dict, _create,
        'Make a topic: {"topic": "events", "schema": {"id": "long", "at": "timestamptz"}}',
    ),
    "topic.list": Action(
        _Nothing, lambda intake, _, __: listed(intake), "All topics with their offsets: {}",
        is_named=False,
    ),
    "status": Action(
        _Nothing, lambda intake, _, __: status_of(intake), "How the service is doing: {}",
        is_named=False,
    ),
    "topic.describe": Action(_Topic, _describe, 'What a topic is: {"topic": "events"}'),
    "topic.alter": Action(
        dict, _alter, 'Change a topic: {"topic": "events", "on_unknown_column": "refuse"}'
    ),
    "topic.delete": Action(
        _Topic, _delete, 'Forget a topic and its rows in the log: {"topic": "events"}'
    ),
    FLUSH: Action(
        _Flush, _flush,
        'Wait until acknowledged rows are in the table: {"topic": "events", "timeout_seconds": 60}',
    ),
    "stats": Action(_Topic, _stats, 'Counts and offsets: {"topic": "events"}'),
    "log.ends": Action(
        _Nothing, lambda intake, _, __: intake.log_ends(),
        "How far the log is, of each stream in it: {}", is_named=False,
    ),
    "pipeline.status": Action(
        _Pipeline, lambda intake, _, body: intake.pipeline.status(body.topic),
        'How far tables are behind; without a topic, all: {"topic": "events"}', is_named=False,
    ),
    "pipeline.pause": Action(
        _Pipeline, lambda intake, _, body: intake.pipeline.pause(body.topic),
        'Leave a topic alone; without one, all: {"topic": "events"}', is_named=False,
    ),
    "pipeline.resume": Action(
        _Pipeline, lambda intake, _, body: intake.pipeline.resume(body.topic),
        'Go on with a topic; without one, with all: {"topic": "events"}', is_named=False,
    ),
    "pipeline.skip": Action(
        _Skip, _skip, 'Send rows to the dead letters: {"topic": "events", "to": 100}'
    ),
    **LETTER_ACTIONS,
    **SUBSCRIPTION_ACTIONS,
}  # fmt: skip


def descriptions() -> list[tuple[str, str]]:
    return [(name, action.description) for name, action in _ACTIONS.items()]


def perform(intake: Intake, name: str, body: bytes) -> bytes:
    """Do it; the result as JSON."""
    action = _ACTIONS.get(name)
    if action is None:
        raise InvalidRequest(
            f"there is no action {name!r}{meant(name, list(_ACTIONS))}",
            hint=f"there are {', '.join(_ACTIONS)}",
        )
    what = f"the body of {name}"
    topic = TableName.parse(decode(body, Named, what=what).topic) if action.is_named else None
    request = decode(body, action.body, what=what)
    if isinstance(request, dict):
        del request["topic"]
    return msgspec.json.encode(action.act(intake, topic, request))


def _schema(given: Any) -> dict[str, Any]:
    """Columns as a schema file has them; or a list of them, or simply types by name."""
    if not given:
        return {}
    if not isinstance(given, dict):
        return {"columns": given}
    if any(isinstance(given.get(key), list) for key in ("columns", "fields")):
        return given
    return {"columns": [{"name": name, "type": kind} for name, kind in given.items()]}
