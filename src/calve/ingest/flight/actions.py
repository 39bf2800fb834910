"""Actions: what can be done with topics over Flight. JSON in, one JSON result out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from calve.errors import InvalidRequest
from calve.model import TableName
from calve.protocol.flight import decode
from calve.tables.nearest import meant
from calve.tables.schema_file import parse_schema
from calve.topics.topic import Kind as TopicKind
from calve.topics.topic import OnBadRow, OnUnknownColumn, TopicChange, TopicSpec, as_plain

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from calve.ingest.intake import Intake

_FLUSH_SECONDS: Final = 60.0
_FLUSH_SECONDS_MAX: Final = 3_600.0


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str

    @property
    def name(self) -> TableName:
        return TableName.parse(self.topic)


class _Create(_Body, frozen=True, kw_only=True):
    kind: TopicKind = "rows"
    schema: dict[str, Any] | None = None
    partition_by: list[str] = []
    sort_by: list[str] = []
    properties: dict[str, str] = {}
    retention_seconds: int | None = None
    on_unknown_column: OnUnknownColumn | None = None
    on_bad_row: OnBadRow = "refuse"
    bind_table: bool = False
    adopt: bool = False


class _Alter(_Body, frozen=True, kw_only=True):
    on_unknown_column: OnUnknownColumn | None = None
    on_bad_row: OnBadRow | None = None
    retention_seconds: int | msgspec.UnsetType | None = msgspec.UNSET
    properties: dict[str, str | None] = {}
    add_columns: dict[str, Any] | None = None
    drop_columns: list[str] = []
    rename_columns: dict[str, str] = {}


class _Flush(_Body, frozen=True, kw_only=True):
    timeout_seconds: float = _FLUSH_SECONDS


def _create(intake: Intake, body: _Create) -> Any:
    spec = TopicSpec(
        kind=body.kind,
        schema=_columns(body.schema),
        partition_by=body.partition_by,
        sort_by=body.sort_by,
        properties=body.properties,
        retention_seconds=body.retention_seconds,
        on_unknown_column=body.on_unknown_column,
        on_bad_row=body.on_bad_row,
        bind_table=body.bind_table,
    )
    return as_plain(intake.create_topic(body.name, spec, adopt=body.adopt))


def _alter(intake: Intake, body: _Alter) -> Any:
    change = TopicChange(
        on_unknown_column=body.on_unknown_column,
        on_bad_row=body.on_bad_row,
        retention_seconds=body.retention_seconds,
        properties=body.properties,
        add_columns=_columns(body.add_columns),
        drop_columns=body.drop_columns,
        rename_columns=body.rename_columns,
    )
    return as_plain(intake.alter_topic(body.name, change))


def _delete(intake: Intake, body: _Body) -> Any:
    return as_plain(intake.delete_topic(body.name))


def _describe(intake: Intake, body: _Body) -> Any:
    plain = as_plain(intake.topics.topic(body.name))
    return {**plain, "offsets": intake.offsets(body.name)._asdict()}


def _flush(intake: Intake, body: _Flush) -> Any:
    if not 0 <= body.timeout_seconds <= _FLUSH_SECONDS_MAX:
        raise InvalidRequest(f"timeout_seconds is 0 to {_FLUSH_SECONDS_MAX:g}")
    return intake.flush(body.name, body.timeout_seconds)._asdict()


def _stats(intake: Intake, body: _Body) -> Any:
    return intake.stats(body.name)._asdict()


class _Action(NamedTuple):
    body: type[_Body]
    act: Callable[[Intake, Any], Any]
    description: str


_ACTIONS: Final[Mapping[str, _Action]] = {
    "topic.create": _Action(
        _Create, _create,
        'Make a topic: {"topic": "events", "schema": {"id": "long", "at": "timestamptz"}}',
    ),
    "topic.describe": _Action(_Body, _describe, 'What a topic is: {"topic": "events"}'),
    "topic.alter": _Action(
        _Alter, _alter, 'Change a topic: {"topic": "events", "on_unknown_column": "refuse"}'
    ),
    "topic.delete": _Action(
        _Body, _delete, 'Forget a topic and its rows in the log: {"topic": "events"}'
    ),
    "flush": _Action(
        _Flush, _flush,
        'Wait until acknowledged rows are in the table: {"topic": "events", "timeout_seconds": 60}',
    ),
    "stats": _Action(_Body, _stats, 'Counts and offsets: {"topic": "events"}'),
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
    request = decode(body, action.body, what=f"the body of {name}")
    return msgspec.json.encode(action.act(intake, request))


def _columns(document: dict[str, Any] | None) -> Schema | dict[str, Any] | None:
    """Columns as a schema file has them; or simply types by name."""
    if document is None or not ("columns" in document or "fields" in document):
        return document
    return parse_schema(document).schema
