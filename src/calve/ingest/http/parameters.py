"""What many operations have, for the route table: parameters, JSON in and JSON out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from calve.ingest.formats.json_rows import JSON
from calve.ingest.http.operation import Answer, Content, Operation, Parameter

if TYPE_CHECKING:
    from calve.access import Need
    from calve.ingest.http.operation import Handler

_NAME: Final = "[a-z](?:[a-z0-9]|_(?=[a-z0-9])){0,62}"
TOPIC: Final = Parameter(
    name="topic",
    place="path",
    meaning="`name`, or `tenant.dataset.name`",
    schema={"type": "string", "pattern": rf"^({_NAME}\.{_NAME}\.{_NAME}|{_NAME})$"},
    is_required=True,
)

SUBSCRIPTION: Final = Parameter(
    name="name",
    place="path",
    meaning="the subscription's name",
    schema={"type": "string", "pattern": r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"},
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


# What a request with a JSON body can meet on its way.
CHANGING: Final = (400, 404, 408, 409, 413, 422, 429)


def asked(
    what: str,
    handler: Handler,
    summary: str,
    *,
    scope: Need,
    gives: tuple[str, object],
    parameters: tuple[Parameter, ...] = (),
    **rest: Any,
) -> Operation:
    """An operation, such as `GET /v1/status`, without a body, whose answer is JSON.

    `gives` is the meaning of the answer and its form.
    """
    method, path = what.split()
    meaning, form = gives
    return Operation(
        method=method,
        path=path,
        scope=scope,
        handler=handler,
        summary=summary,
        answers=(Answer(200, meaning, json_of(form)),),
        parameters=(*in_path(path), *parameters),
        **rest,
    )


def ordered(what: str, handler: Handler, summary: str, *, takes: object, **rest: Any) -> Operation:
    """The same with a body, which is JSON."""
    return asked(what, handler, summary, body=json_of(takes), **{"problems": CHANGING, **rest})


def in_path(path: str) -> tuple[Parameter, ...]:
    return tuple(each for each in (TOPIC, SUBSCRIPTION) if f"{{{each.name}}}" in path)
