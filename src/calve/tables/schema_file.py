"""A table's schema as a JSON file: Calve's friendly form, or Iceberg's own.

{"columns": [{"name": "id", "type": "long", "required": true, "doc": "…"}, …],
 "partition_by": ["day(created_at)"], "sort_by": ["id desc"], "properties": {"owner": "me"}}
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import IcebergType, NestedField

from calve.errors import InvalidRequest, NotFound
from calve.tables.columns import check_names
from calve.tables.nearest import meant
from calve.tables.types import parse_type

STANDARD_INPUT: Final = "-"
_KEYS: Final = ("columns", "partition_by", "sort_by", "properties")
_COLUMN_KEYS: Final = ("name", "type", "required", "doc")
_BYTES_MAX: Final = 64 * 1024 * 1024
_EXAMPLE: Final = '{"columns": [{"name": "id", "type": "long", "required": true}]}'


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """What the file says, before it is checked as a whole."""

    schema: Schema
    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def read_schema_file(path: Path) -> SchemaFile:
    with _named(str(path)):
        return parse_schema(_decoded(_content(path)))


def read_standard_input() -> SchemaFile:
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed", hint="name a file instead")
    with _named("standard input"):
        return parse_schema(_decoded(_bounded(sys.stdin.buffer.read(_BYTES_MAX + 1))))


@contextmanager
def _named(origin: str) -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{origin}: {error.message}",
            hint=error.hint,
            context={**error.context, "file": origin},
        ) from error


def schema_of(fields: Sequence[NestedField]) -> Schema:
    """A schema with ids of its own; whatever ids the fields have do not matter."""
    check_names([each.name for each in fields], what="column")
    return assign_fresh_schema_ids(schema_with(Schema(), fields))


def schema_with(schema: Schema, fields: Sequence[NestedField], schema_id: int = 0) -> Schema:
    """A schema of other fields, with the identifier fields that are still among them."""
    kept = {field.field_id for field in fields}
    identifiers = [each for each in schema.identifier_field_ids if each in kept]
    try:
        return Schema(*fields, schema_id=schema_id, identifier_field_ids=identifiers)
    except ValueError as error:
        raise InvalidRequest(
            f"two columns have the same path: {error}",
            hint="a dot in a name reads like a field of a struct; rename one of them",
        ) from error


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file.read(_BYTES_MAX + 1))
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="check the path") from error
    except OSError as error:
        raise InvalidRequest(f"cannot be read: {error.strerror}", hint="check the path") from error


def _bounded(content: bytes) -> bytes:
    if len(content) > _BYTES_MAX:
        raise InvalidRequest("too big for a schema", hint="rows are inserted, not created")
    return content


def _decoded(content: bytes) -> dict[str, object]:
    try:
        decoded = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not valid JSON: {error}", hint=f"write {_EXAMPLE}") from error
    if not isinstance(decoded, dict):
        raise InvalidRequest("not a JSON object", hint=f"write {_EXAMPLE}")
    return decoded


def parse_schema(document: dict[str, object]) -> SchemaFile:
    """What a decoded file, or a document of the same form from elsewhere, says."""
    if document.get("type") == "struct" and "fields" in document:
        return SchemaFile(_iceberg_schema(document))
    for key in document:
        if key not in _KEYS:
            raise InvalidRequest(
                f"there is no key {key!r}{meant(key, _KEYS)}",
                hint=f"a schema has {', '.join(_KEYS)}; or write Iceberg's own schema JSON",
                context={"key": key},
            )
    columns = document.get("columns")
    if not isinstance(columns, list) or not columns:
        raise InvalidRequest("'columns' is not a list of columns", hint=f"write {_EXAMPLE}")
    fields = [_column(entry, number) for number, entry in enumerate(columns, 1)]
    return SchemaFile(
        schema_of(fields),
        _texts(document, "partition_by"),
        _texts(document, "sort_by"),
        _properties(document),
    )


def _iceberg_schema(document: dict[str, object]) -> Schema:
    try:
        return Schema.model_validate(document)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"not a schema of Iceberg: {_first_problem(error)}",
            hint=f"Calve's own form is {_EXAMPLE}",
        ) from error


def _first_problem(error: Exception) -> str:
    # Pydantic's errors begin with a count, then a place, then what is wrong there.
    lines = [line.strip() for line in str(error).splitlines()]
    return ": ".join(lines[1:3]) if len(lines) > 2 else lines[0]


def _column(entry: object, number: int) -> NestedField:
    if not isinstance(entry, dict):
        raise InvalidRequest(
            f"column {number} is not an object", hint='write {"name": "id", "type": "long"}'
        )
    name = entry.get("name")
    label = f"column {name!r}" if isinstance(name, str) and name else f"column {number}"
    context = {"column": str(name or number)}
    for key in entry:
        if key not in _COLUMN_KEYS:
            raise InvalidRequest(
                f"{label}: there is no key {key!r}{meant(key, _COLUMN_KEYS)}",
                hint=f"a column has {', '.join(_COLUMN_KEYS)}",
                context=context,
            )
    _check_kinds(entry, label, context)
    try:
        kind = _type(entry["type"])
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{label}: {error.message}", hint=error.hint, context=context
        ) from error
    return NestedField(
        number,
        entry["name"],
        kind,
        required=entry.get("required", False),
        doc=entry.get("doc"),
    )


def _check_kinds(entry: dict[str, object], label: str, context: dict[str, str]) -> None:
    expected: tuple[tuple[str, type | tuple[type, ...], str, str], ...] = (
        ("name", str, "text", '"id"'),
        ("type", (str, dict), "a type's name", '"long"'),
        ("required", bool, "true or false", "true"),
        ("doc", (str, type(None)), "text", '"who it is"'),
    )
    for key, kind, words, example in expected:
        if key not in entry and key in {"name", "type"}:
            raise InvalidRequest(
                f"{label} has no {key!r}",
                hint='write {"name": "id", "type": "long"}',
                context=context,
            )
        if key in entry and not isinstance(entry[key], kind):
            raise InvalidRequest(
                f"{label}: {key!r} is not {words}",
                hint=f'write "{key}": {example}{_without_quotes(entry[key], kind)}',
                context=context,
            )


def _without_quotes(written: object, kind: object) -> str:
    """JSON's true and false are often put into quotes, as they are elsewhere."""
    return ", without quotes" if kind is bool and isinstance(written, str) else ""


def _type(written: str | dict[str, object]) -> IcebergType:
    if isinstance(written, str):
        return parse_type(written)
    try:
        whole = {"id": 0, "name": "any", "required": False, "type": written}
        return NestedField.model_validate(whole).field_type
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"not a type of Iceberg: {_first_problem(error)}",
            hint="write a name such as struct<name: string, age: int>",
        ) from error


def _texts(document: dict[str, object], key: str) -> list[str]:
    written = document.get(key, [])
    if not isinstance(written, list) or not all(isinstance(text, str) for text in written):
        raise InvalidRequest(
            f"{key!r} is not a list of texts",
            hint=f'write "{key}": ["day(created_at)"]',
            context={"key": key},
        )
    return written


def _properties(document: dict[str, object]) -> dict[str, str]:
    written = document.get("properties", {})
    if not isinstance(written, dict):
        raise InvalidRequest(
            "'properties' is not an object", hint='write "properties": {"owner": "me"}'
        )
    return {key: _property(key, value) for key, value in written.items()}


def _property(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidRequest(
        f"property {key!r} is neither text nor a number",
        hint="properties map text to text",
        context={"key": key},
    )
