"""Actions: what can be done with topics over Flight. JSON in, one JSON result out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from calve.errors import InvalidRequest
from calve.ingest import directing
from calve.ingest.flight.action import Action, Asked, Named
from calve.ingest.flight.letter_actions import LETTER_ACTIONS
from calve.ingest.flight.subscription_actions import SUBSCRIPTION_ACTIONS
from calve.ingest.flight.token_actions import TOKEN_ACTIONS
from calve.ingest.listing import described, listed
from calve.ingest.status import status_of
from calve.ingest.verifying import verified
from calve.protocol import LogEnds
from calve.protocol.flight import decode
from calve.tables.nearest import meant
from calve.topics.document import change_of, document_of, spec_of

if TYPE_CHECKING:
    from calve.access import Caller
    from calve.ingest.intake import Intake

FLUSH: Final = "flush"
VERIFY: Final = "topic.verify"
LONG: Final = frozenset({FLUSH, VERIFY})  # a service that stops does not wait for these
_FLUSH_SECONDS: Final = 60.0
_FLUSH_SECONDS_MAX: Final = 3_600.0


class _Topic(Named, frozen=True, forbid_unknown_fields=True):
    """A body that has nothing else."""


class _Flush(Named, frozen=True, forbid_unknown_fields=True):
    timeout_seconds: float = _FLUSH_SECONDS


class _Verify(Named, frozen=True, forbid_unknown_fields=True):
    orphans: bool = False


class _Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One topic, or all of them."""

    topic: str | None = None


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body that is empty."""


class _Skip(Named, frozen=True, forbid_unknown_fields=True):
    to: int
    partition: int | None = None


def _create(asked: Asked, body: dict[str, Any]) -> Any:
    adopt = body.pop("adopt", False) is True
    spec = spec_of({**_schema(body.pop("schema", None)), **body})
    return document_of(asked.intake.create_topic(asked.name, spec, adopt=adopt))


def _alter(asked: Asked, body: dict[str, Any]) -> Any:
    body["add_columns"] = _schema(body.get("add_columns")).get("columns")
    return document_of(asked.intake.alter_topic(asked.name, change_of(body)))


def _delete(asked: Asked, _: _Topic) -> Any:
    return document_of(asked.intake.delete_topic(asked.name))


def _describe(asked: Asked, _: _Topic) -> Any:
    return described(asked.intake, asked.intake.topics.topic(asked.name))


def _flush(asked: Asked, body: _Flush) -> Any:
    if not 0 <= body.timeout_seconds <= _FLUSH_SECONDS_MAX:
        raise InvalidRequest(f"timeout_seconds is 0 to {_FLUSH_SECONDS_MAX:g}")
    return asked.intake.flush(asked.name, body.timeout_seconds)._asdict()


def _verify(asked: Asked, body: _Verify) -> Any:
    return verified(
        asked.intake, asked.caller, asked.name, with_orphans=body.orphans, is_over=asked.is_over
    )


def _stats(asked: Asked, _: _Topic) -> Any:
    return asked.intake.stats(asked.name)._asdict()


def _log_ends(asked: Asked, _: _Nothing) -> Any:
    ends = asked.intake.log_ends()
    if asked.caller.sees_everything:
        return ends
    topics = asked.caller.among(asked.intake.topics.list(asked.caller.only_tenant))
    seen = {each.stream_id for topic in topics for each in topic.partitions.values()}
    return LogEnds(ends.log_id, {id_: end for id_, end in ends.streams.items() if id_ in seen})


def _skip(asked: Asked, body: _Skip) -> Any:
    return directing.skip_rows(asked.intake, asked.caller, body.topic, body.to, body.partition)


def _directed(
    work: Callable[[Intake, Caller, str | None], Any],
) -> Callable[[Asked, _Pipeline], Any]:
    return lambda asked, body: work(asked.intake, asked.caller, body.topic)


ACTIONS: Final[Mapping[str, Action]] = {
    "topic.create": Action(
        "admin", dict, _create,
        'Make a topic: {"topic": "events", "schema": {"id": "long", "at": "timestamptz"}}',
    ),
    "topic.list": Action(
        "any", _Nothing, lambda asked, _: listed(asked.intake, asked.caller),
        "All topics with their offsets: {}", is_named=False,
    ),
    "status": Action(
        "admin", _Nothing, lambda asked, _: status_of(asked.intake, asked.caller),
        "How the service is doing: {}", is_named=False,
    ),
    "topic.describe": Action("any", _Topic, _describe, 'What a topic is: {"topic": "events"}'),
    "topic.alter": Action(
        "admin", dict, _alter, 'Change a topic: {"topic": "events", "on_unknown_column": "refuse"}'
    ),
    "topic.delete": Action(
        "admin", _Topic, _delete, 'Forget a topic and its rows in the log: {"topic": "events"}'
    ),
    FLUSH: Action(
        "produce", _Flush, _flush,
        'Wait until acknowledged rows are in the table: {"topic": "events", "timeout_seconds": 60}',
    ),
    VERIFY: Action(
        "admin", _Verify, _verify,
        'Prove that each offset is in the table once: {"topic": "events", "orphans": true}',
    ),
    "stats": Action("any", _Topic, _stats, 'Counts and offsets: {"topic": "events"}'),
    "log.ends": Action(
        "pipeline", _Nothing, _log_ends, "How far the log is, of each stream in it: {}",
        is_named=False,
    ),
    "pipeline.status": Action(
        "admin", _Pipeline, _directed(directing.pipeline_status),
        'How far tables are behind; without a topic, all: {"topic": "events"}', is_named=False,
    ),
    "pipeline.pause": Action(
        "admin", _Pipeline, _directed(directing.pause_pipeline),
        'Leave a topic alone; without one, all: {"topic": "events"}', is_named=False,
    ),
    "pipeline.resume": Action(
        "admin", _Pipeline, _directed(directing.resume_pipeline),
        'Go on with a topic; without one, with all: {"topic": "events"}', is_named=False,
    ),
    "pipeline.skip": Action(
        "admin", _Skip, _skip, 'Send rows to the dead letters: {"topic": "events", "to": 100}'
    ),
    **LETTER_ACTIONS,
    **SUBSCRIPTION_ACTIONS,
    **TOKEN_ACTIONS,
}  # fmt: skip


def descriptions() -> list[tuple[str, str]]:
    return [(name, action.description) for name, action in ACTIONS.items()]


def subject_of(body: bytes) -> str:
    """What a body names, however wrong it is otherwise."""
    try:
        return decode(body, Named, what="the body").topic
    except InvalidRequest:
        return ""


def perform(
    intake: Intake,
    caller: Caller,
    name: str,
    body: bytes,
    is_over: Callable[[], bool] = lambda: False,
) -> bytes:
    """Do it, if the caller may; the result as JSON."""
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidRequest(
            f"there is no action {name!r}{meant(name, list(ACTIONS))}",
            hint=f"there are {', '.join(ACTIONS)}",
        )
    caller.require(action.scope)
    what = f"the body of {name}"
    topic = caller.topic(decode(body, Named, what=what).topic) if action.is_named else None
    request = decode(body, action.body, what=what)
    if isinstance(request, dict):
        del request["topic"]
    return msgspec.json.encode(action.act(Asked(intake, caller, topic, is_over), request))


def _schema(given: Any) -> dict[str, Any]:
    """Columns as a schema file has them; or a list of them, or simply types by name."""
    if not given:
        return {}
    if not isinstance(given, dict):
        return {"columns": given}
    if any(isinstance(given.get(key), list) for key in ("columns", "fields")):
        return given
    return {"columns": [{"name": name, "type": kind} for name, kind in given.items()]}
