"""From what was asked for to a topic: every check that can be made before there are rows."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, get_args
from uuid import uuid4

import msgspec

from calve.errors import InvalidRequest
from calve.tables.schemas import (
    arrow_schema,
    define_table,
    schema_to_json,
)
from calve.topics.flush import FlushBounds, bounds_of
from calve.topics.limits import check_size
from calve.topics.messages import MESSAGE_SCHEMA
from calve.topics.promotion import check_promotion
from calve.topics.topic import OnBadRow, OnUnknownColumn, Topic, TopicSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema

    from calve.model import TableName
    from calve.tables.schemas import SchemaSource, TableDefinition

_OWN_PREFIX: Final = "calve."
_KINDS: Final = ("rows", "messages")


def define_topic(name: TableName, spec: TopicSpec, *, now: datetime) -> Topic:
    """The topic that was asked for, with an id of its own and bound to no log yet."""
    _check_words(spec)
    definition = _definition(spec)
    return _made(name, spec, definition, definition.schema.highest_field_id, now)


def define_bound(
    name: TableName, spec: TopicSpec, schema: Schema, *, last_column_id: int, now: datetime
) -> Topic:
    """The same for a topic whose table is there: with the table's columns and their ids."""
    _check_words(spec)
    definition = replace(define_table(schema, properties=spec.properties), schema=schema)
    return _made(name, spec, definition, last_column_id, now)


def _made(
    name: TableName,
    spec: TopicSpec,
    definition: TableDefinition,
    last_column_id: int,
    now: datetime,
) -> Topic:
    check_size(arrow_schema(definition.schema))
    policy: OnUnknownColumn = "refuse" if spec.kind == "messages" else "add"
    topic = Topic(
        id=uuid4(),
        name=name.by_user(),
        kind=spec.kind,
        schema_json=schema_to_json(definition.schema),
        last_column_id=last_column_id,
        partition_by=tuple(definition.partition_by),
        sort_by=tuple(definition.sort_by),
        properties=dict(definition.properties),
        retention_seconds=spec.retention_seconds,
        on_unknown_column=spec.on_unknown_column or policy,
        on_bad_row=spec.on_bad_row,
        flush=bounds_of(spec.flush),
        is_bound=spec.bind_table,
        created_at=now,
        asked="",
    )
    return msgspec.structs.replace(topic, asked=request_of(topic))


def request_of(topic: Topic) -> str:
    """What a topic is, apart from when and where; the same for the same request."""
    asked = (
        topic.kind, None if topic.is_bound else topic.schema_json,
        topic.partition_by, topic.sort_by,
        sorted(topic.properties.items()), topic.retention_seconds,
        topic.on_unknown_column, topic.on_bad_row, topic.is_bound,
        # Only where there are some: requests from before there could be any stay the same.
        *([topic.flush] if topic.flush != FlushBounds() else []),
    )  # fmt: skip
    return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()


def _definition(spec: TopicSpec) -> TableDefinition:
    return define_table(
        _columns(spec),
        partition_by=spec.partition_by,
        sort_by=spec.sort_by,
        properties=spec.properties,
    )


def _columns(spec: TopicSpec) -> SchemaSource:
    if spec.kind == "messages":
        if spec.schema is not None:
            raise InvalidRequest(
                "a topic of messages has columns of its own", hint="leave the schema out"
            )
        return MESSAGE_SCHEMA
    if spec.schema is None:
        raise InvalidRequest(
            "a topic needs a schema",
            hint="give one, or send the first rows and let the topic be made from them",
        )
    return spec.schema


def _check_words(spec: TopicSpec) -> None:
    _check_choice("kind", spec.kind, _KINDS)
    check_policies(spec.on_unknown_column, spec.on_bad_row)
    check_retention(spec.retention_seconds)
    check_properties(spec.properties)


def check_policies(on_unknown_column: str | None, on_bad_row: str | None) -> None:
    if on_unknown_column is not None:
        _check_choice("on_unknown_column", on_unknown_column, get_args(OnUnknownColumn))
    if on_bad_row is not None:
        _check_choice("on_bad_row", on_bad_row, get_args(OnBadRow))


def check_retention(seconds: object) -> None:
    is_count = isinstance(seconds, int) and not isinstance(seconds, bool) and seconds > 0
    if seconds is not None and not is_count:
        raise InvalidRequest(
            f"retention_seconds is {seconds!r}", hint="give a number of seconds, or leave it out"
        )


def check_properties(properties: Mapping[str, str | None]) -> None:
    for name in properties:
        if str(name).startswith(_OWN_PREFIX):
            raise InvalidRequest(f"property {name!r} is Calve's own", hint="choose another name")
    check_promotion(properties)


def _check_choice(what: str, given: object, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise InvalidRequest(f"{what} is {given!r}", hint=f"it is one of {', '.join(choices)}")
