"""What one method of one path does, takes and answers: the words of the route table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

    from calve.access import Need
    from calve.errors import CalveError
    from calve.ingest.http.service import Service
    from calve.ingest.http.sockets import SocketStream

Handler: TypeAlias = "Callable[[Service, Request], Awaitable[Response]]"
Refused: TypeAlias = "Callable[[CalveError, Request], Response]"
SocketHandler: TypeAlias = "Callable[[Service, WebSocket], Awaitable[SocketStream]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    place: str  # path, query or header
    meaning: str
    schema: dict[str, Any]
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """A body by content type: one of our types, a JSON schema, or bytes of somebody else's form."""

    media_type: str
    form: Any = None
    example: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    meaning: str
    contents: tuple[Content, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    method: str
    path: str
    scope: Need  # of the token that it takes; there is no default, so that nobody forgets it
    handler: Handler
    summary: str
    answers: tuple[Answer, ...]
    tells: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: tuple[Content, ...] = ()
    socket: SocketHandler | None = None  # for whoever asks for a WebSocket instead
    refused: Refused | None = None  # how whoever is not let in is told, if not as a problem
    problems: tuple[int, ...] = ()  # those of its own; OpenAPI adds what every request can meet
