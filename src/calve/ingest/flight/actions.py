"""Actions: what can be done with topics over Flight. JSON in, one JSON result out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from calve.errors import InvalidRequest
from calve.ingest.flight import letter_actions as letters
from calve.ingest.flight import subscription_actions as subscriptions
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


class _Named(msgspec.Struct, frozen=True):
    """What every body has; the rest of it is the action's."""

    topic: str


class _Topic(_Named, frozen=True, forbid_unknown_fields=True):
    """A body that has nothing else."""


class _Flush(_Named, frozen=True, forbid_unknown_fields=True):
    timeout_seconds: float = _FLUSH_SECONDS


class _Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One topic, or all of them."""

    topic: str | None = None


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body that is empty."""


class _Skip(_Named, frozen=True, forbid_unknown_fields=True):
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


class _Action(NamedTuple):
    """`act` gets the topic, parsed; of an action that need not name one, None."""

    body: type[Any]
    act: Callable[[Intake, Any, Any], Any]
    description: str
    is_named: bool = True


_ACTIONS: Final[Mapping[str, _Action]] = {
    "topic.create": _Action(
        dict, _create,
        'Make a topic: {"topic": "events", "schema": {"id": "long", "at": "timestamptz"}}',
    ),
    "topic.list": _Action(
        _Nothing, lambda intake, _, __: listed(intake), "All topics with their offsets: {}",
        is_named=False,
    ),
    "status": _Action(
        _Nothing, lambda intake, _, __: status_of(intake), "How the service is doing: {}",
        is_named=False,
    ),
    "topic.describe": _Action(_Topic, _describe, 'What a topic is: {"topic": "events"}'),
    "topic.alter": _Action(
        dict, _alter, 'Change a topic: {"topic": "events", "on_unknown_column": "refuse"}'
    ),
    "topic.delete": _Action(
        _Topic, _delete, 'Forget a topic and its rows in the log: {"topic": "events"}'
    ),
    FLUSH: _Action(
        _Flush, _flush,
        'Wait until acknowledged rows are in the table: {"topic": "events", "timeout_seconds": 60}',
    ),
    "stats": _Action(_Topic, _stats, 'Counts and offsets: {"topic": "events"}'),
    "log.ends": _Action(
        _Nothing, lambda intake, _, __: intake.log_ends(),
        "How far the log is, of each stream in it: {}", is_named=False,
    ),
    "pipeline.status": _Action(
        _Pipeline, lambda intake, _, body: intake.pipeline.status(body.topic),
        'How far tables are behind; without a topic, all: {"topic": "events"}', is_named=False,
    ),
    "pipeline.pause": _Action(
        _Pipeline, lambda intake, _, body: intake.pipeline.pause(body.topic),
        'Leave a topic alone; without one, all: {"topic": "events"}', is_named=False,
    ),
    "pipeline.resume": _Action(
        _Pipeline, lambda intake, _, body: intake.pipeline.resume(body.topic),
        'Go on with a topic; without one, with all: {"topic": "events"}', is_named=False,
    ),
    "pipeline.skip": _Action(
        _Skip, _skip, 'Send rows to the dead letters: {"topic": "events", "to": 100}'
    ),
    "dead_letter.list": _Action(
        letters.Listing, letters.list_letters,
        'Rows that a topic could not take: {"topic": "events", "offsets": "5,10-20"}',
    ),
    "dead_letter.show": _Action(
        letters.One, letters.show_letter, 'One of them: {"topic": "events", "offset": 5}'
    ),
    "dead_letter.original": _Action(
        letters.One, letters.original_of, 'What was sent: {"topic": "events", "offset": 5}'
    ),
    "dead_letter.replay": _Action(
        letters.TopicWish, letters.replay_letters,
        'Send them to the topic again, until is_done: {"topic": "events", "all": true}',
    ),
    "dead_letter.discard": _Action(
        letters.TopicWish, letters.discard_letters,
        'Remove them, until is_done: {"topic": "events", "reason": "no number"}',
    ),
    "subscription.list": _Action(
        subscriptions.Listing, subscriptions.list_all,
        'Subscriptions and how far behind they are; without a topic, all: {"topic": "events"}',
        is_named=False,
    ),
    "subscription.describe": _Action(
        subscriptions.Named, subscriptions.describe,
        'Where one is, and who has it: {"topic": "events", "subscription": "billing"}',
    ),
    "subscription.ack": _Action(
        subscriptions.Acknowledged, subscriptions.acknowledge,
        'Be done with all up to a place: {"topic": "events", "subscription": "a", "place": "…"}',
    ),
    "subscription.seek": _Action(
        subscriptions.Moved, subscriptions.seek,
        'Go on elsewhere: {"topic": "events", "subscription": "billing", "to": "latest"}',
    ),
    "subscription.reset": _Action(
        subscriptions.Named, subscriptions.reset,
        'Begin with the first row: {"topic": "events", "subscription": "billing"}',
    ),
    "subscription.delete": _Action(
        subscriptions.Named, subscriptions.delete,
        'Forget it: {"topic": "events", "subscription": "billing"}',
    ),
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
    topic = TableName.parse(decode(body, _Named, what=what).topic) if action.is_named else None
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
