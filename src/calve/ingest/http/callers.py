"""Who sends a request: found out once, before anything of its body is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from calve.access import OPEN, Caller

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from calve.access import Need
    from calve.ingest.http.service import Service

_KEY: Final = "calve.caller"


async def admit(service: Service, connection: HTTPConnection, scope: Need) -> None:
    """Let in who may do this; Unauthenticated or Denied says why not."""
    if scope == OPEN:
        return
    doorkeeper = service.intake.doorkeeper
    authorization = connection.headers.get("authorization")
    address = connection.client.host if connection.client else ""
    caller = doorkeeper.remembered(authorization, address)
    if caller is None:  # only the state can tell, which may take its time
        caller = await service.in_thread(doorkeeper.caller, authorization, address)
    connection.scope[_KEY] = caller
    caller.require(scope)


def known_caller(connection: HTTPConnection) -> Caller | None:
    """Who it is, if that is known; let in or not."""
    caller: Caller | None = connection.scope.get(_KEY)
    return caller


def caller_of(connection: HTTPConnection) -> Caller:
    """Who was let in."""
    caller: Caller = connection.scope[_KEY]
    return caller
