"""Parameters and bodies that many operations have, for the route table."""

from __future__ import annotations

from typing import Final

from calve.ingest.formats.json_rows import JSON
from calve.ingest.http.operation import Content, Parameter

_NAME: Final = "[a-z](?:[a-z0-9]|_(?=[a-z0-9])){0,62}"
TOPIC: Final = Parameter(
    name="topic",
    place="path",
    meaning="`name`, or `tenant.dataset.name`",
    schema={"type": "string", "pattern": rf"^({_NAME}\.{_NAME}\.{_NAME}|{_NAME})$"},
    is_required=True,
)


def query(name: str, meaning: str, **schema: object) -> Parameter:
    return Parameter(name=name, place="query", meaning=meaning, schema=schema)


def header(name: str, meaning: str, **schema: object) -> Parameter:
    return Parameter(
        name=name, place="header", meaning=meaning, schema={"type": "string", **schema}
    )


def json_of(form: object) -> tuple[Content, ...]:
    return (Content(JSON, form),)
