"""Changing a topic: its policies, and its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from calve.errors import InvalidRequest
from calve.tables.nearest import meant
from calve.tables.schema_growth import grown
from calve.tables.schemas import (
    arrow_schema,
    define_table,
    schema_from_json,
    schema_to_json,
    with_renamed,
    without,
)
from calve.topics.define import check_policies, check_properties, check_retention
from calve.topics.flush import bounds_of
from calve.topics.limits import check_size

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from calve.topics.topic import Topic, TopicChange


def altered(topic: Topic, change: TopicChange) -> Topic:
    """The topic with all of the change, or InvalidRequest and none of it."""
    check_policies(change.on_unknown_column, change.on_bad_row)
    check_properties(change.properties)
    changed = msgspec.structs.replace(
        topic,
        on_unknown_column=change.on_unknown_column or topic.on_unknown_column,
        on_bad_row=change.on_bad_row or topic.on_bad_row,
        properties=_merged(topic.properties, change),
        flush=bounds_of(change.flush, topic.flush),
    )
    if change.retention_seconds is not msgspec.UNSET:
        check_retention(change.retention_seconds)
        changed = msgspec.structs.replace(changed, retention_seconds=change.retention_seconds)
    return _with_columns(changed, change)


def _merged(properties: dict[str, str], change: TopicChange) -> dict[str, str]:
    merged = {**properties, **change.properties}
    return {name: value for name, value in merged.items() if value is not None}


def _with_columns(topic: Topic, change: TopicChange) -> Topic:
    if not (change.drop_columns or change.rename_columns or change.add_columns):
        return topic
    if topic.kind == "messages":
        raise InvalidRequest(
            "the columns of a topic of messages stay as they are",
            hint="what goes along with a message belongs into its attributes",
        )
    for name in change.drop_columns:
        topic = _without(topic, name)
    for name, new_name in change.rename_columns.items():
        topic = _renamed(topic, name, new_name)
    _checked(topic)
    if change.add_columns is not None:
        wanted = define_table(change.add_columns).schema
        topic = with_room_for(topic, wanted)
        for field in wanted.fields:
            topic = topic.with_memory(topic.memory.with_added((field.name,)))
    return topic


def with_room_for(topic: Topic, incoming: Schema) -> Topic:
    """The topic, grown so that rows of another schema go in; itself if they do already."""
    schema = schema_from_json(topic.schema_json)
    wider = grown(schema, incoming, last_column_id=topic.last_column_id)
    return topic if wider is schema else with_schema(topic, wider)


def with_schema(topic: Topic, schema: Schema) -> Topic:
    check_size(arrow_schema(schema))
    return msgspec.structs.replace(
        topic,
        schema_json=schema_to_json(schema),
        last_column_id=max(topic.last_column_id, schema.highest_field_id),
    )


def _without(topic: Topic, name: str) -> Topic:
    _require_column(topic, name)
    if len(topic.schema.fields) == 1:
        raise InvalidRequest(f"{name!r} is the topic's only column", hint="add another one first")
    changed = with_schema(topic, without(topic.schema, name))
    return changed.with_memory(topic.memory.with_dropped((name,)))


def _renamed(topic: Topic, name: str, new_name: str) -> Topic:
    _require_column(topic, name)
    changed = with_schema(topic, with_renamed(topic.schema, name, new_name))
    return changed.with_memory(topic.memory.with_renamed((name,), (new_name,)))


def _require_column(topic: Topic, name: str) -> None:
    names = [field.name for field in topic.schema.fields]
    if name not in names:
        raise InvalidRequest(
            f"topic {topic.name} has no column {name!r}{meant(name, names)}",
            hint="whole columns can be dropped and renamed here",
            context={"column": name},
        )


def _checked(topic: Topic) -> Topic:
    """Refuse to take a column away by which rows are partitioned or sorted."""
    define_table(topic.schema, partition_by=topic.partition_by, sort_by=topic.sort_by)
    return topic
