"""The OpenAPI 3.1 document, and a page of the same for people, made from the route table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec

from calve.access import ANY, OPEN
from calve.ingest.http.operation import Content, Operation, Parameter
from calve.ingest.http.problems import MEDIA_TYPE
from calve.protocol import Problem

_REF: Final = "#/components/schemas/{name}"
_BEARER: Final = "token"
_WITH_BODY: Final = frozenset({"POST", "PATCH"})
# What a request can meet whatever it asks for: a web page, a stop, an error of ours.
_ALWAYS: Final = (403, 500, 503)
# And where a token is needed.
_BY_TOKEN: Final = (401, 429)
MEANINGS: Final = {
    400: "the request cannot be read",
    401: "a token is needed, and none was sent that counts",
    403: "the token has not the scope, or it comes from a web page",
    404: "there is no such topic, or its rows are no longer in the log",
    406: "none of the accepted types is offered",
    408: "the body did not arrive in time",
    409: "it does not go with what is there",
    413: "it is too large: split it",
    415: "its type or compression is not known",
    422: "it can be read, and does not fit the topic",
    429: "a bound was reached: retry after `retry_after_ms`",
    500: "an error of the service, which is in its log",
    501: "only a part that is not installed here could do it",
    503: "the service stops, its disk refuses, or a flush took too long",
    504: "the service stopped, and it is not known whether the rows are durable",
}


def openapi(operations: Sequence[Operation]) -> dict[str, Any]:
    """The whole document."""
    forms = [form for operation in operations for form in _forms(operation)]
    schemas, components = msgspec.json.schema_components([Problem, *forms], ref_template=_REF)
    found = dict(zip([_key(form) for form in [Problem, *forms]], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        entry = _operation(operation, found)
        paths.setdefault(operation.path, {})[operation.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Calve",
            "version": version("calve"),
            "description": "Rows and messages into topics, durable when they are acknowledged.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                _BEARER: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token that `calve token create` made, where "
                    "`auth.required` is set; the words behind it are its scopes.",
                }
            },
        },
    }


def _forms(operation: Operation) -> Iterable[Any]:
    contents = [*operation.body, *(each for a in operation.answers for each in a.contents)]
    return [each.form for each in contents if not isinstance(each.form, dict | None)]


def _key(form: Any) -> str:
    return str(form)


def _operation(operation: Operation, found: dict[str, Any]) -> dict[str, Any]:
    answers = {
        str(answer.status): _described(answer.meaning, answer.contents, found)
        for answer in operation.answers
    }
    problem = (Content(MEDIA_TYPE, Problem),)
    by_token = () if operation.scope == OPEN else _BY_TOKEN
    for status in sorted({*operation.problems, *_ALWAYS, *by_token}):
        answers[str(status)] = _described(MEANINGS[status], problem, found)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            answers[str(status)]["headers"] = {
                "Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}
            }
    entry: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "responses": answers,
    }
    if operation.scope != OPEN:
        # Without `auth.required` no token is looked at: so it may as well be missing.
        scopes = [] if operation.scope == ANY else [operation.scope]
        entry["security"] = [{_BEARER: scopes}, {}]
    if operation.tells:
        entry["description"] = operation.tells
    if operation.parameters:
        entry["parameters"] = [_parameter(each) for each in operation.parameters]
    if operation.body:
        entry["requestBody"] = {"required": True, "content": _contents(operation.body, found)}
    return entry


def _described(meaning: str, contents: Sequence[Content], found: dict[str, Any]) -> dict[str, Any]:
    return {"description": meaning, "content": _contents(contents, found)}


def _contents(contents: Sequence[Content], found: dict[str, Any]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for content in contents:
        is_plain = isinstance(content.form, dict)
        entry = {"schema": content.form if is_plain else found[_key(content.form)]}
        if content.example is not None:
            entry["example"] = content.example
        entries[content.media_type] = entry
    return entries


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.meaning,
        "required": parameter.is_required,
        "schema": parameter.schema,
    }


def docs_page(operations: Sequence[Operation]) -> str:
    """A page that needs nothing but itself."""
    parts = [_PAGE_HEAD]
    for operation in operations:
        parts.append(f"<h2><code>{operation.method} {escape(operation.path)}</code></h2>")
        parts.append(f"<p>{escape(operation.summary)}. {escape(operation.tells)}</p>")
        parts.append(f"<p>Scope: <code>{operation.scope}</code></p>")
        parts.append(_table(operation))
    return "\n".join([*parts, "</main>", ""])


def _table(operation: Operation) -> str:
    rows = [
        (f"{each.place} <code>{escape(each.name)}</code>", escape(each.meaning))
        for each in operation.parameters
    ]
    rows += [("body", f"<code>{escape(each.media_type)}</code>") for each in operation.body]
    rows += [(str(each.status), escape(each.meaning)) for each in operation.answers]
    rows += [(str(status), escape(MEANINGS[status])) for status in operation.problems]
    cells = "".join(f"<tr><td>{name}</td><td>{meaning}</td></tr>" for name, meaning in rows)
    return f"<table>{cells}</table>"


_PAGE_HEAD: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Calve over HTTP</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }
h2 { font-size: 1rem; margin-top: 2rem } td { padding: .1rem 1rem .1rem 0; vertical-align: top }
code { background: #eee; padding: .1rem .3rem; color: #222 }
</style>
<main>
<h1>Calve over HTTP</h1>
<p>The same for programs is at <a href="/openapi.json">/openapi.json</a>. Errors are
<code>application/problem+json</code> with <code>detail</code> and <code>hint</code>.</p>"""
