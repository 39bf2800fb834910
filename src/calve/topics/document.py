"""Topics as documents, for doors that speak JSON: asked for, changed, and shown.

{"columns": [{"name": "id", "type": "long"}], "partition_by": ["day(at)"], "on_bad_row": "refuse"}

The form is that of a table's schema file, with the keys of `TopicSpec` beside it.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from calve.errors import InvalidRequest
from calve.tables.nearest import meant
from calve.tables.schema_file import parse_schema
from calve.tables.types import type_name
from calve.topics.topic import Topic, TopicChange, TopicSpec

_T = TypeVar("_T", bound=msgspec.Struct)

# Of a topic, what only its keeper needs.
_INNER: Final = ("schema_json", "last_column_id", "asked", "first_offsets")


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What a document says of a topic besides its columns."""

    kind: str = "rows"
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    properties: dict[str, str] = {}
    retention_seconds: int | None = None
    on_unknown_column: str | None = None
    on_bad_row: str = "refuse"
    flush: dict[str, int | None] = {}
    bind_table: bool = False


class _Changed(msgspec.Struct, forbid_unknown_fields=True):
    on_unknown_column: str | None = None
    on_bad_row: str | None = None
    retention_seconds: int | msgspec.UnsetType | None = msgspec.UNSET
    properties: dict[str, str | None] = {}
    flush: dict[str, int | None] = {}
    add_columns: list[Any] | None = None
    drop_columns: tuple[str, ...] = ()
    rename_columns: dict[str, str] = {}


def spec_of(document: object) -> TopicSpec:
    """The topic that a document asks for; what its words mean is checked when it is made."""
    given = _object(document)
    own = {key: given.pop(key) for key in _Asked.__struct_fields__ if key in given}
    asked = msgspec.structs.asdict(_converted(own, _Asked))
    return TopicSpec(schema=parse_schema(given).schema if given else None, **asked)


def change_of(document: object) -> TopicChange:
    """The change that a document asks for."""
    given = _object(document)
    for key in given:
        if key not in _Changed.__struct_fields__:
            known = _Changed.__struct_fields__
            raise InvalidRequest(
                f"there is no key {key!r}{meant(key, known)}",
                hint=f"of a topic can be changed: {', '.join(known)}",
                context={"key": key},
            )
    changed = msgspec.structs.asdict(_converted(given, _Changed))
    columns = changed.pop("add_columns")
    added = None if columns is None else parse_schema({"columns": columns}).schema
    return TopicChange(add_columns=added, **changed)


def document_of(topic: Topic) -> dict[str, Any]:
    """A topic for those who show it: plain values, its columns as names and types."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(topic))
    for key in _INNER:
        del document[key]
    document["name"] = str(topic.name)
    document["columns"] = [
        {"name": field.name, "type": type_name(field.field_type), "required": field.required}
        for field in topic.schema.fields
    ]
    return document


def _object(document: object) -> dict[str, Any]:
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise InvalidRequest(
            "not an object", hint='write {"columns": [{"name": "id", "type": "long"}]}'
        )
    return dict(document)


def _converted(given: dict[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"not what a topic takes: {error}",
            hint=f"beside its columns it has {', '.join(kind.__struct_fields__)}",
        ) from error
